"""The recorded stream of a turn: each chunk is stored before anybody sees it, so that any process can show it.

A chunk has the number `<version>.<seq>`. The version is the epoch that wrote it: an attempt that begins anew begins a
new stream, and what the one before it said is no part of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import bindparam, text

from onceward.db.engine import Transaction
from onceward.turns.turn import Turn, get_turn

PAGE_MAX = 500
# State, epoch, and the number of the last chunk of that epoch; empty for a turn that is not there.
Progress: TypeAlias = tuple[str | int | None, ...]

_INSERT = text("""
    INSERT INTO turn_chunks (turn_id, version, seq, event, data)
    SELECT id, epoch,
           (SELECT coalesce(max(seq), 0) + 1 FROM turn_chunks WHERE turn_id = turns.id AND version = turns.epoch),
           CAST(:event AS text), CAST(:data AS text)
    FROM turns WHERE id = :id AND epoch = :epoch AND state IN ('processing', 'committing')
    RETURNING seq
""")
# First, so that the next statement sees every chunk before it, and nobody supersedes the turn until it is committed.
_LOCK = text("SELECT 1 FROM turns WHERE id = :id FOR NO KEY UPDATE")
_READ = text("""
    SELECT seq, event, data FROM turn_chunks
    WHERE turn_id = :id AND version = :version AND seq > :after ORDER BY seq LIMIT :limit
""")
_PROGRESS = text("""
    SELECT id, state, epoch,
           (SELECT max(seq) FROM turn_chunks WHERE turn_id = turns.id AND version = turns.epoch)
    FROM turns WHERE id IN :ids
""").bindparams(bindparam("ids", expanding=True))
# SQLite takes some thousand parameters in a statement, older ones fewer.
_IDS_MAX = 500
_LAST = text("SELECT coalesce(max(seq), 0) FROM turn_chunks WHERE turn_id = :id AND version = :version")


@dataclass(frozen=True, slots=True)
class Chunk:
    """`data` is JSON text. `event` is `delta` or `tool`."""

    seq: int
    event: str
    data: str


@dataclass(frozen=True, slots=True)
class StreamPage:
    """One look at a stream: the turn as it stands, and the chunks of one of its versions."""

    turn: Turn
    version: int
    chunks: tuple[Chunk, ...]


def append_chunks(tx: Transaction, turn_id: str, epoch: int, chunks: Sequence[tuple[str, str]]) -> int:
    """Record chunks, each an event and its JSON text, behind those of the same run; gives the number of the last one.
    0, and nothing is recorded, when the run is superseded.
    """
    if tx.dialect.name != "sqlite":
        tx.execute(_LOCK, {"id": turn_id})
    last = 0
    for event, data in chunks:
        last = tx.execute(_INSERT, {"id": turn_id, "epoch": epoch, "event": event, "data": data}).scalar() or 0
    return last


def read_chunks(tx: Transaction, turn_id: str, version: int, after: int = 0, limit: int = PAGE_MAX) -> list[Chunk]:
    """The chunks of one version that follow number `after`."""
    values = {"id": turn_id, "version": version, "after": after, "limit": min(limit, PAGE_MAX)}
    return [Chunk(*row) for row in tx.execute(_READ, values)]


def progress_of(tx: Transaction, turn_ids: Sequence[str]) -> dict[str, Progress]:
    """How far each of these turns is: when this has not changed, there is nothing new to see of it."""
    pages = [turn_ids[at : at + _IDS_MAX] for at in range(0, len(turn_ids), _IDS_MAX)]
    return {row[0]: tuple(row[1:]) for ids in pages for row in tx.execute(_PROGRESS, {"ids": ids})}


def last_number(tx: Transaction, turn_id: str, version: int) -> int:
    """The number of the last chunk of one version; 0 when it has none."""
    return int(tx.execute(_LAST, {"id": turn_id, "version": version}).scalar_one())


def stream_page(
    tx: Transaction, principal: str, turn_id: str, version: int = 0, after: int = 0, limit: int = PAGE_MAX
) -> StreamPage:
    """The turn, and what follows `<version>.<after>` of its stream; of the present version from its beginning when
    that is another one (0: whichever it is).
    """
    turn = get_turn(tx, principal, turn_id)
    here = turn.epoch
    chunks = read_chunks(tx, turn_id, here, after if version == here else 0, limit)
    return StreamPage(turn, here, tuple(chunks))
