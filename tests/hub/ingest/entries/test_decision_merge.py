"""The laws of merging."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onceward.core.canonical import Json
from onceward.hub.ingest.entries.decision import merged

leaves: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)
names = st.sampled_from(["a", "b", "c"])
values: st.SearchStrategy[Json] = st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=3))
objects: st.SearchStrategy[Json] = st.dictionaries(names, values, max_size=3)


def paths(value: Json, at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Json]:
    """Return the paths of all values that are not objects, and of empty objects."""
    if not isinstance(value, dict) or not value:
        return {at: value}
    return {path: leaf for name, inner in value.items() for path, leaf in paths(inner, (*at, name)).items()}


@given(objects)
def test_an_empty_merge_changes_nothing(value: Json) -> None:
    assert merged(value, {}) == value
    assert merged({}, value) == value
    assert merged(value, value) == value


@given(objects, objects)
def test_a_repeated_merge_changes_nothing_more(stored: Json, sent: Json) -> None:
    once = merged(stored, sent)

    assert merged(once, sent) == once


@given(objects, st.dictionaries(st.just("a"), values), st.dictionaries(st.just("b"), values))
def test_disjoint_parts_may_be_merged_in_any_order(stored: Json, first: Json, second: Json) -> None:
    assert merged(merged(stored, first), second) == merged(merged(stored, second), first)


@given(objects, objects)
def test_everything_sent_is_there_and_everything_else_is_unchanged(stored: Json, sent: Json) -> None:
    result = paths(merged(stored, sent))

    for path, leaf in paths(sent).items():
        assert leaf == {} or result[path] == leaf
    for path, leaf in paths(stored).items():
        replaced = any(path[: len(other)] == other[: len(path)] for other in paths(sent))
        assert replaced or result[path] == leaf


@given(objects, objects)
def test_neither_input_is_modified(stored: Json, sent: Json) -> None:
    before = copy.deepcopy((stored, sent))

    merged(stored, sent)

    assert (stored, sent) == before


def test_objects_merge_and_everything_else_replaces() -> None:
    stored: Json = {"o": {"a": 1, "b": {"x": 1}}, "l": [{"a": 1}], "s": "old", "n": 1}

    assert merged(stored, {"o": {"b": {"y": 2}}, "l": [{"b": 2}], "s": {"now": "an object"}, "n": None}) == {
        "o": {"a": 1, "b": {"x": 1, "y": 2}},
        "l": [{"b": 2}],
        "s": {"now": "an object"},
        "n": None,
    }
    assert merged(stored, {"o": 5}) == {"l": [{"a": 1}], "s": "old", "n": 1, "o": 5}
