"""Insert of entries, one or a batch, each once by its policy. A batch with its events is one transaction.

On PostgreSQL a conflict with another writer restarts the transaction; after a few conflicts it takes the table lock. If
the database itself refuses an entry, by a rule that is not ours, the entries are inserted one by one to find it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onceward.errors import missing_extra

try:
    import sqlalchemy.exc
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.errors import InvalidInput, StoreUnavailable, TransactionConflict, WriteRefused
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.timestamps import new_uuids, now_text
from onceward.hub.events.log import event_of
from onceward.hub.ingest.entries.batch import Batch, Drafts, EntryOutcome
from onceward.hub.ingest.entries.draft import drafts_of
from onceward.hub.ingest.entries.events import append_events
from onceward.hub.ingest.entries.open_table import table_of
from onceward.hub.ingest.entries.policy import Policy, list_policies
from onceward.hub.ingest.entries.replay import replay_results
from onceward.hub.ingest.entries.result import Inserted, alone
from onceward.hub.ingest.entries.schema import EntrySchema
from onceward.hub.ingest.entries.table import EntryTable
from onceward.hub.ingest.payload import Payload

__all__ = ["ITEMS_MAX", "Inserted", "insert_entries", "insert_entry"]

# The maximum number of entries in one transaction, because other writers wait for it.
ITEMS_MAX = 1000
# Optimistic retries after a write conflict, before taking the table lock.
_CONFLICTS_MAX = 3

# PostgreSQL: a deadlock, a serialization failure, a unique key that another transaction has just inserted.
_CONFLICT_STATES = frozenset({"40P01", "40001", "23505"})


def insert_entries(
    database: Database,
    schema: EntrySchema,
    payloads: Sequence[Payload],
    *,
    strict: bool = False,
    request: RequestKey | None = None,
) -> list[Inserted]:
    """Insert a batch; return one result for each payload, in their order.

    An invalid payload does not affect the others. A repeated request returns the results of its first run and writes
    nothing.
    """
    if len(payloads) > ITEMS_MAX:
        why = f"at most {ITEMS_MAX} items per batch, got {len(payloads)}"
        raise InvalidInput(why, (("items", why),))
    conflicts, singly = 0, False
    while True:
        try:
            with database.write() as tx:
                policies = list_policies(tx, schema)
                drafts = drafts_of(payloads, policies, strict=strict)
                table = table_of(tx, schema, policies)
                if conflicts >= _CONFLICTS_MAX or singly:
                    table.lock_table()
                elif len(drafts) > 1:
                    table.take_turn()
                return _insert(tx, schema, policies, drafts, request, table, singly)
        except TransactionConflict:
            # This may be another run of the same request, whose results are available now.
            request = None if request is None else dataclasses.replace(request, again=True)
            conflicts += 1
            if conflicts > _CONFLICTS_MAX:
                raise
        except (StoreUnavailable, sqlalchemy.exc.DataError, sqlalchemy.exc.IntegrityError) as error:
            if _state_of(error) in _CONFLICT_STATES and conflicts < _CONFLICTS_MAX:
                conflicts += 1
            elif isinstance(error, StoreUnavailable) or singly:
                raise
            else:
                singly = True


def insert_entry(
    database: Database,
    schema: EntrySchema,
    payload: Payload,
    *,
    strict: bool = False,
    request: RequestKey | None = None,
) -> Inserted:
    """Insert one entry, or do what its policy says if it exists; raise its error, if any."""
    (result,) = insert_entries(database, schema, [payload], strict=strict, request=request)
    return alone(result)


def _insert(
    tx: Transaction,
    schema: EntrySchema,
    policies: Sequence[Policy],
    drafts: Drafts,
    request: RequestKey | None,
    table: EntryTable,
    singly: bool,
) -> list[Inserted]:
    done = event_of(tx, request)
    if done is not None:
        return replay_results(tx, schema, drafts, policies, done)
    outcomes = _run_singly(tx, table, drafts) if singly else _run(table, drafts)
    if event_of(tx, request) is not None:
        # Another run of the same request was in progress. This one waited for its rows, and sees its events now.
        raise TransactionConflict("another run of the same request has finished first; send it again")
    event_ids = append_events(tx, schema, outcomes, policies, request)
    return [Inserted(outcome, place, event_ids.get(place)) for place, outcome in enumerate(outcomes)]


def _run(table: EntryTable, drafts: Drafts) -> list[EntryOutcome]:
    return Batch(table, drafts, new_uuids(len(drafts)), now_text()).run()


def _run_singly(tx: Transaction, table: EntryTable, drafts: Drafts) -> list[EntryOutcome]:
    ids, at = new_uuids(len(drafts)), now_text()
    outcomes: list[EntryOutcome] = []
    firsts: dict[int, int] = {}
    for place, draft in enumerate(drafts):
        try:
            with tx.begin_nested():
                (outcome,) = Batch(table, [draft], [ids[place]], at, firsts, [place]).run()
        except (sqlalchemy.exc.DataError, sqlalchemy.exc.IntegrityError) as error:
            reason = str(error.orig).strip().splitlines()[0]
            outcome = EntryOutcome("failed", error=WriteRefused(f"the database refused this entry: {reason}"))
        outcomes.append(outcome)
    return outcomes


def _state_of(error: Exception) -> str | None:
    """Return PostgreSQL's error code (SQLSTATE), if any."""
    found = error if isinstance(error, sqlalchemy.exc.DBAPIError) else error.__cause__
    return getattr(getattr(found, "orig", None), "sqlstate", None)
