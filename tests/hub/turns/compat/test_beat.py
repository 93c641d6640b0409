"""Beats: the messages of a beat get one response, however often and in any order they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from onceward import Ledger, errors
from onceward.hub.turns.compat.beat import BeatIdempotencyManager, LogicalTurn
from onceward.hub.turns.compat.cache import IdempotencyCache, IdempotencyCheckResult
from onceward.testing import PinnedClock
from onceward.tools.keys import build_tool_idempotency_key
from onceward.tools.observer import IdempotencyStatus

TENANT = UUID(int=9)
IDS = [UUID(int=1), UUID(int=2)]

STARTED = IdempotencyStatus.PROCESSING_STARTED
PROCESSING = IdempotencyStatus.DUPLICATE_PROCESSING


@pytest.fixture
def beats(ledger: Ledger) -> BeatIdempotencyManager:
    return BeatIdempotencyManager(IdempotencyCache(ledger))


def turn(ids: Sequence[UUID] = tuple(IDS), session: str = "s", contents: Sequence[str] = ()) -> LogicalTurn:
    return LogicalTurn(messages=ids, session_key=session, contents=contents)


def check(beats: BeatIdempotencyManager, one: LogicalTurn, tenant: object = TENANT) -> IdempotencyCheckResult:
    return asyncio.run(beats.check_beat(one, tenant))


def test_the_same_messages_are_the_same_beat(beats: BeatIdempotencyManager) -> None:
    burst = LogicalTurn(messages=[uuid4(), uuid4()])

    assert [check(beats, burst).status for _ in range(2)] == [STARTED, PROCESSING]


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"], indirect=True)
def test_a_redelivered_beat_has_another_turn_and_the_same_answer(beats: BeatIdempotencyManager) -> None:
    first, again = turn(contents=["a", "b"]), turn(IDS[::-1], contents=["b", "a"])
    assert first.id != again.id
    assert check(beats, first).status is STARTED
    assert check(beats, again).status is PROCESSING
    asyncio.run(beats.mark_beat_complete(first, TENANT, "the answer"))

    found = check(beats, again)

    assert (found.status, found.cached_response) == (IdempotencyStatus.DUPLICATE_COMPLETED, "the answer")


def test_a_beat_has_the_key_of_the_contract(beats: BeatIdempotencyManager, ledger: Ledger) -> None:
    check(beats, turn(), "acme")

    assert [one.key for one in ledger.blocking.scan().entries] == ["acme:beat:s:4899549e45f8be78"]


def test_other_content_under_the_same_ids_is_a_mismatch(beats: BeatIdempotencyManager) -> None:
    check(beats, turn(contents=["a", "b"]))

    assert check(beats, turn(contents=["a", "c"])).status is IdempotencyStatus.FINGERPRINT_MISMATCH


@pytest.mark.parametrize(
    ("one", "tenant"),
    [(turn([*IDS, UUID(int=3)]), TENANT), (turn(session="t"), TENANT), (turn(), UUID(int=8))],
    ids=["messages", "session", "tenant"],
)
def test_other_messages_sessions_and_tenants_are_other_beats(
    beats: BeatIdempotencyManager, one: LogicalTurn, tenant: UUID
) -> None:
    check(beats, turn())

    assert check(beats, one, tenant).status is STARTED


def test_a_finished_beat_is_answered_for_a_minute(beats: BeatIdempotencyManager, clock: PinnedClock) -> None:
    check(beats, turn())
    asyncio.run(beats.mark_beat_complete(turn(), TENANT, "the answer"))
    clock.advance(59)
    assert check(beats, turn()).status is IdempotencyStatus.DUPLICATE_COMPLETED
    clock.advance(2)

    assert check(beats, turn()).status is STARTED


def test_a_failed_beat_may_be_retried(beats: BeatIdempotencyManager) -> None:
    check(beats, turn())
    asyncio.run(beats.mark_beat_failed(turn(), TENANT))

    assert check(beats, turn()).status is STARTED


def test_a_client_cannot_use_the_key_of_a_beat(beats: BeatIdempotencyManager, ledger: Ledger) -> None:
    client_key = f"{TENANT}:beat:s:4899549e45f8be78"
    asyncio.run(IdempotencyCache(ledger).check_and_set(client_key, "x"))

    assert check(beats, turn()).status is STARTED


def test_the_number_of_contents_must_match_the_messages() -> None:
    with pytest.raises(errors.InvalidOption):
        turn(contents=["a"])


def test_the_keys_of_a_turns_tools_contain_its_group() -> None:
    first = LogicalTurn(messages=IDS)
    superseding = LogicalTurn(messages=IDS, turn_group_id=first.turn_group_id)

    keys = {build_tool_idempotency_key("refund", "order:1", one) for one in (first, superseding)}

    assert keys == {f"refund:order:1:turn_group:{first.turn_group_id}"}
