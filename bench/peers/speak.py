"""How a peer's process is asked: one JSON line in, one JSON line out, until the input ends."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from bench.load import SETTLED, Effects, Load, Mode, namer


@dataclass(frozen=True, slots=True)
class Peer:
    """What a peer can do: one keyed call, and many callers doing it."""

    package: str
    call: Callable[[str], object]
    drive: Callable[[int, float, Callable[[int, int], str]], Load]
    effects: Effects
    close: Callable[[], None]


def serve(make: Callable[[str], Peer]) -> None:
    """Answer questions about the peer on the store whose URL is the only argument."""
    # Whatever a library prints must not end up between our lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        peer = make(sys.argv[1])
    except Exception as error:  # noqa: BLE001  # the one who asks decides what it means
        print(json.dumps({"error": _one_line(error)}), file=answers, flush=True)
        return
    print(json.dumps({"version": importlib.metadata.version(peer.package)}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = _answer(peer, json.loads(line))
        except Exception as error:  # noqa: BLE001  # as above
            answer = {"error": _one_line(error)}
        print(json.dumps(answer), file=answers, flush=True)
    peer.close()


def _answer(peer: Peer, question: dict[str, object]) -> dict[str, object]:
    match question:
        case {"do": "warm"}:
            peer.effects.forget()
            for key in SETTLED:
                peer.call(key)
            peer.effects.check(Mode.FRESH, len(SETTLED))
            return {}
        case {"do": "call", "key": str(key)}:
            peer.call(key)
            return {}
        case {"do": "rate", "mode": str(word), "callers": int(callers), "seconds": float(seconds)}:
            mode = Mode(word)
            peer.effects.forget()
            load = peer.drive(callers, seconds, namer(mode))
            peer.effects.check(mode, load.calls)
            return {"rate": load.rate}
        case _:
            return {"error": f"unknown question {question}"}


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
