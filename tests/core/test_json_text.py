"""Compact JSON for rows, events and responses: the output of the standard encoder with less work."""

from __future__ import annotations

import json
from json import encoder

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.canonical import writer
from onceward.core.json_text import compact, written
from onceward.errors import InvalidInput

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_values)
def test_it_writes_what_the_standard_encoder_writes(value: object) -> None:
    expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    assert written(value) == expected


def test_it_does_the_same_without_the_c_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"b": [1, None, "ä\n"], "a": 0.5}
    expected = [writer(sort_keys=order)(value) for order in (False, True)]
    monkeypatch.setattr(encoder, "c_make_encoder", None)

    assert [writer(sort_keys=order)(value) for order in (False, True)] == expected
    assert expected[0] == written(value)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": float("-inf")}])
def test_numbers_without_a_json_form_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        compact(value)  # type: ignore[arg-type]


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)

    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        compact(loop)  # type: ignore[arg-type]
