"""The stored text of a recovery point."""

from __future__ import annotations

import json

import pytest

from onceward.errors import InvalidOption
from onceward.ledger.recovery import RECOVERY_BYTES_MAX, encode_recovery


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "", "é\0", [], {"batch": ["b-1", None]}, 2**70])
def test_a_value_is_stored_as_json(value: object) -> None:
    assert json.loads(encode_recovery(value)) == value


@pytest.mark.parametrize(
    "value", [b"x", {1, 2}, (1, 2), {"pair": (1, 2)}, {1: "a"}, float("nan"), float("inf"), "\ud800", object()]
)
def test_a_value_that_json_would_change_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match="must be JSON"):
        encode_recovery(value)


def test_the_limit_counts_bytes_of_json() -> None:
    fits = "é" * ((RECOVERY_BYTES_MAX - 2) // 2)
    assert len(encode_recovery(fits).encode()) == RECOVERY_BYTES_MAX

    with pytest.raises(InvalidOption, match="at most 16384 bytes of JSON, got 16385; record an id"):
        encode_recovery(fits + "x")


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)

    with pytest.raises(InvalidOption, match="must be JSON"):
        encode_recovery(value)
