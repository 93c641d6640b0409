"""A turn as server-sent events: its recorded events from the beginning, then new ones until the turn ends.

    delta        a part of the response: {text}
    tool         a tool was called: its name, key and status
    done         the turn is complete, with the body of `/chat`; always the last event
    superseded   another turn replaced this one: {turn_id, superseded_by}; always the last event
    interrupted  discard the events so far: the attempt died, failed or was restarted

Each event has the id `<version>.<seq>`, where the version is that of the attempt. If a client resumes after an id of
another version, it gets `interrupted` under that id, and then the current version from its beginning. If it resumes
after the last event, it gets the last event again, under the same id. If the version changes during a stream, the client
gets `interrupted` as the last event and resumes, or `superseded` if there is nothing more to come.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import AsyncIterator

from onceward.core.canonical import Json
from onceward.core.json_text import compact, refused
from onceward.hub.chat.service import Turns
from onceward.hub.db.engine import Database
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.model.stream import PAGE_MAX, StreamPage, last_number, stream_page
from onceward.hub.turns.model.turn import State

_EVENT_ID = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)
# Time between two comments that keep the connection open.
HEARTBEAT_SECONDS = 15.0
_RETRY = b"retry: 1000\n\n"
_BEAT = b":\n\n"


def position_of(last_event_id: str | None) -> tuple[int, int] | None:
    """Parse an event id into version and number; None without an id."""
    if last_event_id is None or not last_event_id.strip():
        return None
    found = _EVENT_ID.fullmatch(last_event_id.strip())
    if found is None:
        raise refused("Last-Event-ID", "must be an event id of this stream, such as 1.7")
    return int(found[1]), int(found[2])


async def events_of(
    turns: Turns, database: Database, principal: str, turn_id: str, behind: tuple[int, int] | None
) -> AsyncIterator[bytes]:
    """Stream the events of the principal's turn, after the position `behind` or from the beginning, to its end."""
    version, after = behind or (0, 0)
    is_resumed = behind is not None
    yield _RETRY
    quiet_since = time.monotonic()
    with turns.watches.watching(turn_id) as watch:
        delivered = is_resumed
        while not turns.is_stopping:
            read = functools.partial(_read_page, database, principal, turn_id, version, after)
            page, blocks = await turns.reads.read((principal, turn_id, version, after), read)
            if page.version != version:
                # A superseded turn that was streamed live ends with `superseded`, which implies `interrupted`.
                if delivered and (behind is not None or page.turn.state is not State.SUPERSEDED):
                    yield _block(f"{version}.{after + (not is_resumed)}", "interrupted", {"turn_id": turn_id})
                    if behind is None:
                        # The client must discard the events that it got from this stream, and then resume.
                        return
                version, after, delivered, behind = page.version, 0, False, None
            if page.chunks:
                yield blocks
                after, delivered = page.chunks[-1].seq, True
            behind = None
            if len(page.chunks) == PAGE_MAX:
                continue
            last = await _last(turns, principal, page)
            if last is not None:
                if is_resumed:
                    # The last event is numbered after the recorded ones, whatever id the client sent.
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
        return "done", (await turns.read_turn(principal, turn.id)).chat_response()
    if turn.state is State.SUPERSEDED:
        return "superseded", {"turn_id": turn.id, "superseded_by": turn.superseded_by}
    if turn.state is State.FAILED:
        return "interrupted", {"turn_id": turn.id, "error": turn.failure}
    return None


def _read_page(database: Database, principal: str, turn_id: str, version: int, after: int) -> tuple[StreamPage, bytes]:
    """Read a page of recorded events, and encode it once for all clients at the same position."""
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
