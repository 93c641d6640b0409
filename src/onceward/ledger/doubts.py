"""Notification of claims in doubt: a warning in the log with the command that ends the doubt, and the `on_doubt` hook.

Both happen on a separate thread, one doubt after the other, so that they never block the I/O thread or an event loop.
The thread ends when no notifications are left. A reconcile hook, which is called by `run`, sees the time of the
store's clock: the age of a claim must not depend on this machine's clock.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shlex
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

from onceward.core.claim import SECOND, Entry
from onceward.core.key import short_key
from onceward.core.log_event import Command, log_event
from onceward.errors import InvalidOption

OnDoubt: TypeAlias = Callable[[Entry], Awaitable[object] | object]
LogKeys: TypeAlias = Literal["short", "whole"]

LOG_KEYS: tuple[LogKeys, ...] = ("short", "whole")

# Layers whose clients choose the keys: anyone with the whole key could request the client's response.
CLIENT_LAYERS = ("http:", "api:")
# How long `close` waits for notifications that are left.
CLOSE_SECONDS = 5.0

logger = logging.getLogger("onceward.ledger")


class DoubtNotifier:
    """Notifier of the claims that a ledger's own writes put in doubt."""

    def __init__(self, on_doubt: OnDoubt | None, log_keys: LogKeys) -> None:
        if log_keys not in LOG_KEYS:
            raise InvalidOption(f"log_keys must be {' or '.join(map(repr, LOG_KEYS))}, not {log_keys!r}")
        self._on_doubt = on_doubt
        self._log_keys = log_keys
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._waiting: deque[Entry] = deque()
        self._thread: threading.Thread | None = None

    def notify(self, entry: Entry) -> None:
        """Notify of an entry in doubt. Returns at once, on any thread."""
        if self._pid != os.getpid():
            self._reset()  # a forked child does not have the thread, and the notifications are the parent's
        with self._mutex:
            self._waiting.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="onceward-doubts", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait until all notifications are done, for at most `CLOSE_SECONDS`."""
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
            fields = doubt_fields(entry, self._log_keys)
            log_event(logger.warning, "claim_in_doubt", **fields)
            try:
                self._call(entry)
            except Exception as error:  # noqa: BLE001  # the hook may raise anything
                scope, key = fields["scope"], fields["key"]
                log_event(logger.error, "on_doubt_failed", error, scope=scope, key=key, reason=repr(error))

    def _call(self, entry: Entry) -> None:
        if self._on_doubt is not None and inspect.isawaitable(result := self._on_doubt(entry)):
            asyncio.run(_awaited(result))


async def _awaited(result: Awaitable[object]) -> None:
    await result


def doubt_fields(entry: Entry, log_keys: LogKeys = "short") -> dict[str, object]:
    """Return the fields of the log event: the entry, and for each of the two verdicts the command that records it."""
    namespace, _, scope = entry.scope.partition(":")
    key = entry.key if log_keys == "whole" else shown_key(entry.scope, entry.key)
    return {
        "scope": scope,
        "key": key,
        "version": entry.version,
        "note": entry.note,
        "if_it_happened": _command(namespace, scope, key, entry.version, "--committed"),
        "if_it_did_not": _command(namespace, scope, key, entry.version, "--not-committed"),
    }


def shown_key(scope: str, key: str) -> str:
    """Return a key, cut if a client chose it. The scope begins with the namespace."""
    return short_key(key) if scope.partition(":")[2].startswith(CLIENT_LAYERS) else key


def _command(namespace: str, scope: str, key: str, version: int, verdict: str) -> Command:
    """Return a command that can be pasted into a shell. Only the reason has to be filled in."""
    names = [scope, key]
    options = ["--version", str(version), verdict, "--namespace", namespace, "--reason", "how you know"]
    words = [*options, "--", *names] if any(name.startswith("-") for name in names) else [*names, *options]
    return Command(" ".join(map(_word, ["onceward", "claims", "resolve", *words])))


def _word(text: str) -> str:
    """Quote one word of a shell command, on one line even if it contains line breaks."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = (one if one.isprintable() and one not in "\\'" else f"\\U{ord(one):08x}" for one in text)
    return f"$'{''.join(escaped)}'"


_store_time: ContextVar[int] = ContextVar("onceward_store_time", default=0)


@contextmanager
def at_store_time(now: int) -> Iterator[None]:
    """Let a hook that is called in this block see when the store found the doubt."""
    token = _store_time.set(now)
    try:
        yield
    finally:
        _store_time.reset(token)


def claim_age_seconds(entry: Entry) -> float | None:
    """Return how long ago the claim of an entry began, by the store's clock.

    None if that is not known: outside a reconcile hook, or if a process of the previous version claimed the key again
    and recorded only its first attempt.
    """
    now = _store_time.get()
    began = entry.claimed_at
    if not now or not began or (entry.attempt > 1 and began <= entry.created_at):
        return None
    return (now - began) / SECOND
