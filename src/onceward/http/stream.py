"""A recorded body read back: from the log of a finished response, or from one that is still being written.

    a duplicate            joins the running stream from its beginning
    Last-Event-ID          resumes behind that event
    a finished stream      is replayed
    a producer that died   ends it: `interrupted` is set
    one that is silent     ends it where its reader does not wait for ever: `silent` is set, too
    one that was changed   in the store, or is not there to its end, raises `OutcomeNotKept`

Everything comes from the store, so the producer may be in another process.
"""

from __future__ import annotations

import logging
import math

from onceward.core.claim import Entry, Status
from onceward.core.response import CONTENT_LENGTH, Headers
from onceward.errors import OutcomeNotKept
from onceward.http.events import Events, ends, has_id, place_of
from onceward.http.kept import HEAD_SEQ, Form
from onceward.ledger import Ledger

logger = logging.getLogger("onceward.http")

# Chunks read at once: at most 2 MiB in memory.
PAGE_CHUNKS = 32
# How often a running stream is looked after; it grows while nothing comes.
_LOOK_SECONDS_MIN = 0.010
_LOOK_SECONDS_MAX = 0.250
_LOOK_GROWTH = 1.5
_MISSING = "chunks of the kept response are missing in the store; the request was carried out and will not run again"


class Recorded:
    """The body of one claim, page by page."""

    def __init__(self, ledger: Ledger, form: Form, entry: Entry) -> None:
        self._ledger = ledger
        self._form = form
        self._entry = entry
        self._after = 0
        self._pause = _LOOK_SECONDS_MIN
        self._skip_to: bytes | None = None
        # The first page of a settled response, read before anything of it is sent.
        self._first: list[bytes] = []
        # How many chunks there are, once that is settled.
        self._end = entry.outcome.chunks if entry.status is Status.COMPLETED else None
        self.interrupted = False
        self.silent = False

    async def head(self) -> tuple[int, Headers] | None:
        """Status and headers; None when the recording cannot be read, or is `interrupted` before anything was.

        A running response is joined without its length: its end is known to be the end only when it is settled.
        """
        try:
            return await (self._running_head() if self._end is None else self._settled_head())
        except OutcomeNotKept as error:
            logger.error("a kept response cannot be read: %s", error)  # noqa: TRY400  # the message says it all
            return None

    async def _settled_head(self) -> tuple[int, Headers]:
        head = self._form.read_settled(self._entry)
        self._after = HEAD_SEQ
        expected = min(self._entry.outcome.chunks - HEAD_SEQ, PAGE_CHUNKS)
        if expected:
            self._first = await self._read(HEAD_SEQ, PAGE_CHUNKS)
            if len(self._first) < expected:
                raise OutcomeNotKept(_MISSING)
        return head

    async def _running_head(self) -> tuple[int, Headers] | None:
        first = await self._ledger.chunks(self._entry, 0, 1)
        if not first:
            now = await self._ledger.look(self._entry.ref)
            self.interrupted = now is None or now.version != self._entry.version
            return None
        self._after = HEAD_SEQ
        status, headers = self._form.read_head(self._entry, first[0])
        return status, tuple(line for line in headers if line[0].lower() != CONTENT_LENGTH)

    async def resume(self, last_event_id: str) -> bool:
        """Go on behind this event; false when it is of an earlier attempt, and the stream starts from its beginning."""
        # Servers hand over each byte of a header as a character.
        wanted = last_event_id.strip().encode("latin-1", "replace")
        place = place_of(last_event_id)
        if place is None:
            self._skip_to = wanted
            return True
        version, number = place
        present = version == self._entry.version
        there = await self._read(HEAD_SEQ + number - 1, 1) if present and number > 0 else []
        if there and has_id(there[0], wanted):
            self._after = HEAD_SEQ + number
        elif await self._has(wanted):  # the application's own, or ours of an event in several pieces
            self._skip_to = wanted
        elif present and not there and self._entry.status is Status.IN_PROGRESS:
            self._after = HEAD_SEQ + number  # on its way before it is written down
        else:
            return present
        return True

    async def _has(self, wanted: bytes) -> bool:
        """Whether an event with this id has been written down."""
        after, events = HEAD_SEQ, Events()
        while pieces := await self._read(after, PAGE_CHUNKS):
            after += len(pieces)
            if any(has_id(block, wanted) for piece in pieces for block in events.feed(piece)):
                return True
        return has_id(events.finish(), wanted)

    async def page(self, seconds: float = math.inf) -> list[bytes]:
        """What comes next, waiting for it while the producer works, but no longer than this; empty at the end."""
        deadline = self._ledger.line.monotonic() + seconds
        while True:
            pieces = await self._next(deadline)
            if self._skip_to is not None and pieces:
                pieces = await self._behind(pieces)
                if not pieces:
                    continue
            return pieces

    async def _next(self, deadline: float) -> list[bytes]:
        while self._end is None or self._after < self._end:
            pieces, self._first = self._first if self._after == HEAD_SEQ else [], []
            pieces = pieces or await self._read(self._after, PAGE_CHUNKS)
            if pieces:
                self._after += len(pieces)
                self._pause = _LOOK_SECONDS_MIN
                return pieces
            if await self._over(deadline):
                break
        return []

    async def _read(self, after: int, limit: int) -> list[bytes]:
        chunks = await self._ledger.chunks(self._entry, after, limit)
        return self._form.read_chunks(self._entry, after + 1, chunks)

    async def _over(self, deadline: float) -> bool:
        """Whether nothing will follow; waits a little while the producer works."""
        line = self._ledger.line
        reading = await line.read([self._entry.ref])
        entry = reading.entries[0]
        if entry is None or entry.version != self._entry.version or entry.absent(reading.now):
            self.interrupted = True
            return True
        if entry.status is Status.COMPLETED:
            if not entry.outcome.chunks:
                self.interrupted = True
                return True
            self._form.read_settled(entry)
            if self._end is not None:
                raise OutcomeNotKept(_MISSING)
            self._end = entry.outcome.chunks  # what was settled between the two reads is still to be read
            return False
        if entry.status is not Status.IN_PROGRESS or entry.lapsed(reading.now) or line.proved_dead(entry.holder):
            self.interrupted = True
            return True
        left = deadline - line.monotonic()
        if left <= 0:
            self.interrupted = self.silent = True
            return True
        await line.sleep(min(self._pause, left))
        self._pause = min(self._pause * _LOOK_GROWTH, _LOOK_SECONDS_MAX)
        return False

    async def _behind(self, pieces: list[bytes]) -> list[bytes]:
        """Leave out everything up to the application's own event id; all of it when it never comes."""
        wanted, self._skip_to = self._skip_to, None
        if wanted is None:
            return pieces
        start = self._after - len(pieces)
        events, found = Events(), False
        while pieces:
            blocks = [block for piece in pieces for block in events.feed(piece)]
            for number, block in enumerate(blocks):
                found = found or has_id(block, wanted)
                if found and ends(block):
                    return [*blocks[number + 1 :], *filter(None, [events.finish()])]
            pieces = await self._read(self._after, PAGE_CHUNKS)
            self._after += len(pieces)
        last = events.finish()
        if not (ends(last) and (found or has_id(last, wanted))):
            self._after = start
        return []
