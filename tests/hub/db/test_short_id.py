"""Short ids: every number that can be drawn is an id of its own."""

from __future__ import annotations

import random
import secrets

import pytest

from onceward.errors import StoreUnavailable
from onceward.hub.db.short_id import short_ids

POSSIBLE = 36**8


def id_of(number: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(secrets, "randbelow", lambda below: number if below == POSSIBLE else -1)
    return next(short_ids("at"))


def test_the_first_and_the_last_possible_id_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    assert id_of(0, monkeypatch) == "at-00000000"
    assert id_of(POSSIBLE - 1, monkeypatch) == "at-zzzzzzzz"


def test_each_number_gives_a_different_id(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {*random.Random(1).sample(range(POSSIBLE), 2_000), *(36**place for place in range(8)), *range(1296)}

    assert len({id_of(number, monkeypatch) for number in drawn}) == len(drawn)


def test_if_every_id_is_taken_the_error_is_retryable() -> None:
    with pytest.raises(StoreUnavailable, match="try again"):
        list(short_ids("at"))
