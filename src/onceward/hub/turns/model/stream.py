"""Recorded stream of a turn. Each chunk is stored before a client gets it, so any process can serve the stream.

A chunk has the id `<version>.<seq>`. The version is the epoch that wrote the chunk: a new epoch starts a new stream,
and the chunks of earlier epochs are not part of the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import bindparam, text

from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.turns.model.turn import Turn, get_turn

PAGE_MAX = 500
# State, epoch, and the number of the last chunk of that epoch; empty for a turn that does not exist.
Progress: TypeAlias = tuple[str | int | None, ...]

_INSERT = RawStatement("""
    INSERT INTO turn_chunks (turn_id, version, seq, event, data)
    SELECT id, epoch,
           (SELECT coalesce(max(seq), 0) + 1 FROM turn_chunks WHERE turn_id = turns.id AND version = turns.epoch),
           CAST(:event AS text), CAST(:data AS text)
    FROM turns WHERE id = :id AND epoch = :epoch AND state IN ('processing', 'committing')
    RETURNING seq
""")
# The lock comes first: the next statement then sees every earlier chunk, and the turn is not superseded before the
# commit.
_LOCK = RawStatement("SELECT 1 FROM turns WHERE id = :id FOR NO KEY UPDATE")
_READ = RawStatement("""
    SELECT seq, event, data FROM turn_chunks
    WHERE turn_id = :id AND version = :version AND seq > :after ORDER BY seq LIMIT :limit
""")
_PROGRESS = text("""
    SELECT id, state, epoch,
           (SELECT max(seq) FROM turn_chunks WHERE turn_id = turns.id AND version = turns.epoch)
    FROM turns WHERE id IN :ids
""").bindparams(bindparam("ids", expanding=True))
# Old versions of SQLite accept only 999 parameters per statement.
_IDS_MAX = 500
_LAST = RawStatement("SELECT coalesce(max(seq), 0) FROM turn_chunks WHERE turn_id = :id AND version = :version")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A recorded part of a turn's stream.

    Attributes:
        seq: The chunk's number in its version, counted from 1.
        event: `delta` for a part of the response, `tool` for the result of a tool call.
        data: JSON text.
    """

    seq: int
    event: str
    data: str


@dataclass(frozen=True, slots=True)
class StreamPage:
    """One read of a turn's stream.

    Attributes:
        turn: The turn at the time of the read.
        version: The version of the chunks: the turn's epoch.
        chunks: The chunks, in the order of their numbers.
    """

    turn: Turn
    version: int
    chunks: tuple[Chunk, ...]


def append_chunks(tx: Transaction, turn_id: str, epoch: int, chunks: Sequence[tuple[str, str]]) -> int:
    """Append chunks, each an event and its JSON text, to the stream of a run, and return the number of the last one.

    Returns 0 and records nothing if the run was superseded.
    """
    if tx.dialect.name != "sqlite":
        _LOCK.rows(tx, {"id": turn_id})
    last = 0
    for event, data in chunks:
        rows = _INSERT.rows(tx, {"id": turn_id, "epoch": epoch, "event": event, "data": data})
        last = rows[0][0] if rows else 0
    return last


def read_chunks(tx: Transaction, turn_id: str, version: int, after: int = 0, limit: int = PAGE_MAX) -> list[Chunk]:
    """Return the chunks of one version that follow number `after`.

    Args:
        tx: A read transaction of the hub's database.
        turn_id: The turn.
        version: The epoch that wrote the chunks.
        after: The number of the last chunk that the caller has; 0 for the beginning.
        limit: The largest number of chunks to return, at most 500.

    Returns:
        The chunks in the order of their numbers; an empty list if there are none.
    """
    values = {"id": turn_id, "version": version, "after": after, "limit": min(limit, PAGE_MAX)}
    return [Chunk(*row) for row in _READ.rows(tx, values)]


def progress_of(tx: Transaction, turn_ids: Sequence[str]) -> dict[str, Progress]:
    """Return the progress of each of these turns. If it has not changed, the stream has nothing new."""
    pages = [turn_ids[at : at + _IDS_MAX] for at in range(0, len(turn_ids), _IDS_MAX)]
    return {row[0]: tuple(row[1:]) for ids in pages for row in tx.execute(_PROGRESS, {"ids": ids})}


def last_number(tx: Transaction, turn_id: str, version: int) -> int:
    """Return the number of the last chunk of one version; 0 if it has none."""
    return int(_LAST.rows(tx, {"id": turn_id, "version": version})[0][0])


def stream_page(
    tx: Transaction, principal: str, turn_id: str, version: int = 0, after: int = 0, limit: int = PAGE_MAX
) -> StreamPage:
    """Return a turn and the chunks of its stream that follow the id `<version>.<after>`.

    Args:
        tx: A read transaction of the hub's database.
        principal: The turn's principal.
        turn_id: The turn.
        version: The version of the last chunk that the caller has; 0 if it has none.
        after: The number of that chunk.
        limit: The largest number of chunks to return, at most 500.

    Returns:
        The turn and chunks of its current version. They start at the beginning if `version` is not the current one.

    Raises:
        errors.NotFound: The turn does not exist or belongs to another principal.
    """
    turn = get_turn(tx, principal, turn_id)
    here = turn.epoch
    chunks = read_chunks(tx, turn_id, here, after if version == here else 0, limit)
    return StreamPage(turn, here, tuple(chunks))
