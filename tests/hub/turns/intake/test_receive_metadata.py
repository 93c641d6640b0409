"""Metadata that changes the meaning of a message makes it another message; metadata of its delivery does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.hub.turns.turn_harness import ManualClock, TurnHarness, opened

from onceward.errors import InvalidOption
from onceward.hub.db.engine import Database
from onceward.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Context

DE, EN = {"locale": "de", "order": {"id": 1, "lines": [1, 2]}}, {"locale": "en", "order": {"id": 1, "lines": [1, 2]}}
DE_TURNED = {"order": {"lines": [1, 2], "id": 1.0}, "locale": "de"}
# Beyond the integers of a double: RFC 8785 has no form for it.
LARGE = 2**60


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with open_ledger("memory:") as ledger:
        yield ledger


async def planned(context: Context) -> list[str]:
    """A plan that depends on the metadata, and why it was reused or not."""
    locale = str(context.messages[-1].metadata.get("locale"))
    plan = await context.artifact("plan", lambda: f"a plan in {locale}")
    return [plan, context.artifacts.explain("plan")[0].reason.partition("; ")[0]]


def planner(names: Any = None) -> Brain:
    return Brain(planned, reuse={"plan": {"scope": "same_input"}}, meaningful_metadata=names)


def run_story(
    database: Database, ledger: Ledger, brain: Brain, story: Callable[[TurnHarness], Awaitable[None]]
) -> None:
    async def whole() -> None:
        async with opened(TurnHarness(database, ledger, brain, ManualClock())) as harness:
            await story(harness)

    asyncio.run(whole())


def test_the_same_words_with_other_metadata_are_not_a_duplicate(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        first = await harness.say("plan it", metadata=DE)
        await harness.idle()
        again = await harness.say("plan it", metadata=DE_TURNED)
        other = await harness.say("plan it", metadata=EN)
        none = await harness.say("plan it")
        await harness.idle()

        assert [again.duplicate_of, other.duplicate_of, none.duplicate_of] == [first.turn_id, None, None]

    run_story(database, ledger, planner(), story)


@pytest.mark.parametrize(
    ("names", "one", "other"),
    [
        (None, {**DE, "timestamp": 1, "trace_id": "a", "request_id": "x"}, {**DE, "timestamp": 2, "trace_id": "b"}),
        (["locale"], DE, {"locale": "de", "order": 7}),
        ([], DE, EN),
    ],
    ids=["default", "named", "none"],
)
def test_metadata_that_does_not_count_does_not_make_another_message(
    database: Database, ledger: Ledger, names: list[str] | None, one: dict[str, Any], other: dict[str, Any]
) -> None:
    async def story(harness: TurnHarness) -> None:
        first = await harness.say("plan it", metadata=one)
        await harness.idle()

        assert (await harness.say("plan it", metadata=other)).duplicate_of == first.turn_id
        assert harness.turn(first.turn_id).answer == ["a plan in de", "it has not been computed in this session yet"]

    run_story(database, ledger, planner(names), story)


def test_an_artifact_of_another_locale_is_not_reused_and_explain_says_why(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        answers = []
        for number, metadata in enumerate((DE, EN, DE_TURNED, {"locale": "de"})):
            received = await harness.say("plan it", metadata=metadata, message_id=f"{number}")
            await harness.idle()
            answers.append(harness.turn(received.turn_id).answer)

        other = "the input is different: other messages, or other metadata (locale, order)"
        assert answers == [
            ["a plan in de", "it has not been computed in this session yet"],
            ["a plan in en", other],
            ["a plan in de", "same input, with metadata (locale, order)"],
            ["a plan in de", "the input is different: other messages, or other metadata (locale)"],
        ]

    run_story(database, ledger, planner(), story)


def test_only_metadata_named_by_the_brain_computes_an_artifact_again(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        await harness.say("plan it", metadata=DE, message_id="1")
        await harness.idle()
        second = await harness.say("plan it", metadata={"locale": "de", "order": 7}, message_id="2")
        await harness.idle()

        assert harness.turn(second.turn_id).answer == ["a plan in de", "same input, with metadata (locale)"]

    run_story(database, ledger, planner(["locale"]), story)


def test_numbers_without_a_canonical_form_still_count(database: Database, ledger: Ledger) -> None:
    async def story(harness: TurnHarness) -> None:
        first = await harness.say("plan it", metadata={"id": LARGE})
        await harness.idle()
        again = await harness.say("plan it", metadata={"id": LARGE})
        other = await harness.say("plan it", metadata={"id": LARGE + 1})
        await harness.idle()

        assert [again.duplicate_of, other.duplicate_of] == [first.turn_id, None]
        assert harness.turn(other.turn_id).state == "complete"

    run_story(database, ledger, planner(), story)


def test_meaningful_metadata_must_be_a_list() -> None:
    with pytest.raises(
        InvalidOption, match="meaningful_metadata must be a list of metadata keys, got the string 'locale'"
    ):
        planner("locale")
