"""Protocol of a peer process: one JSON line in, one JSON line out, until standard input is closed."""

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
    """A peer: a function for one keyed call, and one that runs it with many callers."""

    package: str
    call: Callable[[str], object]
    drive: Callable[[int, float, Callable[[int, int], str]], Load]
    effects: Effects
    close: Callable[[], None]


def serve(make: Callable[[str], Peer]) -> None:
    """Serve requests for a peer on the store whose URL is the first argument of the process."""
    # Redirect stdout to stderr, so that output of a library does not mix with the JSON lines.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        peer = make(sys.argv[1])
    except Exception as error:  # noqa: BLE001  # the parent process handles it
        print(json.dumps({"error": _one_line(error)}), file=output, flush=True)
        return
    print(json.dumps({"version": importlib.metadata.version(peer.package)}), file=output, flush=True)
    for line in sys.stdin:
        try:
            response = _respond(peer, json.loads(line))
        except Exception as error:  # noqa: BLE001  # as above
            response = {"error": _one_line(error)}
        print(json.dumps(response), file=output, flush=True)
    peer.close()


def _respond(peer: Peer, request: dict[str, object]) -> dict[str, object]:
    match request:
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
            return {"error": f"unknown request {request}"}


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
