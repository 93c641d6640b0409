"""Inserting entries, one or a whole batch, each once by its policy. A batch is one transaction, its events included.

Who meets another writer on PostgreSQL begins anew, and in the end keeps all others away for a moment. Entries that the
database itself refuses, by a rule that is not ours, are found by inserting one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onceward.errors import missing_extra

try:
    import sqlalchemy.exc
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.core.text import refused
from onceward.db.clock import new_uuids, now_text
from onceward.db.engine import Database, Transaction
from onceward.db.request import RequestKey
from onceward.errors import StoreUnavailable, TransactionConflict, WriteRefused
from onceward.events.log import event_of
from onceward.ingest.again import answer_again
from onceward.ingest.batch import Batch, Drafts, Outcome
from onceward.ingest.draft import drafts_of
from onceward.ingest.entry_event import append_events
from onceward.ingest.inserted import Inserted, alone
from onceward.ingest.payload import Payload
from onceward.ingest.policy import Policy, list_policies
from onceward.ingest.schema import Schema
from onceward.ingest.table import EntryTable
from onceward.ingest.tables import table_of

__all__ = ["ITEMS_MAX", "Inserted", "insert_entries", "insert_entry"]

# One transaction has so many at most: others wait for it.
ITEMS_MAX = 1000
# How often one begins anew who met another writer, before he keeps all others away.
_MEETINGS_MAX = 3

# PostgreSQL: a deadlock, a serialization failure, a key that somebody else has just taken.
_MEETINGS = frozenset({"40P01", "40001", "23505"})


def insert_entries(
    database: Database,
    schema: Schema,
    payloads: Sequence[Payload],
    *,
    strict: bool = False,
    request: RequestKey | None = None,
) -> list[Inserted]:
    """Insert a batch; one result for each payload, in their order. One that is bad fails alone.

    The same request again is answered as its first run was, and writes nothing.
    """
    if len(payloads) > ITEMS_MAX:
        raise refused("items", f"may be {ITEMS_MAX} at most in one batch, and are {len(payloads)}")
    meetings, singly = 0, False
    while True:
        try:
            with database.write() as tx:
                policies = list_policies(tx, schema)
                drafts = drafts_of(payloads, policies, strict=strict)
                table = table_of(tx, schema, policies)
                if meetings >= _MEETINGS_MAX or singly:
                    table.keep_others_away()
                elif len(drafts) > 1:
                    table.take_turn()
                return _insert(tx, schema, policies, drafts, request, table, singly)
        except TransactionConflict:
            # Perhaps another run of the same request, whose answer is now there.
            request = None if request is None else dataclasses.replace(request, again=True)
            meetings += 1
            if meetings > _MEETINGS_MAX:
                raise
        except (StoreUnavailable, sqlalchemy.exc.DataError, sqlalchemy.exc.IntegrityError) as error:
            if _state_of(error) in _MEETINGS and meetings < _MEETINGS_MAX:
                meetings += 1
            elif isinstance(error, StoreUnavailable) or singly:
                raise
            else:
                singly = True


def insert_entry(
    database: Database, schema: Schema, payload: Payload, *, strict: bool = False, request: RequestKey | None = None
) -> Inserted:
    """Insert one entry, or do what its policy says if it is there; raises what is wrong with it."""
    (result,) = insert_entries(database, schema, [payload], strict=strict, request=request)
    return alone(result)


def _insert(
    tx: Transaction,
    schema: Schema,
    policies: Sequence[Policy],
    drafts: Drafts,
    request: RequestKey | None,
    table: EntryTable,
    singly: bool,
) -> list[Inserted]:
    done = event_of(tx, request)
    if done is not None:
        return answer_again(tx, schema, drafts, policies, done)
    outcomes = _run_singly(tx, table, drafts) if singly else _run(table, drafts)
    if event_of(tx, request) is not None:
        # A run of the same request was still under way; whoever waited for its rows sees its events now.
        raise TransactionConflict("the same request was carried out elsewhere meanwhile; ask again")
    event_ids = append_events(tx, schema, outcomes, policies, request)
    return [Inserted(outcome, place, event_ids.get(place)) for place, outcome in enumerate(outcomes)]


def _run(table: EntryTable, drafts: Drafts) -> list[Outcome]:
    return Batch(table, drafts, new_uuids(len(drafts)), now_text()).run()


def _run_singly(tx: Transaction, table: EntryTable, drafts: Drafts) -> list[Outcome]:
    ids, at = new_uuids(len(drafts)), now_text()
    outcomes: list[Outcome] = []
    firsts: dict[int, int] = {}
    for place, draft in enumerate(drafts):
        try:
            with tx.begin_nested():
                (outcome,) = Batch(table, [draft], [ids[place]], at, firsts, [place]).run()
        except (sqlalchemy.exc.DataError, sqlalchemy.exc.IntegrityError) as error:
            reason = str(error.orig).strip().splitlines()[0]
            outcome = Outcome("failed", error=WriteRefused(f"the database refuses this entry: {reason}"))
        outcomes.append(outcome)
    return outcomes


def _state_of(error: Exception) -> str | None:
    """PostgreSQL's own name for what went wrong."""
    found = error if isinstance(error, sqlalchemy.exc.DBAPIError) else error.__cause__
    return getattr(getattr(found, "orig", None), "sqlstate", None)
