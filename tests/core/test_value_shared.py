"""Values with shared parts: each occurrence is written out, so a few lines of code can make an endless one."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core import canonical
from onceward.core.fingerprint import fingerprint
from onceward.core.outcome import pack
from onceward.core.scalar import Unkeepable
from onceward.core.value import decode, encode
from onceward.errors import InvalidKey

MEBIBYTE = 1024**2


@dataclass
class Pair:
    left: object
    right: object


def nested(leaf: object, levels: int, hold: Callable[[object], object]) -> object:
    for _ in range(levels):
        leaf = hold(leaf)
    return leaf


ENDLESS: dict[str, object] = {
    "lists": nested([1], 60, lambda part: [part, part]),
    "wide lists of few levels": nested([1], 7, lambda part: [part] * 1000),
    "tuples": nested((1.5,), 60, lambda part: (part, part)),
    "dicts": nested({"a": 1.5}, 60, lambda part: {"a": part, "b": part}),
    "dicts of few levels": nested({"a": 1}, 7, lambda part: dict.fromkeys(map(str, range(500)), part)),
    "dataclasses": nested(1, 60, lambda part: Pair(part, part)),
    "one long text": ["x" * MEBIBYTE] * 100_000,
    "one long name": [{"x" * MEBIBYTE: 1}] * 100_000,
    "many bytes": [b"x" * MEBIBYTE] * 100_000,
}


@pytest.mark.parametrize("value", ENDLESS.values(), ids=ENDLESS)
def test_a_value_that_would_be_endless_is_given_up_quickly(value: object) -> None:
    assert pack(value, 16 * MEBIBYTE) is None


@pytest.mark.parametrize("name", ["lists", "wide lists of few levels", "tuples", "many bytes"])
def test_a_value_that_would_be_endless_takes_no_memory(name: str) -> None:
    tracemalloc.start()
    try:
        pack(ENDLESS[name], 16 * MEBIBYTE)
        assert tracemalloc.get_traced_memory()[1] < 256 * MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", ENDLESS.values(), ids=ENDLESS)
def test_a_value_that_would_be_endless_has_no_fingerprint(value: object) -> None:
    with pytest.raises(InvalidKey, match=r"larger than .* leave them out with ignore="):
        fingerprint(value)


@pytest.mark.parametrize(
    "value",
    [
        nested([1], 10, lambda part: [part, part]),
        nested((1.5,), 10, lambda part: (part, part)),
        nested({"a": "ä"}, 5, lambda part: {"a": part, "b": [part, part]}),
        nested(1, 8, lambda part: Pair(part, part)),
    ],
    ids=["lists", "tuples", "dicts", "dataclasses"],
)
def test_a_shared_part_that_fits_is_encoded_at_every_position(value: object) -> None:
    assert decode(encode(value, MEBIBYTE)) == value


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=20),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=5), inside, max_size=4) | st.tuples(inside),
    max_leaves=20,
)  # fmt: skip


@given(json_like)
def test_a_value_that_fits_is_never_refused(value: object) -> None:
    body = encode(value)

    assert encode(value, len(body)) == body


@given(json_like)
def test_a_refused_value_does_not_fit(value: object) -> None:
    size_max = len(encode(value)) // 8
    try:
        encode(value, size_max)
    except Unkeepable:
        assert len(encode(value)) > size_max


def test_any_number_of_parts_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "_PLAIN_ITEMS_MAX", 100)
    value = [{"number": number} for number in range(1000)]

    assert decode(encode(value, MEBIBYTE)) == value
    assert fingerprint(value) == fingerprint([dict(part) for part in value])


def test_parts_created_during_encoding_are_not_confused() -> None:
    """Their memory addresses are reused as soon as they are freed."""

    @dataclass
    class Fresh:
        number: int

        def __getattribute__(self, name: str) -> object:
            return (
                [object.__getattribute__(self, name), math.pi]
                if name == "number"
                else object.__getattribute__(self, name)
            )

    body = encode([Fresh(number) for number in range(50)])

    assert [body.count(b"[%d,3.14" % number) for number in range(50)] == [1] * 50
