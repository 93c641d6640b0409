"""Entries of several requests in one batch of the writer: the results of one after the other."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy.exc
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text
from tests.hub.ingest.entries.payloads import KINDS, events, make_policies, newsletter, note, stored, thought
from tests.hub.ingest.entries.test_batch import content, payloads, summary_of
from tests.waiting import SECONDS_MAX

from onceward.errors import Conflict, InvalidInput
from onceward.hub.db.append import Appending
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.request_key import RequestKey
from onceward.hub.ingest.entries.insert import INSERT, EntriesSent, Inserted, insert_entries, insert_entry, insert_steps
from onceward.hub.ingest.entries.policy import list_policies, put_policy
from onceward.hub.ingest.entries.preview import find_entries, result_without_write
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST, EntrySchema
from onceward.hub.ingest.payload import Payload


def sent(
    database: Database, payload: Payload, schema: EntrySchema = PKM, request: RequestKey | None = None
) -> EntriesSent:
    with database.read() as tx:
        policies = list_policies(tx, schema)
    return EntriesSent.of(schema, [payload], policies, request=request)


def queued(database: Database, several: Sequence[EntriesSent]) -> list[Inserted | BaseException]:
    """Insert the entries of these requests; the writer gets all of them at once. Return their results or exceptions."""

    async def run() -> list[Inserted | BaseException]:
        go_on = threading.Event()
        busy = asyncio.create_task(database.writer.run(lambda _: go_on.wait(SECONDS_MAX)))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(database.writer.add(INSERT, one)) for one in several]
        await asyncio.sleep(0)
        go_on.set()
        await busy
        done = await asyncio.gather(*waiting, return_exceptions=True)
        return [one if isinstance(one, BaseException) else one[0] for one in done]

    return asyncio.run(run())


def results_of(database: Database, several: Sequence[EntriesSent]) -> list[Inserted]:
    done = queued(database, several)
    assert all(isinstance(one, Inserted) for one in done), done
    return [one for one in done if isinstance(one, Inserted)]


def actions(results: Sequence[Inserted]) -> list[str]:
    return [result.action for result in results]


def test_the_entries_of_many_requests_are_one_transaction(database: Database) -> None:
    several = [sent(database, thought(n, f"text {n}")) for n in range(20)]
    commits: list[object] = []
    event.listen(database.engine, "commit", commits.append)

    results = results_of(database, several)

    assert len(commits) == 2, "that of the work before, and one for all"
    assert actions(results) == ["inserted"] * 20
    assert [(result.row or {})["external_ref"] for result in results] == [f"tg:1:{n}" for n in range(20)]
    assert {result.index for result in results} == {None}
    by_entry = {one.entity_id: one.event_id for one in events(database)}
    assert [result.event_id for result in results] == [by_entry[str((result.row or {})["id"])] for result in results]


def test_a_request_sees_the_entries_of_those_before_it(database: Database) -> None:
    make_policies(database)
    insert_entry(database, PKM, note("skip_identity", "z", "s"))

    results = results_of(
        database,
        [
            sent(database, newsletter("<1@x>", "monday")),
            sent(database, newsletter("<1@x>", "tuesday")),
            sent(database, newsletter(None, "monday")),
            sent(database, note("update_hint", "a", "same", title="first")),
            sent(database, note("update_hint", "b", "same")),
            sent(database, note("update_hint", "b", None, title="second")),
            sent(database, note("skip_identity", "y", "t")),
            sent(database, note("skip_identity", "y", "s")),
            sent(database, note("skip_identity", "z", "t")),
        ],
    )

    # In the order of their keys, a missing key first.
    assert [(result.action, result.matched_on, result.changed) for result in results] == [
        ("skipped", "secondary", False),
        ("inserted", None, True),
        ("inserted", None, True),
        ("inserted", None, True),
        ("updated", "primary", False),
        ("inserted", None, True),
        ("inserted", None, True),
        ("skipped", "secondary", False),
        ("skipped", "primary", False),
    ]
    assert [result.split_with for result in results] == [*([[]] * 8), [str((results[6].row or {})["id"])]]
    assert {result.duplicate_of_index for result in results} == {None}
    assert len(stored(database)) == 6


def test_a_refused_payload_and_a_conflict_cost_the_others_nothing(database: Database) -> None:
    insert_entries(database, PKM, [newsletter("<1@x>", "a"), newsletter("<2@x>", "b")])

    results = results_of(
        database,
        [
            sent(database, thought(1)),
            sent(database, {"source": "email"}),
            sent(database, newsletter("<1@x>", "b", strict=True)),
            sent(database, thought(2)),
        ],
    )

    assert actions(results) == ["inserted", "failed", "failed", "inserted"]
    assert [type(result.error) for result in results] == [type(None), InvalidInput, Conflict, type(None)]
    assert len(stored(database)) == 4


def test_an_entry_that_the_database_refuses_fails_alone(database: Database) -> None:
    refuse_spam(database)

    first, spam, last = queued(database, [sent(database, thought(n, title=title)) for n, title in enumerate("asb")])

    assert isinstance(first, Inserted)
    assert isinstance(last, Inserted)
    assert isinstance(spam, sqlalchemy.exc.IntegrityError)
    assert len(stored(database)) == len(events(database)) == 2


def refuse_spam(database: Database) -> None:
    with database.write() as tx:
        if database.is_sqlite:
            tx.execute(
                text(
                    "CREATE TRIGGER no_spam BEFORE INSERT ON pkm_entries WHEN NEW.title = 's'"
                    " BEGIN SELECT RAISE(ABORT, 'no spam'); END"
                )
            )
        else:
            tx.execute(text("ALTER TABLE pkm.entries ADD CONSTRAINT no_spam CHECK (title <> 's')"))


def test_both_schemas_in_one_batch_are_kept_apart(database: Database) -> None:
    several = [sent(database, thought(n // 2), (PKM, PKM_TEST)[n % 2]) for n in range(6)]

    results = results_of(database, several)

    assert actions(results) == ["inserted"] * 6
    assert len(stored(database, PKM)) == len(stored(database, PKM_TEST)) == 3
    named = [json.loads(one.data)["schema"] for one in events(database)]
    assert sorted(named) == ["pkm"] * 3 + ["pkm_test"] * 3


def test_each_request_has_its_own_mark_and_its_retry_the_first_result(database: Database) -> None:
    insert_entry(database, PKM, thought(0, "old"))

    def requests(*, again: bool) -> list[EntriesSent]:
        payloads: list[Payload] = [thought(0, "new"), thought(1, "one"), thought(2, "two"), {"source": "manual"}]
        return [
            sent(database, payload, request=RequestKey(f"request {n}", again=again))
            for n, payload in enumerate(payloads)
        ]

    first = results_of(database, requests(again=False))
    log = events(database)
    results = results_of(database, [*requests(again=True), sent(database, thought(2, "two"))])

    assert actions(first) == ["updated", "inserted", "inserted", "inserted"]
    assert [result.json() for result in results[:4]] == [result.json() for result in first]
    assert (results[4].action, results[4].changed) == ("updated", False)
    assert events(database) == log


def test_a_retry_whose_policy_was_disabled_since_gets_the_first_result(database: Database) -> None:
    request = RequestKey("request", again=False)
    (first,) = results_of(database, [sent(database, thought(1), request=request)])
    change_policy(database, enabled=False)

    again, other = results_of(
        database,
        [
            sent(database, thought(1), request=dataclasses.replace(request, again=True)),
            sent(database, thought(2)),
        ],
    )

    assert again.json() == first.json()
    assert isinstance(other.error, InvalidInput)


def change_policy(database: Database, **options: Any) -> None:
    with database.write() as tx:
        put_policy(
            tx,
            PKM,
            "telegram_thought_v1",
            **{"source": "telegram", "content_type": "thought/note", "conflict_action": "update", **options},
        )


@pytest.mark.parametrize("payload", [thought(1), {"source": "manual"}], ids=["with a key", "without one"])
def test_two_runs_of_one_request_in_one_batch_write_once_and_have_the_same_result(
    database: Database, payload: Payload
) -> None:
    first = sent(database, payload, request=RequestKey("request", again=False))
    retry = dataclasses.replace(first, request=RequestKey("request", again=True))

    one, other = results_of(database, [first, retry])

    assert one.json() == other.json()
    assert len(stored(database)) == len(events(database)) == 1


def test_an_entry_is_decided_by_its_policy_at_the_time_of_the_transaction(database: Database) -> None:
    insert_entry(database, PKM, thought(1, "old"))
    before = [sent(database, thought(1, "new")), sent(database, thought(2))]
    change_policy(database, conflict_action="skip")

    results = results_of(database, before)
    change_policy(database, enabled=False)
    (refused,) = results_of(database, before[:1])

    assert actions(results) == ["skipped", "inserted"]
    assert isinstance(refused.error, InvalidInput)


def test_a_changed_policy_counts_at_once_in_every_process(database: Database, database_url: str) -> None:
    async def found(other: Database) -> Any:
        return (await find_entries(other, thought(1), None)).policies["telegram_thought_v1"].conflict_action

    with closing(open_database(database_url)) as other:
        before = asyncio.run(found(other))
        change_policy(database, conflict_action="skip")
        after = asyncio.run(found(other))
        with other.read() as tx:
            listed = list_policies(tx, PKM)[0].conflict_action

    assert (before, after, listed) == ("update", "skip", "skip")


def test_two_processes_that_insert_the_same_entries_insert_each_once(database: Database, database_url: str) -> None:
    """Single entries and batches, in different orders, with keys that cross."""
    several = [
        *(thought(n, f"text {n % 10}") for n in range(60)),
        *(newsletter(f"<{n}@x>", f"day {n % 40}") for n in range(60)),
    ]
    results: list[Inserted] = []
    failed: list[BaseException] = []

    async def insert_all(own: Database, seed: int) -> None:
        mine = random.Random(seed).sample(several, len(several))
        batch, singles = mine[:20], mine[20:]

        async def one(payload: Payload) -> None:
            found = await find_entries(own, payload, None)
            request = EntriesSent.of(found.schema, [payload], found.policies.values())
            done = result_without_write(found, request.drafts[0])
            results.append(done or (await own.writer.add(INSERT, request))[0])

        async def together() -> None:
            with own.read() as tx:
                request = EntriesSent.of(PKM, batch, list_policies(tx, PKM))
            results.extend(await own.writer.append(lambda tx: insert_steps(tx, request), ("entries",)))

        await asyncio.gather(together(), *map(one, singles))

    def run(seed: int) -> None:
        try:
            with closing(open_database(database_url)) as own:
                asyncio.run(insert_all(own, seed))
        except BaseException as error:  # noqa: BLE001  # shown below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)

    assert not failed
    assert len(results) == 3 * len(several)
    assert "failed" not in actions(results)
    rows = stored(database)
    assert actions(results).count("inserted") == len(rows)
    assert len({row["idempotency_key_primary"] for row in rows}) == len(rows) == 60 + 40
    assert [one.name for one in events(database)].count("entry.inserted") == len(rows)


# One after the other.

several_payloads = (
    st.lists(st.sampled_from([None, *KINDS]), min_size=1, max_size=2)
    .map(payloads)
    .flatmap(lambda one: st.lists(st.lists(one, min_size=1, max_size=10), min_size=1, max_size=3))
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(several_payloads)
@example([[note("update_hint", "a", "a")], [note("update_hint", "a", "a"), *[note("update_hint", "b", "a")] * 2]])
def test_requests_in_one_batch_have_the_results_of_one_after_the_other(
    database: Database, several: list[list[Payload]]
) -> None:
    """The batch in one schema, the requests in the other. A lookup alone gives the same result, or none if one writes."""
    make_policies(database)
    with database.write() as tx:
        for schema in (PKM, PKM_TEST):
            tx.execute(text(f"DELETE FROM {schema.table('entries', is_sqlite=database.is_sqlite)}"))  # noqa: S608

    for batch in several:
        in_order = sorted((sent(database, payload) for payload in batch), key=INSERT.order)
        with database.write() as tx:
            together = [one[0] for one in Appending(INSERT.run)(tx, in_order) if isinstance(one, list)]
        one_by_one = [_looked_up_and_inserted(database, one.payloads[0]) for one in in_order]

        assert list(map(summary_of, together)) == list(map(summary_of, one_by_one))
        assert {result.duplicate_of_index for result in together} == {None}
        assert content(database, PKM) == content(database, PKM_TEST)


def _looked_up_and_inserted(database: Database, payload: Payload) -> Inserted:
    found = asyncio.run(find_entries(database, payload, PKM_TEST))
    request = EntriesSent.of(PKM_TEST, [payload], found.policies.values())
    by_lookup = result_without_write(found, request.drafts[0])
    (inserted,) = insert_entries(database, PKM_TEST, [payload])
    assert (by_lookup is None) == inserted.changed
    if by_lookup is not None:
        assert summary_of(by_lookup) == summary_of(inserted)
        assert by_lookup.split_with == inserted.split_with
    return inserted
