"""One keyed request being run under ASGI: what its handler receives and sends, and what is made of it.

The outcome is settled before the message that completes the response is passed on, so that an instant retry replays
it; no other message waits. The handler never sees its client go away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from onceward.core.claim import Claim, Status
from onceward.errors import ClaimLost, OncewardError, StoreUnavailable
from onceward.http import problem
from onceward.http.events import Events, is_event_stream
from onceward.http.guard import Asked, Guard
from onceward.http.problem import Answer
from onceward.http.recording import BACKLOG_BYTES_MAX

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


# A start without a body is held back this long, so that a small response can still be replaced if settling fails.
HOLD_SECONDS = 0.02
_ERROR = 400

logger = logging.getLogger("onceward.http")


class Incoming(Protocol):
    """The body on its way to the handler. `broken` is the answer when it is not what the request promised."""

    broken: Answer | None

    async def message(self) -> Message | None:
        """The next message, or None when all of it was given."""
        ...


class Exchange:
    """Runs the application for one claim."""

    def __init__(
        self,
        guard: Guard,
        asked: Asked,
        claim: Claim,
        incoming: Incoming,
        send: Send,
        lost: Callable[[], Awaitable[None]],
    ) -> None:
        self._guard = guard
        self._asked = asked
        self._claim = claim
        self._incoming = incoming
        self._send_on = send
        self._lost = lost  # sends the outcome of whoever took the claim over
        self.operation, self._recording, self._drop = guard.operation(asked, claim)
        self._start: Message | None = None  # held back until the first piece of the body
        self._timer: asyncio.TimerHandle | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self._sent = False  # something of the handler's response has been passed on
        self._length: int | None = None
        self._given = 0
        self._events: Events | None = None
        self._writer: asyncio.Task[None] | None = None
        self._deferred: Message | None = None
        self._over: asyncio.Event | None = None
        self.complete = False  # the response has come to its end, and the ledger knows
        self.streaming: Callable[[], None] | None = None
        self.preface = b""  # sent ahead of an event stream
        self.gone = False  # the client is, or is not to get any more of this

    async def run(self, app: App, scope: Any) -> None:
        """Call the application and record what becomes of it."""
        try:
            await app(scope, self.receive, self.send)
            if self._deferred is not None:
                await self._finish(self._deferred)
        except asyncio.CancelledError:
            if not self.complete:
                await self._record(self._guard.unknown(self._asked, self._claim, "the handler was cancelled"))
            raise
        except Exception as error:
            if self.complete or await self._settled_all_the_same():
                raise
            note = f"{type(error).__name__}: {error}"
            await self._record(self._guard.failed(self._asked, self._claim, note))
            if self._incoming.broken is None or self._sent:
                raise
            await self._replace(self._incoming.broken)
        finally:
            self._drop()
            self._stop()
        if not self.complete:
            await self._guard.unknown(self._asked, self._claim, "the handler ended without a whole response")

    async def _record(self, recording: Awaitable[None]) -> None:
        """Record how the handler ended, on the way out with its exception; a store that fails lets the claim lapse."""
        bound = self.operation.bound
        if bound is not None and bound.open:
            recording.close()  # type: ignore[attr-defined]  # a coroutine; the open transaction decides instead
            return
        try:
            await recording
        except OncewardError as error:
            logger.warning("the end of a request could not be recorded; its claim will lapse: %s", error)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._over is not None:
            self._over.set()
        if self._writer is not None and not self._writer.done():
            self._writer.cancel()

    # What the handler receives.

    async def receive(self) -> Message:
        message = await self._incoming.message()
        if message is not None:
            return message
        if self._over is None:
            self._over = asyncio.Event()
        if not self.complete:
            await self._over.wait()
        return {"type": "http.disconnect"}

    # What the handler sends.

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            await self._begin(message)
        elif kind == "http.response.body":
            await self._piece(message)
        else:
            await self._pass(message)

    async def _begin(self, message: Message) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        events = False
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-length" and value.isdigit():
                self._length = int(value)
            elif lower == b"content-type":
                events = is_event_stream(value)
        if events:
            self._events = Events()
            if self._length is not None:  # ids will be added to it
                headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
                self._length = None
        self._start = {**message, "headers": headers}
        if not self.operation.stored:
            self._recording.forget()
        self._recording.begin(message["status"], headers, events=events, live=self._length is None)
        if events:
            await self._let_go()
            if self.preface:
                await self._pass({"type": "http.response.body", "body": self.preface, "more_body": True})
        elif self._length is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HOLD_SECONDS, self._let_go_later)

    async def _piece(self, message: Message) -> None:
        data = message.get("body", b"")
        more = message.get("more_body", False)
        if self.complete:
            await self._pass(message)
            return
        self._given += len(data)
        if not more or (self._length is not None and self._given >= self._length):
            bound = self.operation.bound
            if bound is not None and bound.open:
                self._deferred = message  # its transaction is still open: what it decides, decides this
                return
            await self._finish(message)
            return
        if self._events is not None:
            data = b"".join([self._recording.add_event(block) for block in self._events.feed(data)])
            if not data:
                return
        else:
            self._recording.add(data)
        await self._pass_start()
        await self._pass({**message, "body": data})
        await self._write_down()
        if self.streaming is not None:
            self.streaming()
            self.streaming = None

    async def _write_down(self) -> None:
        """Write down what has gathered, beside the stream; a store that is slower than it slows it."""
        writer = self._writer
        if writer is not None and (writer.done() or self._recording.backlog > BACKLOG_BYTES_MAX):
            await writer
            writer = None
        if writer is None and self._recording.due:
            writer = asyncio.ensure_future(self._recording.append())
        self._writer = writer

    async def _finish(self, message: Message) -> None:
        """Settle, then pass the end on."""
        data = message.get("body", b"")
        if self._events is not None:
            blocks = [*self._events.feed(data), *filter(None, [self._events.finish()])]
            data = b"".join([self._recording.add_event(block) for block in blocks])
        else:
            self._recording.add(data)
        try:
            answer = await self._settle()
        except StoreUnavailable:
            if self._sent:
                raise
            answer = problem.unavailable()
        except ClaimLost:
            if self._sent:
                raise
            self._drop()
            self.complete = self.gone = True
            await self._lost()
            return
        self._drop()
        if answer is None:
            self.complete = True
            await self._pass_start()
            await self._pass({**message, "body": data})
        else:
            await self._replace(answer)

    async def _settle(self) -> Answer | None:
        """Record the outcome. None: the handler's response is it; otherwise what is to be sent instead."""
        bound = self.operation.bound
        if self._incoming.broken is not None and not self._sent:
            await self._guard.failed(self._asked, self._claim, "the body was not what the request promised")
            return self._incoming.broken
        if bound is not None and bound.settled:
            if await self._is_ours():
                return bound.response
            if self._start is not None and self._start["status"] < _ERROR:
                await self._guard.failed(self._asked, self._claim, "the bound transaction was rolled back")
                return problem.problem(503, "The transaction was rolled back. Retry with the same key.", retry_after=1)
        elif bound is not None:
            logger.error("a transaction was bound to a request and never settled in; settling outside of it")
        if self._letting_go is not None:
            await self._letting_go
        if self._writer is not None:
            with contextlib.suppress(ClaimLost):
                await self._writer
        seconds = self.operation.retain_seconds
        if await self._recording.finish(self._asked.rule.retain_seconds if seconds is None else seconds):
            if self._recording.doubted:
                self._guard.observer.put_in_doubt(self._asked.key)
            return None
        raise ClaimLost("the claim of this request was taken over while its response was under way")

    async def _is_ours(self) -> bool:
        entry = await self._guard.ledger.look(self._claim.entry.ref)
        return entry is not None and (entry.version, entry.status) == (self._claim.version, Status.COMPLETED)

    async def _settled_all_the_same(self) -> bool:
        """The handler raised, and yet its bound transaction did commit: then its response is the outcome."""
        bound = self.operation.bound
        if bound is None or not bound.settled or bound.open or self._sent or bound.response is None:
            return False
        try:
            ours = await self._is_ours()
        except StoreUnavailable:
            return False
        if ours:
            await self._replace(bound.response)
        return ours

    # Passing on.

    async def _replace(self, answer: Answer) -> None:
        """Send this instead of the handler's response, of which nothing has been sent."""
        self.complete = True
        self._start = None
        await self._pass({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
        await self._pass({"type": "http.response.body", "body": answer.body})
        self.gone = True

    async def _pass_start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._letting_go is not None:
            await self._letting_go
        elif self._start is not None:
            await self._let_go()

    def _let_go_later(self) -> None:
        self._letting_go = asyncio.ensure_future(self._let_go())

    async def _let_go(self) -> None:
        start, self._start = self._start, None
        if start is not None:
            self._sent = True
            await self._pass(start)

    async def _pass(self, message: Message) -> None:
        if self.gone:
            return
        try:
            await self._send_on(message)
        except OSError:
            self.gone = True  # the client went away; what follows is recorded and waits for its retry
