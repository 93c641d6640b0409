"""The exchange of one keyed request under ASGI: the messages that its handler receives and sends.

The outcome is settled before the message that completes the response is passed on, so that an immediate retry replays
it. No other message waits for the store, nor does the handler: its last message is held here. Nearly always the handler
has ended, and its frames are freed, before the store is called. The handler never sees its client disconnect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from onceward.core.log_event import log_event
from onceward.errors import ClaimLost, StoreUnavailable, described
from onceward.http import problem
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.http.keyed.admission import Admission, KeyedRequest
from onceward.http.keyed.asgi_request import AsgiBody
from onceward.http.response.recorder import BACKLOG_BYTES_MAX
from onceward.http.response.replay import length_and_events, replay, send_response, until_gone
from onceward.http.response.settlement import Settlement, outcome_after_takeover
from onceward.http.response.shape import shaped
from onceward.http.response.sse import EventSplitter
from onceward.http.stored.policy import BODILESS_STATUSES, CONTENT_LENGTH

# The response start is held back for this time, so that a small response can still be replaced if settling fails.
HOLD_SECONDS = 0.02
_BROKEN = "the request body was incomplete, too large, or did not match its digest"
logger = logging.getLogger("onceward.http")


class AsgiExchange:
    """The run of the application for one claim."""

    __slots__ = (
        "_admission", "_body", "_body_bytes", "_complete", "_events", "_finishing", "_last", "_late", "_length",
        "_over", "_receive", "_recorder", "_request", "_send_on", "_sent", "_settlement", "_soon", "_start",
        "_start_task", "_status", "_task", "_timer", "_watcher", "_whole", "_withheld", "_withholds", "_writer",
        "began", "caller", "gone", "preface",
    )  # fmt: skip

    def __init__(
        self,
        admission: Admission,
        request: KeyedRequest,
        settlement: Settlement,
        body: AsgiBody,
        receive: Receive,
        send: Send,
    ) -> None:
        self._admission = admission
        self._request = request
        self._settlement = settlement
        self._recorder = settlement.recorder
        self._body = body
        self._receive = receive
        self._send_on = send
        self._status = 0
        self._start: Message | None = None  # held back until the first piece of the body
        self._timer: asyncio.Handle | None = None
        self._start_task: asyncio.Task[None] | None = None
        self._sent = False  # a part of the handler's response has been passed on
        self._length: int | None = None
        self._body_bytes = 0
        self._events: EventSplitter | None = None
        self._writer: asyncio.Task[None] | None = None
        self._last: Message | None = None  # completes the response, which is not settled yet
        self._whole = False  # the handler has sent a complete response, whatever it does next
        self._soon: asyncio.Handle | None = None  # calls `_handler_suspended`
        self._finishing: asyncio.Task[None] | None = None
        self._over: asyncio.Event | None = None
        self._complete = False  # the response is complete and recorded in the ledger
        self._withholds = False  # nothing is sent before it is known whether the bound transaction committed
        self._withheld: tuple[bytes, ...] = ()
        self._late: asyncio.Task[None] | None = None  # still records a response whose client got 503
        self._task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.caller: asyncio.Future[None] | None = None  # resolved at the end; the server's call awaits it
        self.began = False
        self.preface = b""  # sent before an event stream
        self.gone = False  # the client has disconnected, or must not get anything more

    async def never_ran(self) -> None:
        """Release the key of an exchange that was cancelled before its first step: nothing happened."""
        self._body.close()
        await self._settlement.release()

    async def run(self, app: App, scope: Any) -> None:
        """Call the application and record its outcome."""
        self.began = True
        self._task = asyncio.current_task()
        try:
            await app(scope, self.receive, self.send)
            if self._finishing is not None:
                await self._end()
            elif (message := self._take_last()) is not None:  # inlined: saves a frame while the store works
                await self._finish(message)
            if not self._complete:
                broken = self._body.broken
                if broken is None or self._sent:
                    await self._settlement.unknown("the handler ended without a complete response")
                else:  # the handler was given a disconnect in place of the body, and sent nothing
                    await self._replace(await self._settlement.raised(_BROKEN) or broken)
            if self._late is not None:
                self._release_caller()
                await asyncio.wait({self._late})
        except asyncio.CancelledError:
            await self._end_if_whole()
            if not self._complete:
                await self._settlement.unknown("the handler was cancelled")
            raise
        except Exception as error:
            await self._end_if_whole()
            if self._complete:
                raise
            instead = await self._settlement.raised(described(error)) or self._body.broken
            if instead is None or self._sent:
                raise
            await self._replace(instead)
            if self._body.broken is None:
                raise
        finally:
            self._task = None  # break the reference cycle, so that the exchange is freed without the garbage collector
            self._body.close()
            self._settlement.stop_renewal()
            if self._watcher is not None:
                self._watcher.cancel()
            for handle in (self._soon, self._timer):
                if handle is not None:
                    handle.cancel()
            if self._over is not None:
                self._over.set()
            if self._writer is not None and not self._writer.done():
                self._writer.cancel()

    async def _end(self) -> None:
        """Settle a complete response and pass on its end. If that is already running, wait for it."""
        message = self._take_last()
        if self._finishing is not None:
            await asyncio.wait({self._finishing})  # a cancellation here does not cancel that task
            finishing, self._finishing = self._finishing, None
            finishing.result()
        if message is not None:
            await self._finish(message)

    def _take_last(self) -> Message | None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        message, self._last = self._last, None
        return message

    async def _end_if_whole(self) -> None:
        """Settle the response of a handler that raised or was cancelled, if it had sent all of it before."""
        if not self._whole:
            return
        try:
            await self._end()
        except Exception as error:  # noqa: BLE001  # the handler's own exception is raised; this one is only logged
            log_event(logger.warning, "response_completion_failed", reason=str(error))

    def _handler_suspended(self) -> None:
        """Handle a handler that awaits before it ends: settle a complete response, delay the start of any other."""
        self._soon = None
        if self._last is None:
            if self._start is not None:
                self._delay_start()
        elif self._whole:
            message, self._last = self._last, None
            self._finishing = asyncio.ensure_future(self._finish(message))
            self._finishing.add_done_callback(self._finished)

    def _finished(self, finishing: asyncio.Task[None]) -> None:
        """Close the connection as soon as the response cannot be completed, before background tasks have ended."""
        if not finishing.cancelled() and (error := finishing.exception()) is not None:
            self._release_caller(error)

    def _release_caller(self, error: BaseException | None = None) -> None:
        """Let the server's call return. With an error, the server cuts the connection."""
        if self.caller is not None and not self.caller.done():
            if error is None:
                self.caller.set_result(None)
            else:
                self.caller.set_exception(error)

    # Messages to the handler.

    @property
    def is_read(self) -> bool:
        """True if the request body has been read completely from the server."""
        return self._body.all_read is None or self._body.all_read.is_set()

    async def receive(self) -> Message:
        message = await self._body.message()
        if message is not None:
            return message
        if self._over is None:
            self._over = asyncio.Event()
        if not self._complete:
            await self._over.wait()
        return {"type": "http.disconnect"}

    # Messages from the handler.

    def send(self, message: Message) -> Coroutine[Any, Any, None]:
        kind = message["type"]
        if kind == "http.response.start":
            return self._begin(message)
        if kind == "http.response.body":
            return self._piece(message)
        return self._pass(message)

    async def _begin(self, message: Message) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        self._length, events = length_and_events(tuple(headers))
        if events:
            self._events = EventSplitter()
            if self._length is not None:  # adding event ids changes the length
                headers = [(name, value) for name, value in headers if name.lower() != CONTENT_LENGTH]
                self._length = None
        self._status = message["status"]
        self._start = {**message, "headers": headers}
        if not self._settlement.operation.stored:
            self._recorder.forget()
        self._recorder.begin(self._status, headers, events=events, live=self._length is None)
        bound = self._settlement.operation.bound
        self._withholds = bound is not None and bound.settled
        if self._withholds:
            return
        if events:
            await self._send_start()
            if self.preface:
                await self._pass({"type": "http.response.body", "body": self.preface, "more_body": True})
        elif self._length is None:
            self._delay_start()
        else:  # nearly always the body follows before the handler awaits
            self._soon = asyncio.get_running_loop().call_soon(self._handler_suspended)

    async def _piece(self, message: Message) -> None:
        if self._whole:
            await self._end()
        if self._complete:
            await self._pass(message)
            return
        data = message.get("body", b"")
        if type(data) is not bytes:  # copy: the handler may reuse its buffer
            data = bytes(data)
            message = {**message, "body": data}
        self._body_bytes += len(data)
        if not message.get("more_body", False) or (self._length is not None and self._body_bytes >= self._length):
            if self._has_wrong_length:
                await self._pass_start()
                await self._pass(message)
                return
            self._last = message
            if self._timer is not None:
                self._timer.cancel()
            if not self._settlement.undecided:  # else its open transaction decides, after the handler has ended
                self._whole = True
                if self._soon is None:
                    self._soon = asyncio.get_running_loop().call_soon(self._handler_suspended)
            return
        if not self._settlement.operation.stored:  # a generator may call no_store() as late as here
            self._recorder.forget()
        if self._events is not None:
            data = b"".join([self._recorder.add_event(block) for block in self._events.feed(data)])
            if not data:
                return
        else:
            self._recorder.add(data)
        if self._withholds:
            self._withheld += (data,)
            return
        await self._pass_start()
        await self._pass({**message, "body": data})
        await self._append_due()

    @property
    def _has_wrong_length(self) -> bool:
        """True if the body does not have its Content-Length: the server refuses it, so it is never complete."""
        if self._length is None or self._withholds or self._status in BODILESS_STATUSES:
            return False
        return self._body_bytes != self._length

    async def _append_due(self) -> None:
        """Append recorded data to the ledger while the stream continues. A slow store slows the stream down."""
        writer = self._writer
        if writer is not None and (writer.done() or self._recorder.backlog > BACKLOG_BYTES_MAX):
            await writer
            writer = None
        if writer is None and self._recorder.due:
            writer = asyncio.ensure_future(self._recorder.append())
        self._writer = writer

    async def _finish(self, message: Message) -> None:
        """Settle the response, then pass on its end."""
        data = message.get("body", b"")
        if self._events is not None:
            blocks = [*self._events.feed(data), *filter(None, [self._events.finish()])]
            data = b"".join([self._recorder.add_event(block) for block in blocks])
        else:
            self._recorder.add(data)
        broken, instead = self._body.broken, None
        try:
            if broken is not None and not self._sent:
                instead = await self._settlement.raised(_BROKEN) or broken
            else:
                if self._timer is not None:
                    self._timer.cancel()
                if self._start_task is not None:
                    await self._start_task
                if self._writer is not None:
                    await self._writer
                instead = await self._settlement.settle(self._status, sent=self._sent)
        except StoreUnavailable as error:
            if self._sent:
                raise
            if self._settlement.operation.bound is None:
                self._late = asyncio.ensure_future(self._settlement.settle_late())
            instead = problem.store_failed(error)
        except ClaimLost:
            if self._sent:
                raise
            self._completed()
            self.gone = True
            await self._send_outcome_after_takeover()
            return
        if instead is not None and not self._sent:
            await self._replace(instead)
            return
        self._completed()
        await self._pass_start()
        await self._pass({**message, "body": b"".join([*self._withheld, data]) if self._withheld else data})

    async def _send_outcome_after_takeover(self) -> None:
        """Send the outcome of the holder that took the claim over."""
        entry = await outcome_after_takeover(self._admission, self._request)
        if isinstance(entry, problem.Response):
            await send_response(self._send_on, entry)
        else:
            await replay(self._admission.ledger, self._admission.codec, entry, "", self._receive, self._send_on)

    async def _watch(self) -> None:
        """Record the stream of a disconnected client for at most `max_stream_seconds`."""
        if self._body.all_read is not None:
            await self._body.all_read.wait()
        await until_gone(self._receive)
        self.gone = True
        self._release_caller()
        await asyncio.sleep(self._admission.max_stream_seconds)
        if self._task is not None:
            self._task.cancel()

    # Messages to the server.

    def _completed(self) -> None:
        self._complete = self._settlement.operation.over = True
        if self._watcher is not None:  # after the response, servers report every client as disconnected
            self._watcher.cancel()
        if self._over is not None:
            self._over.set()

    async def _replace(self, response: problem.Response) -> None:
        """Send this response instead of the handler's, of which nothing has been sent."""
        response = shaped(self._send_on, response)
        self._completed()
        self._start = None
        await self._pass({"type": "http.response.start", "status": response.status, "headers": list(response.headers)})
        await self._pass({"type": "http.response.body", "body": response.body, "more_body": False})
        self.gone = True

    async def _pass_start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._start_task is not None:
            await self._start_task
        elif self._start is not None:
            await self._send_start()

    def _delay_start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._send_start_later)

    def _send_start_later(self) -> None:
        self._start_task = asyncio.ensure_future(self._send_start())

    async def _send_start(self) -> None:
        start, self._start = self._start, None
        if start is None:
            return
        self._sent = True
        await self._pass(start)
        if not self._complete:  # the response is streamed
            self._watcher = asyncio.ensure_future(self._watch())

    async def _pass(self, message: Message) -> None:
        if self.gone:
            return
        try:
            await self._send_on(message)
        except OSError:
            self.gone = True  # the client has disconnected; the rest is recorded for its retry
