"""JSON of any size, in pieces of any size."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.core.canonical import Json
from onceward.errors import InvalidInput
from onceward.hub.ingest.backfill.json_reader import JsonReader

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


def reader(text: str, piece: int) -> JsonReader:
    return JsonReader(io.BytesIO(text.encode("utf-8", "surrogatepass")), "a.json", piece)


@settings(max_examples=200)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values), st.integers(1, 20), st.booleans())
def test_an_object_is_read_field_by_field_in_any_pieces(value: dict[str, Json], piece: int, spread: bool) -> None:
    text = json.dumps(value, indent=1 if spread else None)
    source = reader(text, piece)

    assert {name: source.value() for name in source.names()} == value
    assert source.peek() == ""


@settings(max_examples=100)
@given(st.lists(values), st.integers(1, 20))
def test_an_array_is_read_element_by_element(value: list[Json], piece: int) -> None:
    source = reader(json.dumps(value), piece)

    assert [source.value() for _ in source.elements()] == value


def test_a_number_split_over_two_pieces_is_read_completely() -> None:
    source = reader("[12345, 1.5e3]", 3)

    assert [source.value() for _ in source.elements()] == [12345, 1500.0]


@pytest.mark.parametrize(
    "text",
    ["", "[1,2", "[1 2]", "[1,]", "[1,,2]", "[nope]", '["a', "[" + "[" * 100_000],
    ids=["nothing", "cut off", "no comma", "comma at the end", "two commas", "no JSON", "half a text", "very deep"],
)
def test_invalid_json_is_reported_with_the_file(text: str) -> None:
    source = reader(text, 7)

    with pytest.raises(InvalidInput, match=r"a\.json is not valid JSON"):
        [source.value() for _ in source.elements()]


@pytest.mark.parametrize("text", ['{"a" 1}', "{1: 2}", '{"a": 1,}', '{"a": 1'])
def test_a_broken_object_is_reported_with_the_file(text: str) -> None:
    source = reader(text, 7)

    with pytest.raises(InvalidInput, match=r"a\.json is not valid JSON"):
        [source.value() for _ in source.names()]
