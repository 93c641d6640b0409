"""Metadata that changes the meaning of a message makes it another message; that of a delivery does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.turns.core.house import House, Now, opened

from onceward.db.engine import Database
from onceward.errors import InvalidOption
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.turns import Brain, Context

DE, EN = {"locale": "de", "order": {"id": 1, "lines": [1, 2]}}, {"locale": "en", "order": {"id": 1, "lines": [1, 2]}}
DE_TURNED = {"order": {"lines": [1, 2], "id": 1.0}, "locale": "de"}
# More than a double can tell apart: RFC 8785 has no form for it.
LARGE = 2**60


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with open_ledger("memory:") as ledger:
        yield ledger


async def planned(context: Context) -> list[str]:
    """A plan that depends on the metadata, and why it was used again or not."""
    locale = str(context.messages[-1].metadata.get("locale"))
    plan = await context.artifact("plan", lambda: f"a plan in {locale}")
    return [plan, context.artifacts.explain("plan")[0].reason.partition("; ")[0]]


def planner(names: Any = None) -> Brain:
    return Brain(planned, reuse={"plan": {"scope": "same_input"}}, meaningful_metadata=names)


def told(database: Database, ledger: Ledger, brain: Brain, story: Callable[[House], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with opened(House(database, ledger, brain, Now())) as house:
            await story(house)

    asyncio.run(whole())


def test_the_same_words_with_other_metadata_are_no_duplicate(database: Database, ledger: Ledger) -> None:
    async def story(house: House) -> None:
        first = await house.say("plan it", metadata=DE)
        await house.idle()
        again = await house.say("plan it", metadata=DE_TURNED)
        other = await house.say("plan it", metadata=EN)
        none = await house.say("plan it")
        await house.idle()

        assert [again.duplicate_of, other.duplicate_of, none.duplicate_of] == [first.turn_id, None, None]

    told(database, ledger, planner(), story)


@pytest.mark.parametrize(
    ("names", "one", "other"),
    [
        (None, {**DE, "timestamp": 1, "trace_id": "a", "request_id": "x"}, {**DE, "timestamp": 2, "trace_id": "b"}),
        (["locale"], DE, {"locale": "de", "order": 7}),
        ([], DE, EN),
    ],
    ids=["default", "named", "none"],
)
def test_metadata_that_does_not_count_makes_no_other_message(
    database: Database, ledger: Ledger, names: list[str] | None, one: dict[str, Any], other: dict[str, Any]
) -> None:
    async def story(house: House) -> None:
        first = await house.say("plan it", metadata=one)
        await house.idle()

        assert (await house.say("plan it", metadata=other)).duplicate_of == first.turn_id
        assert house.turn(first.turn_id).answer == ["a plan in de", "it was not computed in this session yet"]

    told(database, ledger, planner(names), story)


def test_an_artifact_of_another_locale_is_not_used_again_and_explain_says_why(
    database: Database, ledger: Ledger
) -> None:
    async def story(house: House) -> None:
        answers = []
        for number, metadata in enumerate((DE, EN, DE_TURNED, {"locale": "de"})):
            received = await house.say("plan it", metadata=metadata, message_id=f"{number}")
            await house.idle()
            answers.append(house.turn(received.turn_id).answer)

        other = "the input is different: other messages, or other metadata (locale, order)"
        assert answers == [
            ["a plan in de", "it was not computed in this session yet"],
            ["a plan in en", other],
            ["a plan in de", "same input, with metadata (locale, order)"],
            ["a plan in de", "the input is different: other messages, or other metadata (locale)"],
        ]

    told(database, ledger, planner(), story)


def test_only_metadata_that_the_brain_names_computes_an_artifact_again(database: Database, ledger: Ledger) -> None:
    async def story(house: House) -> None:
        await house.say("plan it", metadata=DE, message_id="1")
        await house.idle()
        second = await house.say("plan it", metadata={"locale": "de", "order": 7}, message_id="2")
        await house.idle()

        assert house.turn(second.turn_id).answer == ["a plan in de", "same input, with metadata (locale)"]

    told(database, ledger, planner(["locale"]), story)


def test_numbers_that_canonical_json_has_no_form_for_count_all_the_same(database: Database, ledger: Ledger) -> None:
    async def story(house: House) -> None:
        first = await house.say("plan it", metadata={"id": LARGE})
        await house.idle()
        again = await house.say("plan it", metadata={"id": LARGE})
        other = await house.say("plan it", metadata={"id": LARGE + 1})
        await house.idle()

        assert [again.duplicate_of, other.duplicate_of] == [first.turn_id, None]
        assert house.turn(other.turn_id).state == "complete"

    told(database, ledger, planner(), story)


def test_the_names_of_metadata_are_several() -> None:
    with pytest.raises(InvalidOption, match="meaningful_metadata is a list of metadata keys, not the text 'locale'"):
        planner("locale")
