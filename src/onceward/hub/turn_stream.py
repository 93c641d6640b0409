"""A turn as server-sent events: what is recorded of it from the beginning, and what follows until it is over.

    delta        a part of the answer: {text}
    tool         a tool was called: its name, key and status
    done         it is complete, with what `/chat` answers; the last one
    superseded   another turn took its place: {turn_id, superseded_by}; the last one
    interrupted  what came so far is no part of the answer: its producer died, failed or began anew

Each has the id `<version>.<seq>`; the version is that of the attempt. A client that resumes behind an id of another
version gets `interrupted`, under the id that it came with, and then the present one from its beginning. One that resumes behind the end gets the last event again, under its own id. Who was listening while the
version changed gets `interrupted` as the last event, and resumes; or `superseded`, if nothing is to come.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import AsyncIterator

from onceward.core.canonical import Json
from onceward.core.text import compact, refused
from onceward.db.engine import Database
from onceward.hub.turns import Turns
from onceward.turns.stream import PAGE_MAX, StreamPage, last_number, stream_page
from onceward.turns.threads import in_thread
from onceward.turns.turn import State

_PLACE = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)
# Between two comments that keep the line open.
HEARTBEAT_SECONDS = 15.0
_RETRY = b"retry: 1000\n\n"
_BEAT = b":\n\n"


def place_of(last_event_id: str | None) -> tuple[int, int] | None:
    """Version and number of an event id; None without one."""
    if last_event_id is None or not last_event_id.strip():
        return None
    found = _PLACE.fullmatch(last_event_id.strip())
    if found is None:
        raise refused("Last-Event-ID", "is the id of an event of this stream, such as 1.7")
    return int(found[1]), int(found[2])


async def events_of(
    turns: Turns, database: Database, principal: str, turn_id: str, behind: tuple[int, int] | None
) -> AsyncIterator[bytes]:
    """The stream of the principal's turn, from behind this place or from its beginning, to its end."""
    version, after = behind or (0, 0)
    is_resumed = behind is not None
    yield _RETRY
    quiet_since = time.monotonic()
    with turns.watches.watching(turn_id) as watch:
        heard = is_resumed
        while not turns.is_stopping:
            look = functools.partial(_look, database, principal, turn_id, version, after)
            page, blocks = await turns.looks.see((principal, turn_id, version, after), look)
            if page.version != version:
                # Whoever was listening to a superseded turn is told so, and that what they have heard is no part of the
                # answer goes without saying.
                if heard and (behind is not None or page.turn.state is not State.SUPERSEDED):
                    yield _block(f"{version}.{after + (not is_resumed)}", "interrupted", {"turn_id": turn_id})
                    if behind is None:
                        # Somebody was listening: what they have heard is no part of the answer. They come again.
                        return
                version, after, heard, behind = page.version, 0, False, None
            if page.chunks:
                yield blocks
                after, heard = page.chunks[-1].seq, True
            behind = None
            if len(page.chunks) == PAGE_MAX:
                continue
            last = await _last(turns, principal, page)
            if last is not None:
                if is_resumed:
                    # Whatever number they came with: the last event has the one behind what is recorded.
                    after = await in_thread(_recorded, database, turn_id, version)
                yield _block(f"{version}.{after + 1}", *last)
                return
            now = time.monotonic()
            if page.chunks:
                quiet_since = now
            elif now >= quiet_since + HEARTBEAT_SECONDS:
                yield _BEAT
                quiet_since = now
            await watch.wait(quiet_since + HEARTBEAT_SECONDS - now)


async def _last(turns: Turns, principal: str, page: StreamPage) -> tuple[str, dict[str, Json]] | None:
    turn = page.turn
    if turn.state is State.COMPLETE:
        return "done", (await turns.seen(principal, turn.id)).answer()
    if turn.state is State.SUPERSEDED:
        return "superseded", {"turn_id": turn.id, "superseded_by": turn.superseded_by}
    if turn.state is State.FAILED:
        return "interrupted", {"turn_id": turn.id, "error": turn.failure}
    return None


def _look(database: Database, principal: str, turn_id: str, version: int, after: int) -> tuple[StreamPage, bytes]:
    """What there is, and how it is sent: the same for everybody who has come as far."""
    with database.read() as tx:
        page = stream_page(tx, principal, turn_id, version, after)
    return page, b"".join(_text(f"{page.version}.{chunk.seq}", chunk.event, chunk.data) for chunk in page.chunks)


def _recorded(database: Database, turn_id: str, version: int) -> int:
    with database.read() as tx:
        return last_number(tx, turn_id, version)


def _block(event_id: str, event: str, data: dict[str, Json]) -> bytes:
    return _text(event_id, event, compact(data))


def _text(event_id: str, event: str, data: str) -> bytes:
    # Compact JSON has no line breaks.
    return f"id: {event_id}\nevent: {event}\ndata: {data}\n\n".encode()
