"""Reader of a recorded body: of a finished response, or of one that is still being written.

    a duplicate                joins the running stream from its beginning
    `Last-Event-ID`            resumes after that event
    a finished stream          is replayed
    a producer that died       ends the stream: `interrupted` is set
    a silent producer          ends the stream if its reader has a time limit: `silent` is set, too
    changed or missing chunks  raise `OutcomeNotKept`

All data comes from the store, so the producer may be in another process.
"""

from __future__ import annotations

import logging
import math

from onceward.core.claim import Entry, Status
from onceward.core.log_event import log_event
from onceward.errors import OutcomeNotKept
from onceward.http.response.sse import EventSplitter, ends, has_id, place_of
from onceward.http.stored.codec import HEAD_SEQ, ResponseCodec
from onceward.http.stored.policy import CONTENT_LENGTH, Headers
from onceward.ledger.internals import dispatcher_of, read_ref
from onceward.ledger.ledger import Ledger

logger = logging.getLogger("onceward.http")

# Chunks in one read: at most 2 MiB in memory.
PAGE_CHUNKS = 32
# The pause between two polls of a running stream. It grows while no data arrives.
_POLL_SECONDS_MIN = 0.010
_POLL_SECONDS_MAX = 0.250
_POLL_GROWTH = 1.5
_MISSING = "chunks of the stored response are missing in the store; the request was carried out and will not run again"


class RecordedStream:
    """The recorded body of one claim, read in pages."""

    def __init__(self, ledger: Ledger, codec: ResponseCodec, entry: Entry) -> None:
        self._ledger = ledger
        self._codec = codec
        self._entry = entry
        self._after = 0
        self._pause = _POLL_SECONDS_MIN
        self._skip_to: bytes | None = None
        # The first page of a settled response, read before anything is sent.
        self._first: list[bytes] = []
        # The number of chunks, once the response is settled.
        self._end = entry.outcome.chunks if entry.status is Status.COMPLETED else None
        self.interrupted = False
        self.silent = False

    async def head(self) -> tuple[int, Headers] | None:
        """Read status and headers; None if they cannot be read, or if the stream was `interrupted` before its head.

        The Content-Length of a running response is left out, because its end is certain only when it is settled.
        """
        try:
            return await (self._running_head() if self._end is None else self._settled_head())
        except OutcomeNotKept as error:
            log_event(logger.error, "stored_response_unreadable", reason=str(error))
            return None

    async def _settled_head(self) -> tuple[int, Headers]:
        head = self._codec.decode_settled(self._entry)
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
            current = await read_ref(self._ledger, self._entry.ref)
            self.interrupted = current is None or current.version != self._entry.version
            return None
        self._after = HEAD_SEQ
        status, headers = self._codec.decode_head(self._entry, first[0])
        return status, tuple(line for line in headers if line[0].lower() != CONTENT_LENGTH)

    async def resume(self, last_event_id: str) -> bool:
        """Continue after this event. False if it belongs to an earlier attempt: the stream starts at its beginning."""
        # Servers pass each byte of a header as one character.
        wanted = last_event_id.strip().encode("latin-1", "replace")
        place = place_of(last_event_id)
        if place is None:
            self._skip_to = wanted
            return True
        version, number = place
        same_attempt = version == self._entry.version
        recorded = await self._read(HEAD_SEQ + number - 1, 1) if same_attempt and number > 0 else []
        if recorded and has_id(recorded[0], wanted):
            self._after = HEAD_SEQ + number
        elif await self._has(wanted):  # an id of the application, or ours on an event in several pieces
            self._skip_to = wanted
        elif same_attempt and not recorded and self._entry.status is Status.IN_PROGRESS:
            self._after = HEAD_SEQ + number  # the event was sent before it was recorded
        else:
            return same_attempt
        return True

    async def _has(self, wanted: bytes) -> bool:
        """Return whether an event with this id is recorded."""
        after, events = HEAD_SEQ, EventSplitter()
        while pieces := await self._read(after, PAGE_CHUNKS):
            after += len(pieces)
            if any(has_id(block, wanted) for piece in pieces for block in events.feed(piece)):
                return True
        return has_id(events.finish(), wanted)

    async def page(self, seconds: float = math.inf) -> list[bytes]:
        """Read the next pieces; empty at the end. While the producer works, wait for at most this many seconds."""
        deadline = dispatcher_of(self._ledger).monotonic() + seconds
        while True:
            pieces = await self._next(deadline)
            if self._skip_to is not None and pieces:
                pieces = await self._after_wanted(pieces)
                if not pieces:
                    continue
            return pieces

    async def _next(self, deadline: float) -> list[bytes]:
        while self._end is None or self._after < self._end:
            pieces, self._first = self._first if self._after == HEAD_SEQ else [], []
            pieces = pieces or await self._read(self._after, PAGE_CHUNKS)
            if pieces:
                self._after += len(pieces)
                self._pause = _POLL_SECONDS_MIN
                return pieces
            if await self._has_ended(deadline):
                break
        return []

    async def _read(self, after: int, limit: int) -> list[bytes]:
        chunks = await self._ledger.chunks(self._entry, after, limit)
        return self._codec.decode_chunks(self._entry, after + 1, chunks)

    async def _has_ended(self, deadline: float) -> bool:
        """Return whether nothing will follow. Pause before the next poll while the producer works."""
        dispatcher = dispatcher_of(self._ledger)
        reading = await dispatcher.read([self._entry.ref])
        entry = reading.entries[0]
        if entry is None or entry.version != self._entry.version or entry.absent(reading.now):
            self.interrupted = True
            return True
        if entry.status is Status.COMPLETED:
            if not entry.outcome.chunks:
                self.interrupted = True
                return True
            self._codec.decode_settled(entry)
            if self._end is not None:
                raise OutcomeNotKept(_MISSING)
            self._end = entry.outcome.chunks  # read the chunks that were added between the two reads
            return False
        if entry.status is not Status.IN_PROGRESS or entry.lapsed(reading.now) or dispatcher.proved_dead(entry.holder):
            self.interrupted = True
            return True
        remaining = deadline - dispatcher.monotonic()
        if remaining <= 0:
            self.interrupted = self.silent = True
            return True
        await dispatcher.sleep(min(self._pause, remaining))
        self._pause = min(self._pause * _POLL_GROWTH, _POLL_SECONDS_MAX)
        return False

    async def _after_wanted(self, pieces: list[bytes]) -> list[bytes]:
        """Skip everything up to the event with the wanted id. If there is none, start again from the beginning."""
        wanted, self._skip_to = self._skip_to, None
        if wanted is None:
            return pieces
        start = self._after - len(pieces)
        events, found = EventSplitter(), False
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
