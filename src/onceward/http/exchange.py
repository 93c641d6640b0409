"""One keyed request being run under ASGI: what its handler receives and sends.

The outcome is settled before the message that completes the response is passed on, so that an instant retry replays
it; no other message waits. The handler itself does not wait for that: its last message is kept here, and nearly always
the handler has ended, and its frames are freed, before the store is asked. It never sees its client go away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from onceward.core.response import BODILESS_STATUSES, CONTENT_LENGTH
from onceward.errors import ClaimLost, StoreUnavailable, described
from onceward.http import problem
from onceward.http.ending import Ending
from onceward.http.events import Events
from onceward.http.guard import Asked, Guard
from onceward.http.incoming import Incoming
from onceward.http.problem import Answer
from onceward.http.recording import BACKLOG_BYTES_MAX
from onceward.http.replay import answer, replay, told_of_body, until_gone
from onceward.http.winner import outcome_of_winner
from onceward.http.wire import App, Message, Receive, Send

# A start without a body is held back this long, so that a small response can still be replaced if settling fails.
HOLD_SECONDS = 0.02
_BROKEN = "the body was not what the request promised"

logger = logging.getLogger("onceward.http")


class Exchange:
    """Runs the application for one claim."""

    __slots__ = (
        "_asked", "_complete", "_ending", "_events", "_finishing", "_given", "_guard", "_incoming", "_last", "_late",
        "_length", "_letting_go", "_over", "_receive", "_recording", "_send_on", "_sent", "_soon", "_start", "_status",
        "_task", "_timer", "_watcher", "_whole", "_withheld", "_withholds", "_writer", "began",
        "caller", "gone", "preface",
    )  # fmt: skip

    def __init__(
        self, guard: Guard, asked: Asked, ending: Ending, incoming: Incoming, receive: Receive, send: Send
    ) -> None:
        self._guard = guard
        self._asked = asked
        self._ending = ending
        self._recording = ending.recording
        self._incoming = incoming
        self._receive = receive
        self._send_on = send
        self._status = 0
        self._start: Message | None = None  # held back until the first piece of the body
        self._timer: asyncio.Handle | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self._sent = False  # something of the handler's response has been passed on
        self._length: int | None = None
        self._given = 0
        self._events: Events | None = None
        self._writer: asyncio.Task[None] | None = None
        self._last: Message | None = None  # completes the response, and is not settled yet
        self._whole = False  # the handler gave a whole response, whatever it does next
        self._soon: asyncio.Handle | None = None  # a look at what the handler left undone
        self._finishing: asyncio.Task[None] | None = None
        self._over: asyncio.Event | None = None
        self._complete = False  # the response has come to its end, and the ledger knows
        self._withholds = False  # what the bound transaction settled is sent, if it did commit
        self._withheld: tuple[bytes, ...] = ()
        # The client was told 503, but the response may still be recorded.
        self._late: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.caller: asyncio.Future[None] | None = None  # waits for the end of all this; cancelling it ends nothing
        self.began = False
        self.preface = b""  # sent ahead of an event stream
        self.gone = False  # the client is, or is not to get any more of this

    async def never_ran(self) -> None:
        """Cancelled before its first step: nothing happened, and the key is free."""
        self._incoming.close()
        await self._ending.release()

    async def run(self, app: App, scope: Any) -> None:
        """Call the application and record what becomes of it."""
        self.began = True
        self._task = asyncio.current_task()
        try:
            await app(scope, self.receive, self.send)
            if self._finishing is not None:
                await self._end()
            elif (message := self._take_last()) is not None:  # spelled out: a frame less while the store works
                await self._finish(message)
            if not self._complete:
                broken = self._incoming.broken
                if broken is None or self._sent:
                    await self._ending.unknown("the handler ended without a whole response")
                else:  # it had nothing to say to a client that went away
                    await self._replace(await self._ending.raised(_BROKEN) or broken)
            if self._late is not None:
                self._let_caller_go()
                await asyncio.wait({self._late})
        except asyncio.CancelledError:
            await self._end_after_all()
            if not self._complete:
                await self._ending.unknown("the handler was cancelled")
            raise
        except Exception as error:
            await self._end_after_all()
            if self._complete:
                raise
            instead = await self._ending.raised(described(error)) or self._incoming.broken
            if instead is None or self._sent:
                raise
            await self._replace(instead)
            if self._incoming.broken is None:
                raise
        finally:
            self._task = None  # it has this exchange, and would never be freed without the collector
            self._incoming.close()
            self._ending.drop()
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
        """Settle the response that the handler gave, and pass its end on, unless that is under way."""
        message = self._take_last()
        if self._finishing is not None:
            await asyncio.wait({self._finishing})  # who is cancelled here does not cancel it
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

    async def _end_after_all(self) -> None:
        """The handler did not end well, but it may have given a whole response before."""
        if not self._whole:
            return
        try:
            await self._end()
        except Exception as error:  # noqa: BLE001  # what is raised already goes on; this only tells how it came to it
            logger.warning("the end of a response could not be settled or sent: %s", error)

    def _look(self) -> None:
        """The handler was let go of before it ended. With its response given, it goes on with a background task, and
        nobody waits for that; with the start of one, that is held back for a moment.
        """
        self._soon = None
        if self._last is None:
            if self._start is not None:
                self._hold()
        elif self._whole:
            message, self._last = self._last, None
            self._finishing = asyncio.ensure_future(self._finish(message))
            self._finishing.add_done_callback(self._finished)

    def _finished(self, finishing: asyncio.Task[None]) -> None:
        """A response that cannot be completed is cut now, not when the background task has ended."""
        if not finishing.cancelled() and (error := finishing.exception()) is not None:
            self._let_caller_go(error)

    def _let_caller_go(self, error: BaseException | None = None) -> None:
        """What follows does not concern the server's call any more; with an error it cuts the connection."""
        if self.caller is not None and not self.caller.done():
            if error is None:
                self.caller.set_result(None)
            else:
                self.caller.set_exception(error)

    # What the handler receives.

    @property
    def is_read(self) -> bool:
        """Whether what the server says next is no part of the request's body."""
        return self._incoming.all_read is None or self._incoming.all_read.is_set()

    async def receive(self) -> Message:
        message = await self._incoming.message()
        if message is not None:
            return message
        if self._over is None:
            self._over = asyncio.Event()
        if not self._complete:
            await self._over.wait()
        return {"type": "http.disconnect"}

    # What the handler sends.

    def send(self, message: Message) -> Coroutine[Any, Any, None]:
        kind = message["type"]
        if kind == "http.response.start":
            return self._begin(message)
        if kind == "http.response.body":
            return self._piece(message)
        return self._pass(message)

    async def _begin(self, message: Message) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        self._length, events = told_of_body(tuple(headers))
        if events:
            self._events = Events()
            if self._length is not None:  # ids will be added to it
                headers = [(name, value) for name, value in headers if name.lower() != CONTENT_LENGTH]
                self._length = None
        self._status = message["status"]
        self._start = {**message, "headers": headers}
        if not self._ending.operation.stored:
            self._recording.forget()
        self._recording.begin(self._status, headers, events=events, live=self._length is None)
        bound = self._ending.operation.bound
        self._withholds = bound is not None and bound.settled
        if self._withholds:
            return
        if events:
            await self._let_go()
            if self.preface:
                await self._pass({"type": "http.response.body", "body": self.preface, "more_body": True})
        elif self._length is None:
            self._hold()
        else:  # nearly always its body follows in the same step
            self._soon = asyncio.get_running_loop().call_soon(self._look)

    async def _piece(self, message: Message) -> None:
        if self._whole:
            await self._end()
        if self._complete:
            await self._pass(message)
            return
        data = message.get("body", b"")
        if type(data) is not bytes:  # the handler may use its buffer again
            data = bytes(data)
            message = {**message, "body": data}
        self._given += len(data)
        if not message.get("more_body", False) or (self._length is not None and self._given >= self._length):
            if self._contradicts_itself:
                await self._pass_start()
                await self._pass(message)
                return
            self._last = message
            if self._timer is not None:
                self._timer.cancel()
            if not self._ending.undecided:  # else its transaction decides, when the handler has ended
                self._whole = True
                if self._soon is None:
                    self._soon = asyncio.get_running_loop().call_soon(self._look)
            return
        if not self._ending.operation.stored:  # a generator may say so only now
            self._recording.forget()
        if self._events is not None:
            data = b"".join([self._recording.add_event(block) for block in self._events.feed(data)])
            if not data:
                return
        else:
            self._recording.add(data)
        if self._withholds:
            self._withheld += (data,)
            return
        await self._pass_start()
        await self._pass({**message, "body": data})
        await self._write_down()

    @property
    def _contradicts_itself(self) -> bool:
        """Not as long as it says: the server refuses its end, so that it is never completed."""
        if self._length is None or self._withholds or self._status in BODILESS_STATUSES:
            return False
        return self._given != self._length

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
        broken, instead = self._incoming.broken, None
        try:
            if broken is not None and not self._sent:
                instead = await self._ending.raised(_BROKEN) or broken
            else:
                if self._timer is not None:
                    self._timer.cancel()
                if self._letting_go is not None:
                    await self._letting_go
                if self._writer is not None:
                    await self._writer
                instead = await self._ending.settle(self._status, sent=self._sent)
        except StoreUnavailable as error:
            if self._sent:
                raise
            if self._ending.operation.bound is None:
                self._late = asyncio.ensure_future(self._ending.settle_late())
            instead = problem.store_failed(error)
        except ClaimLost:
            if self._sent:
                raise
            self._completed()
            self.gone = True
            await self._send_outcome_of_winner()
            return
        if instead is not None and not self._sent:
            await self._replace(instead)
            return
        self._completed()
        await self._pass_start()
        await self._pass({**message, "body": b"".join([*self._withheld, data]) if self._withheld else data})

    async def _send_outcome_of_winner(self) -> None:
        """The claim was taken over: whoever has it now decides what everyone gets."""
        entry = await outcome_of_winner(self._guard, self._asked)
        if isinstance(entry, Answer):
            await answer(self._send_on, entry)
        else:
            await replay(self._guard.ledger, self._guard.form, entry, "", self._receive, self._send_on)

    async def _watch(self) -> None:
        """A stream whose client went away is recorded for a while, but not for ever."""
        if self._incoming.all_read is not None:
            await self._incoming.all_read.wait()
        await until_gone(self._receive)
        self.gone = True
        self._let_caller_go()
        await asyncio.sleep(self._guard.max_stream_seconds)
        if self._task is not None:
            self._task.cancel()

    # Passing on.

    def _completed(self) -> None:
        self._complete = self._ending.operation.over = True
        if self._watcher is not None:  # from now on a server speaks of every client as gone
            self._watcher.cancel()
        if self._over is not None:
            self._over.set()

    async def _replace(self, answer: Answer) -> None:
        """Send this instead of the handler's response, of which nothing has been sent."""
        self._completed()
        self._start = None
        await self._pass({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
        await self._pass({"type": "http.response.body", "body": answer.body, "more_body": False})
        self.gone = True

    async def _pass_start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._letting_go is not None:
            await self._letting_go
        elif self._start is not None:
            await self._let_go()

    def _hold(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._let_go_later)

    def _let_go_later(self) -> None:
        self._letting_go = asyncio.ensure_future(self._let_go())

    async def _let_go(self) -> None:
        start, self._start = self._start, None
        if start is None:
            return
        self._sent = True
        await self._pass(start)
        if not self._complete:  # the response goes out in pieces
            self._watcher = asyncio.ensure_future(self._watch())

    async def _pass(self, message: Message) -> None:
        if self.gone:
            return
        try:
            await self._send_on(message)
        except OSError:
            self.gone = True  # the client went away; what follows is recorded and waits for its retry
