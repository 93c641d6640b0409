"""A simulated site: handlers of every kind behind the middleware, retrying clients, and their invariants."""

from __future__ import annotations

import asyncio
import enum
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.simulation.process import Process
from tests.simulation.world import World

from onceward.core.claim import Ref, Status
from onceward.errors import OncewardError
from onceward.http import IdempotencyMiddleware, Rule, idempotency
from onceward.http.keyed.principal import named

USER = "ada"
INTERRUPTED = b"event: interrupted"


class Key(NamedTuple):
    """A request, and the kind of its route."""

    key: str
    path: str


KEYS = (Key("a", "/repeat"), Key("b", "/repeat"), Key("c", "/hold"))


class Mood(enum.Enum):
    """The course of one run of a handler."""

    WHOLE = enum.auto()  # one message, with its length
    UNSIZED = enum.auto()  # one message, without
    PIECES = enum.auto()
    SIZED_PIECES = enum.auto()
    EVENTS = enum.auto()
    SERVER_ERROR = enum.auto()
    FORBIDDEN = enum.auto()  # declares that it did nothing
    RAISES_FIRST = enum.auto()
    RAISES_AFTER_START = enum.auto()
    RAISES_IN_BODY = enum.auto()
    RAISES_AFTER_END = enum.auto()  # a background task fails
    SILENT = enum.auto()
    SILENT_IN_BODY = enum.auto()
    SHORT = enum.auto()  # promises more than it sends
    LONG = enum.auto()  # sends more than it promises


GOOD = (Mood.WHOLE, Mood.UNSIZED, Mood.PIECES, Mood.SIZED_PIECES, Mood.EVENTS)
NOTHING_DONE = (Mood.FORBIDDEN,)


class HandlerError(Exception):
    """The error that handlers raise."""


class ServerError(Exception):
    """The error of a server about an application that breaks the rules of HTTP; the client's connection is cut."""


@dataclass
class Run:
    """One run of a handler."""

    number: int
    key: Key
    mood: Mood
    acted: bool = False


class Call:
    """One request, as its client and its server see it."""

    def __init__(self, site: Site, process: Process, key: Key) -> None:
        self._site = site
        self._key = key
        self._asked = False
        self._gone: asyncio.Event = asyncio.Event()
        self._raises = site.world.rng.random() < 0.5
        self._length: int | None = None
        self._ended = False
        self.run: Run | None = None
        self.process = process
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.whole = False

    @property
    def gone(self) -> bool:
        return self._gone.is_set()

    def leave(self) -> None:
        """Disconnect the client."""
        self._site.world.note(self.process, f"the client of {self._key.key} goes away")
        self._gone.set()

    async def receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"{}", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.gone:
            if self._raises:
                raise OSError("the client went away")
            return
        world = self._site.world
        if message["type"] == "http.response.start":
            if self.status is not None:
                world.fail(f"{self._key.key}: a second response is started")
            self.status = message["status"]
            self.headers = {name.lower(): value for name, value in message["headers"]}
            length = self.headers.get(b"content-length")
            self._length = None if length is None else int(length)
            return
        if self.status is None:
            world.fail(f"{self._key.key}: a body without a start")
        if self._ended:
            raise ServerError("a message after the end")
        self.body += message.get("body", b"")
        self._ended = not message.get("more_body", False)
        if self._length is not None and len(self.body) > self._length:
            raise ServerError("longer than its length")
        if self._ended and self._length is not None and len(self.body) < self._length:
            raise ServerError("shorter than its length")
        if not self.whole and (self._ended or len(self.body) == self._length):
            self.whole = True
            self._site.answered(self._key, self)

    @property
    def replayed(self) -> bool:
        return b"idempotent-replayed" in self.headers

    @property
    def code(self) -> str:
        """The code of a problem response of the middleware."""
        if self.headers.get(b"content-type") != b"application/problem+json":
            return ""
        return str(json.loads(self.body)["code"])


class Site:
    """All handlers, requests and responses of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: list[Run] = []
        self._answers: dict[Key, tuple[int, bytes]] = {}
        self._final: dict[Key, Call] = {}
        self._middlewares: dict[Process, IdempotencyMiddleware] = {}

    # Clients.

    def ask(self, process: Process, key: Key, *, tries: int) -> None:
        """Let a client send requests from a random time on."""
        delay = 0 if self.world.at_rest else self.world.rng.choice((0, 0, 2_000, 1_000_000, 4_000_000))
        process.at(delay, lambda: process.start(self._keep_asking(process, key, tries), blocking=False))

    async def _keep_asking(self, process: Process, key: Key, tries: int) -> None:
        rng = self.world.rng
        for _ in range(tries):
            call = Call(self, process, key)
            if not self.world.at_rest and rng.random() < 0.3:
                process.at(rng.choice((1_000, 30_000, 1_000_000)), call.leave)
            try:
                await self._ask(call, process, key)
            except asyncio.CancelledError:
                return  # the server shuts down
            self.world.note(process, f"{key.key}: {call.status} {call.code or call.body[:24]!r} whole={call.whole}")
            good = call.status == 201 and INTERRUPTED not in call.body
            if call.whole and (good or call.code in {"in-doubt", "outcome-not-kept"}):
                self._final[key] = call
                return
            await process.dispatcher.sleep(rng.choice((0.01, 0.5, 2.0)))

    async def _ask(self, call: Call, process: Process, key: Key) -> None:
        headers = [(b"idempotency-key", key.key.encode()), (b"content-type", b"application/json")]
        if self.world.rng.random() < 0.5:
            headers.append((b"prefer", b"wait=%d" % self.world.rng.randint(1, 5)))
        scope = {"type": "http", "method": "POST", "path": key.path, "headers": headers, "call": call}
        try:
            await self._middleware(process)(scope, call.receive, call.send)
        except (HandlerError, ServerError, OSError):
            return
        except OncewardError as error:
            if call.status is None and not call.gone:
                self.world.fail(f"{key.key}: {type(error).__name__} becomes a 500: {error}")
            return
        silent = call.run is not None and call.run.mood in {Mood.SILENT, Mood.SILENT_IN_BODY}
        if not call.whole and not call.gone and not silent:
            self.world.fail(f"{key.key}: the application returned, and its response is not whole")

    def _middleware(self, process: Process) -> IdempotencyMiddleware:
        if process not in self._middlewares:
            self._middlewares[process] = IdempotencyMiddleware(
                self.serve,
                process.ledger,
                principal=lambda _: USER,
                rules={"/hold": Rule(on_crash="hold")},
                metrics=False,
                purge_seconds=0.0,
            )
        return self._middlewares[process]

    # Handlers.

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """The application behind the middleware."""
        world, call = self.world, scope["call"]
        key = Key(idempotency(scope).key or "", scope["path"])
        moods = GOOD if world.at_rest or world.rng.random() < 0.5 else tuple(Mood)
        run = call.run = Run(len(self.runs) + 1, key, world.rng.choice(moods))
        self.runs.append(run)
        self._check_entered(run, idempotency(scope).version)
        world.note(
            call.process, f"run {run.number} of {key.key} v{idempotency(scope).version}: {run.mood.name.lower()}"
        )
        await receive()
        await self._pause()
        if run.mood is Mood.RAISES_FIRST:
            raise HandlerError("first")
        if run.mood is Mood.SILENT:
            return
        if run.mood not in NOTHING_DONE:
            run.acted = True
            call.process.point()
        await self._respond(run, send)

    async def _respond(self, run: Run, send: Any) -> None:
        rng, mood = self.world.rng, run.mood
        size = rng.choice((1, 1_000, 40_000))
        pieces = [f"run {run.number} piece {number} ".encode().ljust(size, b".") for number in range(rng.randint(1, 4))]
        if mood in {Mood.WHOLE, Mood.UNSIZED, Mood.SERVER_ERROR, Mood.FORBIDDEN, Mood.RAISES_AFTER_END}:
            pieces = pieces[:1]
        if mood is Mood.EVENTS:
            pieces = [b"data: " + piece + b"\n\n" for piece in pieces]
        status = {Mood.SERVER_ERROR: 500, Mood.FORBIDDEN: 403}.get(mood, 201)
        kind = b"text/event-stream" if mood is Mood.EVENTS else b"text/plain"
        headers = [(b"content-type", kind)]
        length = sum(map(len, pieces)) + (mood is Mood.SHORT) - (mood is Mood.LONG)
        if mood in {Mood.WHOLE, Mood.SIZED_PIECES, Mood.SHORT, Mood.LONG, Mood.SERVER_ERROR, Mood.FORBIDDEN}:
            headers.append((b"content-length", str(length).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if mood is Mood.RAISES_AFTER_START:
            raise HandlerError("after the start")
        for number, piece in enumerate(pieces):
            await self._pause()
            last = number == len(pieces) - 1
            if last and mood is Mood.RAISES_IN_BODY:
                raise HandlerError("in the body")
            if last and mood is Mood.SILENT_IN_BODY:
                return
            more = not last or rng.random() < 0.3
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            if last and more:
                await self._pause()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        await self._pause()
        if mood is Mood.RAISES_AFTER_END:
            raise HandlerError("after the end")

    async def _pause(self) -> None:
        await asyncio.sleep(self.world.rng.choice((0.0, 0.001, 0.03, 0.3, 4.0)))

    # Invariants.

    def _check_entered(self, run: Run, version: int) -> None:
        entry, key = self._entry(run.key), run.key
        # A process that was frozen before it began cannot know that it is late.
        current = entry is not None and entry.version == version
        if current and key in self._answers:
            self.world.fail(f"{key.key}: runs again, and a client has a whole answer")
        if key.path == "/hold" and any(other.acted for other in self.runs if other.key == key):
            self.world.fail(f"{key.key}: runs again, and may not be repeated")

    def answered(self, key: Key, call: Call) -> None:
        """Record a response that a client has received completely."""
        if call.status != 201 or INTERRUPTED in call.body:
            allowed = {"conflict", "in-doubt", "unavailable", "outcome-not-kept", ""}
            own = call.run is not None and call.run.mood in {Mood.SERVER_ERROR, Mood.FORBIDDEN}
            if call.status != 201 and (call.code not in allowed or (call.code == "" and not own)):
                self.world.fail(f"{key.key}: a client was told {call.status} {call.body[:80]!r}")
            if call.code == "outcome-not-kept":
                self.world.fail(f"{key.key}: a client was told that a response was not kept")
            return
        response = (call.status, call.body)
        recorded = self._recorded(key)
        if recorded != response:
            self.world.fail(f"{key.key}: a client got {_short(response)}, and the ledger has {_short(recorded)}")
        if self._answers.setdefault(key, response) != response:
            self.world.fail(f"{key.key}: clients got {_short(response)} and {_short(self._answers[key])}")

    def check_end(self) -> None:
        for key in KEYS:
            call = self._final.get(key)
            if call is None:
                self.world.fail(f"{key.key}: a caller that keeps asking gets no answer")
            if call.status != 201 and key.path != "/hold":
                self.world.fail(f"{key.key}: ends with {call.status}")
            if call.status == 201 and self._recorded(key) != (201, call.body):
                self.world.fail(f"{key.key}: the outcome has changed")

    def _entry(self, key: Key) -> Any:
        return self.world.store.read([Ref(f"onceward:{named(USER).scope}", key.key)]).entries[0]

    def _recorded(self, key: Key) -> tuple[int, bytes] | None:
        entry = self._entry(key)
        if entry is None or entry.status is not Status.COMPLETED or entry.outcome.code is None:
            return None
        if not entry.outcome.chunks:
            return entry.outcome.code, entry.outcome.body
        chunks = self.world.store.chunks(entry.ref, entry.version, 0, 500)[: entry.outcome.chunks]
        return int(chunks[0].partition(b" ")[0]), b"".join(chunks[1:])


def _short(response: tuple[int, bytes] | None) -> str:
    return "nothing" if response is None else f"{response[0]} {response[1][:40]!r} ({len(response[1] or b'')} bytes)"
