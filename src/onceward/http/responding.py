"""One keyed request being run under WSGI: the response of its application, recorded while the server takes it.

The outcome is settled before the piece that reaches `Content-Length` is handed over, or before the iteration ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from onceward.blocking import wait
from onceward.bound import forget_bound
from onceward.core.request import length_of
from onceward.core.response import BODILESS_STATUSES, CONTENT_LENGTH
from onceward.errors import ClaimLost, InvalidOption, StoreUnavailable, described
from onceward.http import problem
from onceward.http.ending import Ending
from onceward.http.events import Events
from onceward.http.problem import Answer
from onceward.http.replay import has_events

Start = Callable[..., Any]

logger = logging.getLogger("onceward.http")


class Responding:
    """What the server iterates. Closing it early, because the client went away, does not end the handler's response."""

    def __init__(
        self,
        ending: Ending,
        start_response: Start,
        lost: Callable[[], Iterable[bytes]],
        release: Callable[[], None],
        preface: bytes,
        max_stream_seconds: float,
    ) -> None:
        self._ending = ending
        self._recording = ending.recording
        self._start_response = start_response
        self._lost = lost  # the outcome of whoever took the claim over
        self._release = release
        self._preface = preface
        self._max_stream_seconds = max_stream_seconds
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._written: list[bytes] = []
        self._iterable: Iterable[bytes] = ()
        self._length: int | None = None
        self._events: Events | None = None
        self._given = 0
        self._held: list[bytes] = []
        self._withholds = False  # nothing is handed over before the end is settled
        self._begun = False
        self._unsettled = False  # the client was told 503, but the response could still be recorded
        self._sent = False
        self._complete = False  # what the ledger is to know of the response it knows; what comes now is passed on
        self._closed = False
        self._gone_at: float | None = None
        self._pieces = self._respond()
        self._iterating = False

    def call(self, app: Callable[[Any, Start], Iterable[bytes]], environ: Any) -> None:
        """Call the application; what it raises is recorded and raised."""
        try:
            self._iterable = app(environ, self.start_response)
        except BaseException as error:
            instead = self._raised(error)
            if instead is None:
                self._end()
                raise
            _tell_raised(error)
            self._iterable = self._replace(instead)
            self._complete = True

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if exc_info is not None and self._sent:
            raise exc_info[1].with_traceback(exc_info[2])
        self._status, self._headers = status, list(headers)
        self._begun, self._given = False, 0
        return self._written.append

    # What the server does.

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self._iterating = True
        return next(self._pieces)

    def close(self) -> None:
        """Called by the server at the end, or when the client went away: then the rest is recorded all the same."""
        if self._iterating:
            self._pieces.close()
        else:
            self._gone_at = time.monotonic()
            for _ in self._pieces:
                pass

    # The response.

    def _respond(self) -> Generator[bytes, None, None]:
        source = iter(self._iterable) if self._complete else self._source()
        try:
            yield from self._record(source)
        except GeneratorExit:
            self._gone_at = time.monotonic()
            for _ in self._record(source):
                pass
        finally:
            self._end()

    def _source(self) -> Iterator[bytes]:
        for piece in self._iterable:
            yield from self._take_written()
            yield piece
        yield from self._take_written()

    def _take_written(self) -> list[bytes]:
        written = list(self._written)
        self._written.clear()  # the application has this very list
        return written

    def _record(self, source: Iterator[bytes]) -> Iterator[bytes]:
        """Hand the pieces over, and the last one only when the ledger knows."""
        try:
            for piece in source:
                if self._is_abandoned:
                    if not self._complete:
                        wait(self._ending.unknown("the client went away and the stream did not end in time"))
                    return
                if self._complete:
                    yield piece
                    continue
                if not piece:
                    continue
                self._begin()
                self._given += len(piece)
                reached = self._length is not None and self._given >= self._length
                if self._withholds or (reached and self._ending.undecided):
                    # Where a transaction of the handler's is open, the handler comes to its own end first.
                    self._held.append(self._add(piece))
                elif reached:
                    yield from self._finish(piece)
                elif data := self._add(piece):
                    yield from self._start()
                    yield data
                    if self._recording.due:
                        wait(self._recording.append())
            if not self._complete:
                self._begin()
                yield from self._finish(b"")
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._complete:
                raise
            instead = self._raised(error)
            if instead is None or self._sent:
                raise
            _tell_raised(error)
            yield from self._replace(instead)

    @property
    def _is_abandoned(self) -> bool:
        return self._gone_at is not None and time.monotonic() - self._gone_at > self._max_stream_seconds

    def _begin(self) -> None:
        if self._begun:
            return
        if not self._status:
            raise InvalidOption("the application gave a body before it called start_response")
        self._begun = True
        length = next((value for name, value in self._headers if name.lower() == "content-length"), "")
        self._length = length_of(length)
        lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._headers]
        events = has_events(lines)
        self._events = Events() if events else None
        if events and self._length is not None:  # ids will be added to it
            self._length = None
            self._headers = [(name, value) for name, value in self._headers if name.lower() != "content-length"]
            lines = [(name, value) for name, value in lines if name != CONTENT_LENGTH]
        self._withholds = _is_whole(self._iterable) or self._ending.operation.bound is not None
        if not self._ending.operation.stored:
            self._recording.forget()
        self._recording.begin(self._code, lines, events=events, live=self._length is None)

    @property
    def _code(self) -> int:
        return int(self._status.split(" ", 1)[0])

    @property
    def _contradicts_itself(self) -> bool:
        """Not as long as it says, so that it is never completed for its client."""
        if self._length is None or self._given == self._length or self._code in BODILESS_STATUSES:
            return False
        bound = self._ending.operation.bound
        return bound is None or not bound.settled

    def _add(self, piece: bytes) -> bytes:
        if self._events is None:
            self._recording.add(piece)
            return piece
        return b"".join([self._recording.add_event(block) for block in self._events.feed(piece)])

    def _finish(self, piece: bytes) -> Iterator[bytes]:
        """Settle, then hand the end over."""
        data = self._add(piece)
        if self._events is not None and (rest := self._events.finish()):
            data += self._recording.add_event(rest)
        self._held.append(data)
        if self._contradicts_itself:
            wait(self._ending.unknown("the response is not as long as it says"))
            yield from self._hand_over()
            return
        try:
            if self._ending.undecided:
                self._close()  # the application's own clean-up ends its transaction
            instead = wait(self._ending.settle(self._code, sent=self._sent))
        except StoreUnavailable as error:
            if self._sent:
                raise
            self._unsettled = self._ending.operation.bound is None
            instead = problem.store_failed(error)
        except ClaimLost:
            if self._sent:
                raise
            self._complete = True
            self._ending.drop()
            if self._gone_at is None:
                yield from self._lost()
            return
        if instead is None or self._sent:
            yield from self._hand_over()
        else:
            yield from self._replace(instead)

    def _hand_over(self) -> Iterator[bytes]:
        self._complete = True
        yield from self._start()
        yield from filter(None, self._held)

    def _start(self) -> Iterator[bytes]:
        if self._sent:
            return
        self._sent = True
        if self._gone_at is None:
            self._start_response(self._status, self._headers)
        if self._preface and self._events is not None:
            yield self._preface

    def _replace(self, answer: Answer) -> Iterator[bytes]:
        """Send this instead of the application's response, of which nothing has been sent."""
        self._complete = self._sent = True
        lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
        if self._gone_at is None:
            self._start_response(f"{answer.status} {problem.phrase(answer.status)}", lines)
        yield answer.body

    def _raised(self, error: BaseException) -> Answer | None:
        note = described(error)
        if isinstance(error, Exception):
            return wait(self._ending.raised(note))
        wait(self._ending.unknown(note))
        return None

    def _end(self) -> None:
        self._ending.operation.over = True
        if self._unsettled:
            threading.Thread(target=self._settle_late, name="onceward-settle", daemon=True).start()
        else:
            self._ending.drop()
        try:
            self._close()
        finally:
            self._release()
            forget_bound()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            close(self._iterable)

    def _settle_late(self) -> None:
        try:
            wait(self._ending.settle_late())
        finally:
            self._ending.drop()


def _is_whole(iterable: Iterable[bytes]) -> bool:
    """Whether the body is there as a whole, so that it can be settled before any of it is handed over."""
    return isinstance(iterable, list | tuple) or getattr(iterable, "streaming", None) is False


def close(iterable: Iterable[bytes]) -> None:
    """What the server does when it is through with a response."""
    function = getattr(iterable, "close", None)
    if function is not None:
        function()


def _tell_raised(error: BaseException) -> None:
    logger.error(
        "a handler raised after its transaction had committed; the response settled there is sent", exc_info=error
    )
