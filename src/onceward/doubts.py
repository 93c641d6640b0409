"""Doubts of this process, made known: a warning in the log with the command that ends it, and the caller's `on_doubt`.

Both happen on a thread of their own, one doubt after the other: whatever they do, the store's I/O thread and the event
loops go on. The thread ends when there is nothing more to tell.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shlex
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from onceward.core.claim import Entry
from onceward.core.key import shown
from onceward.core.log_event import Command, LogEvent

OnDoubt: TypeAlias = Callable[[Entry], Awaitable[object] | object]

# Layers whose keys are chosen by clients: with the key, one can ask for somebody's response.
CLIENT_LAYERS = ("http:", "api:")
# How long a ledger that is closed waits for what is still to be told.
CLOSE_SECONDS = 5.0

logger = logging.getLogger("onceward.ledger")


class Doubts:
    """What a ledger tells of the claims that its own writes put in doubt."""

    def __init__(self, on_doubt: OnDoubt | None) -> None:
        self._on_doubt = on_doubt
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._waiting: deque[Entry] = deque()
        self._thread: threading.Thread | None = None

    def tell(self, entry: Entry) -> None:
        """From any thread; returns at once."""
        if self._pid != os.getpid():
            self._reset()  # a forked child has neither the thread nor anything to do with what it was to tell
        with self._mutex:
            self._waiting.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="onceward-doubts", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait until everything is told, but not for ever."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and self._pid == os.getpid():
            thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._thread = None
                    return
                entry = self._waiting.popleft()
            fields = doubt_fields(entry)
            logger.warning(LogEvent("claim_in_doubt", fields), extra=fields)
            try:
                self._call(entry)
            except Exception as error:
                failed = {"scope": fields["scope"], "key": fields["key"], "reason": repr(error)}
                logger.exception(LogEvent("on_doubt_failed", failed), extra=failed)

    def _call(self, entry: Entry) -> None:
        if self._on_doubt is not None and inspect.isawaitable(answer := self._on_doubt(entry)):
            asyncio.run(_awaited(answer))


async def _awaited(answer: Awaitable[object]) -> None:
    await answer


def doubt_fields(entry: Entry) -> dict[str, object]:
    """The fields of the log line: what is in doubt, and the command that ends the doubt, for each of its two ends."""
    namespace, _, scope = entry.scope.partition(":")
    key = shown(entry.key) if scope.startswith(CLIENT_LAYERS) else entry.key
    return {
        "scope": scope,
        "key": key,
        "version": entry.version,
        "note": entry.note,
        "if_it_happened": _command(namespace, scope, key, entry.version, "--committed"),
        "if_it_did_not": _command(namespace, scope, key, entry.version, "--not-committed"),
    }


def _command(namespace: str, scope: str, key: str, version: int, verdict: str) -> Command:
    """Ready to be pasted into a shell; only the reason is left to say."""
    names = [scope, key]
    options = ["--version", str(version), verdict, "--namespace", namespace, "--reason", "how you know"]
    words = [*options, "--", *names] if any(name.startswith("-") for name in names) else [*names, *options]
    return Command(" ".join(map(_word, ["onceward", "claims", "resolve", *words])))


def _word(text: str) -> str:
    """One word of a shell command, on one line whatever is in it."""
    if text.isprintable():
        return shlex.quote(text)
    kept = (one if one.isprintable() and one not in "\\'" else f"\\U{ord(one):08x}" for one in text)
    return f"$'{''.join(kept)}'"
