"""The exchange of one keyed request under WSGI: the response is recorded while the server iterates it.

The outcome is settled before the piece that reaches `Content-Length` is yielded, or before the iteration ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from onceward.core.log_event import log_event
from onceward.errors import ClaimLost, InvalidOption, StoreUnavailable, described
from onceward.http import problem
from onceward.http.problem import Response
from onceward.http.request.headers import length_of
from onceward.http.response.replay import has_events
from onceward.http.response.settlement import Settlement
from onceward.http.response.shape import shaped
from onceward.http.response.sse import EventSplitter
from onceward.http.stored.policy import BODILESS_STATUSES, CONTENT_LENGTH
from onceward.ledger.blocking import wait
from onceward.ledger.transaction import forget_bound

Start = Callable[..., Any]

logger = logging.getLogger("onceward.http")


class WsgiExchange:
    """The iterable for the server. If it is closed early, because the client disconnected, recording continues."""

    def __init__(
        self,
        settlement: Settlement,
        start_response: Start,
        lost: Callable[[], Iterable[bytes]],
        release: Callable[[], None],
        preface: bytes,
        max_stream_seconds: float,
    ) -> None:
        self._settlement = settlement
        self._recorder = settlement.recorder
        self._start_response = start_response
        self._lost = lost  # returns the outcome of the holder that took the claim over
        self._release = release
        self._preface = preface
        self._max_stream_seconds = max_stream_seconds
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._written: list[bytes] = []
        self._iterable: Iterable[bytes] = ()
        self._length: int | None = None
        self._events: EventSplitter | None = None
        self._body_bytes = 0
        self._withheld: list[bytes] = []
        self._withholds = False  # nothing is yielded before the response is settled
        self._begun = False
        self._unsettled = False  # the client got 503, but the response may still be recorded
        self._sent = False
        self._complete = False  # the outcome is recorded; further pieces are only passed on
        self._closed = False
        self._gone_at: float | None = None
        self._pieces = self._respond()
        self._iterating = False

    def call(self, app: Callable[[Any, Start], Iterable[bytes]], environ: Any) -> None:
        """Call the application. Its exception is recorded and raised again."""
        try:
            self._iterable = app(environ, self.start_response)
        except BaseException as error:
            instead = self._raised(error)
            if instead is None:
                self._end()
                raise
            _log_raised(error)
            self._iterable = self._replace(instead)
            self._complete = True

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if exc_info is not None and self._sent:
            raise exc_info[1].with_traceback(exc_info[2])
        self._status, self._headers = status, list(headers)
        self._begun, self._body_bytes = False, 0
        return self._written.append

    # Calls from the server.

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self._iterating = True
        return next(self._pieces)

    def close(self) -> None:
        """End the iteration; called by the server. If the client has disconnected, record the rest of the response."""
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
        self._written.clear()  # keep the list object: the application appends to it
        return written

    def _record(self, source: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces, the last one only after the response is settled."""
        try:
            for piece in source:
                if self._is_abandoned:
                    if not self._complete:
                        wait(self._settlement.unknown("the client disconnected, and the stream did not end in time"))
                    return
                if self._complete:
                    yield piece
                    continue
                if not piece:
                    continue
                self._begin()
                self._body_bytes += len(piece)
                length_reached = self._length is not None and self._body_bytes >= self._length
                if self._withholds or (length_reached and self._settlement.undecided):
                    # While the handler's transaction is open, wait for the end of the handler.
                    self._withheld.append(self._add(piece))
                elif length_reached:
                    yield from self._finish(piece)
                elif data := self._add(piece):
                    yield from self._start()
                    yield data
                    if self._recorder.due:
                        wait(self._recorder.append())
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
            _log_raised(error)
            yield from self._replace(instead)

    @property
    def _is_abandoned(self) -> bool:
        return self._gone_at is not None and time.monotonic() - self._gone_at > self._max_stream_seconds

    def _begin(self) -> None:
        if self._begun:
            return
        if not self._status:
            raise InvalidOption("the application returned a body before it called start_response")
        self._begun = True
        length = next((value for name, value in self._headers if name.lower() == "content-length"), "")
        self._length = length_of(length)
        lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._headers]
        events = has_events(lines)
        self._events = EventSplitter() if events else None
        if events and self._length is not None:  # adding event ids changes the length
            self._length = None
            self._headers = [(name, value) for name, value in self._headers if name.lower() != "content-length"]
            lines = [(name, value) for name, value in lines if name != CONTENT_LENGTH]
        self._withholds = _is_whole(self._iterable) or self._settlement.operation.bound is not None
        if not self._settlement.operation.stored:
            self._recorder.forget()
        self._recorder.begin(self._code, lines, events=events, live=self._length is None)

    @property
    def _code(self) -> int:
        return int(self._status.split(" ", 1)[0])

    @property
    def _has_wrong_length(self) -> bool:
        """True if the body does not have its Content-Length, so that it is never complete for its client."""
        if self._length is None or self._body_bytes == self._length or self._code in BODILESS_STATUSES:
            return False
        bound = self._settlement.operation.bound
        return bound is None or not bound.settled

    def _add(self, piece: bytes) -> bytes:
        if self._events is None:
            self._recorder.add(piece)
            return piece
        return b"".join([self._recorder.add_event(block) for block in self._events.feed(piece)])

    def _finish(self, piece: bytes) -> Iterator[bytes]:
        """Settle the response, then yield its end."""
        data = self._add(piece)
        if self._events is not None and (rest := self._events.finish()):
            data += self._recorder.add_event(rest)
        self._withheld.append(data)
        if self._has_wrong_length:
            wait(self._settlement.unknown("the length of the response differs from its Content-Length"))
            yield from self._yield_withheld()
            return
        try:
            if self._settlement.undecided:
                self._close()  # the application's cleanup ends its transaction
            instead = wait(self._settlement.settle(self._code, sent=self._sent))
        except StoreUnavailable as error:
            if self._sent:
                raise
            self._unsettled = self._settlement.operation.bound is None
            instead = problem.store_failed(error)
        except ClaimLost:
            if self._sent:
                raise
            self._complete = True
            self._settlement.stop_renewal()
            if self._gone_at is None:
                yield from self._lost()
            return
        if instead is None or self._sent:
            yield from self._yield_withheld()
        else:
            yield from self._replace(instead)

    def _yield_withheld(self) -> Iterator[bytes]:
        self._complete = True
        yield from self._start()
        yield from filter(None, self._withheld)

    def _start(self) -> Iterator[bytes]:
        if self._sent:
            return
        self._sent = True
        if self._gone_at is None:
            self._start_response(self._status, self._headers)
        if self._preface and self._events is not None:
            yield self._preface

    def _replace(self, response: Response) -> Iterator[bytes]:
        """Send this response instead of the application's, of which nothing has been sent."""
        response = shaped(self._start_response, response)
        self._complete = self._sent = True
        lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers]
        if self._gone_at is None:
            self._start_response(f"{response.status} {problem.phrase(response.status)}", lines)
        yield response.body

    def _raised(self, error: BaseException) -> Response | None:
        note = described(error)
        if isinstance(error, Exception):
            return wait(self._settlement.raised(note))
        wait(self._settlement.unknown(note))
        return None

    def _end(self) -> None:
        self._settlement.operation.over = True
        if self._unsettled:
            threading.Thread(target=self._settle_late, name="onceward-settle", daemon=True).start()
        else:
            self._settlement.stop_renewal()
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
            wait(self._settlement.settle_late())
        finally:
            self._settlement.stop_renewal()


def _is_whole(iterable: Iterable[bytes]) -> bool:
    """Return whether the body is complete, so that it can be settled before any of it is sent."""
    return isinstance(iterable, list | tuple) or getattr(iterable, "streaming", None) is False


def close(iterable: Iterable[bytes]) -> None:
    """Close the iterable of a response, as a server does at its end."""
    function = getattr(iterable, "close", None)
    if function is not None:
        function()


def _log_raised(error: BaseException) -> None:
    log_event(logger.error, "handler_failed_after_commit", error, sent="the response settled in its transaction")
