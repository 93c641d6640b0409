"""Insert of entries, one or a batch, each once by its policy. A batch with its events is one transaction.

On PostgreSQL a conflict with another writer restarts the transaction; after a few conflicts it takes the table lock. If
the database itself refuses an entry, by a rule that is not ours, the entries are inserted one by one to find it.

Requests go through the writer of the process: `INSERT` writes the single entries of many requests together, and
`insert_steps` writes the batch of one request. If the writer gives up after conflicts, `insert_entries` is the last
resort.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from onceward.errors import missing_extra

try:
    import sqlalchemy.exc
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.errors import InvalidInput, OncewardError, StoreUnavailable, TransactionConflict, WriteRefused
from onceward.hub.db.append import Appending, EventSteps, MarkedEvent, NewEvent
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.timestamps import new_uuids, now_text
from onceward.hub.db.writer import BatchWork, is_conflict
from onceward.hub.events.log import event_of
from onceward.hub.ingest.entries.batch import Batch, Drafts, EntryOutcome
from onceward.hub.ingest.entries.draft import Draft, drafts_of
from onceward.hub.ingest.entries.events import events_of
from onceward.hub.ingest.entries.open_table import table_of
from onceward.hub.ingest.entries.policy import Policy, list_policies
from onceward.hub.ingest.entries.replay import replay_results
from onceward.hub.ingest.entries.result import Inserted, alone
from onceward.hub.ingest.entries.schema import EntrySchema
from onceward.hub.ingest.entries.table import EntryTable
from onceward.hub.ingest.payload import Payload

__all__ = ["INSERT", "ITEMS_MAX", "EntriesSent", "Inserted", "insert_entries", "insert_entry", "insert_steps"]

# The maximum number of entries in one transaction, because other writers wait for it.
ITEMS_MAX = 1000
# Optimistic retries after a write conflict, before taking the table lock.
_CONFLICTS_MAX = 3


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
    _check_count(payloads)
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
            if is_conflict(error) and conflicts < _CONFLICTS_MAX:
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


@dataclasses.dataclass(frozen=True, slots=True)
class EntriesSent:
    """The payloads of one request, and their drafts under the policies that were read before the transaction."""

    schema: EntrySchema
    payloads: Sequence[Payload]
    drafts: Drafts
    strict: bool = False
    request: RequestKey | None = None

    @classmethod
    def of(
        cls,
        schema: EntrySchema,
        payloads: Sequence[Payload],
        policies: Iterable[Policy],
        *,
        strict: bool = False,
        request: RequestKey | None = None,
    ) -> EntriesSent:
        """Validate the payloads. Raises `InvalidInput` if there are too many."""
        _check_count(payloads)
        return cls(schema, payloads, drafts_of(payloads, policies, strict=strict), strict, request)

    def drafts_under(self, policies: Sequence[Policy]) -> Drafts:
        """Return the drafts, validated again if one of their policies has changed."""
        for draft in self.drafts:
            if isinstance(draft, Draft) and draft.policy is not None and draft.policy not in policies:
                return drafts_of(self.payloads, policies, strict=self.strict)
        return self.drafts

    def insert_directly(self, database: Database) -> list[Inserted]:
        """Insert without the writer, which has given up after conflicts. One of them may have been with this request."""
        request = None if self.request is None else dataclasses.replace(self.request, again=True)
        return insert_entries(database, self.schema, self.payloads, strict=self.strict, request=request)


def writer_gave_up(error: Exception) -> bool:
    """Return whether the writer failed because of other transactions, or because of a rule of the database."""
    if isinstance(error, StoreUnavailable):
        return is_conflict(error)
    return isinstance(error, (TransactionConflict, sqlalchemy.exc.DataError, sqlalchemy.exc.IntegrityError))


def insert_steps(tx: Transaction, sent: EntriesSent) -> EventSteps[list[Inserted]]:
    """Insert the batch of one request, in the writer."""
    policies = list_policies(tx, sent.schema)
    table = table_of(tx, sent.schema, policies)
    if len(sent.drafts) > 1:
        table.take_turn()
    return (
        yield from _insert_all(
            tx, sent.schema, policies, sent.drafts_under(policies), sent.request, table, singly=False
        )
    )


def _insert_each(tx: Transaction, sent: Sequence[EntriesSent]) -> EventSteps[Sequence[list[Inserted]]]:
    """Insert the single entries of many requests, with the results of one after the other."""
    keyed = [one.request.digest for one in sent if one.request is not None]
    if len(set(keyed)) < len(keyed):
        raise _another_run()
    results: dict[int, Inserted] = {}
    new: dict[int, NewEvent | MarkedEvent] = {}
    for schema in {one.schema for one in sent}:
        policies = list_policies(tx, schema)
        drafts: dict[int, Draft | OncewardError] = {}
        for place, one in enumerate(sent):
            if one.schema == schema:
                (drafts[place],) = one.drafts_under(policies)
                done = event_of(tx, one.request)
                if done is not None:
                    (results[place],) = replay_results(tx, schema, [drafts.pop(place)], policies, done)
        outcomes = _run(table_of(tx, schema, policies), list(drafts.values()))
        for place, outcome in zip(drafts, outcomes, strict=True):
            request = sent[place].request
            if event_of(tx, request) is not None:
                raise _another_run()
            # Entries of other requests are not part of a result.
            own = outcome._replace(duplicate_of=None)
            results[place] = Inserted(own)
            new.update((place, event) for event in events_of(schema, [own], policies, request).values())
    for place, event_id in zip(new, (yield list(new.values())), strict=True):
        results[place] = Inserted(results[place].outcome, None, event_id)
    return [[dataclasses.replace(results[place], index=None)] for place in range(len(sent))]


def _order(sent: EntriesSent) -> tuple[str, tuple[int, str], tuple[int, str]]:
    """Return the order of the unique indexes, on which concurrent inserts wait for each other."""
    (draft,) = sent.drafts
    keys = (draft.primary, draft.secondary) if isinstance(draft, Draft) else (None, None)
    return sent.schema.name, keys[0] or (0, ""), keys[1] or (0, "")


INSERT = BatchWork("insert", _insert_each, _order)


def _check_count(payloads: Sequence[Payload]) -> None:
    if len(payloads) > ITEMS_MAX:
        why = f"at most {ITEMS_MAX} items per batch, got {len(payloads)}"
        raise InvalidInput(why, (("items", why),))


def _insert_all(
    tx: Transaction,
    schema: EntrySchema,
    policies: Sequence[Policy],
    drafts: Drafts,
    request: RequestKey | None,
    table: EntryTable,
    singly: bool,
) -> EventSteps[list[Inserted]]:
    done = event_of(tx, request)
    if done is not None:
        return replay_results(tx, schema, drafts, policies, done)
    outcomes = _run_singly(tx, table, drafts) if singly else _run(table, drafts)
    if event_of(tx, request) is not None:
        raise _another_run()
    new = events_of(schema, outcomes, policies, request)
    event_ids = dict(zip(new, (yield list(new.values())), strict=True))
    return [Inserted(outcome, place, event_ids.get(place)) for place, outcome in enumerate(outcomes)]


_insert = Appending(_insert_all)


def _another_run() -> TransactionConflict:
    # It was in progress. This run waited for its rows, or is in the same transaction.
    return TransactionConflict("another run of the same request has finished first; send it again")


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
