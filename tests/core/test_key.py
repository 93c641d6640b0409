"""Valid keys, scopes and key templates; a bad one is refused with its reason before anything is written."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.key import KEY_BYTES_MAX, SCOPE_BYTES_MAX, check_key, check_namespace, check_scope, clip, fill
from onceward.errors import InvalidKey


@pytest.mark.parametrize(
    "key", ["a", " ", "a b", "a:b", "%", "\n", "é", "😀", "x" * KEY_BYTES_MAX, "é" * (KEY_BYTES_MAX // 2)]
)
def test_any_text_within_the_limit_is_a_key(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "empty"),
        (None, "must be text, not NoneType"),
        (7, "must be text, not int"),
        (b"bytes", "must be text, not bytes"),
        ("a\x00b", "NUL"),
        ("\ud800", "surrogate"),
        ("x" * (KEY_BYTES_MAX + 1), "the key may have at most 1024 bytes, got 1025"),
        ("é" * (KEY_BYTES_MAX // 2) + "x", "the key may have at most 1024 bytes, got 1025"),
    ],
)
def test_any_other_key_is_refused_with_the_reason(key: object, reason: str) -> None:
    with pytest.raises(InvalidKey, match=reason) as caught:
        check_key(key)

    assert caught.value.code == "invalid-key"
    assert not caught.value.retryable


def test_a_scope_has_its_own_limit() -> None:
    assert check_scope("x" * SCOPE_BYTES_MAX)
    with pytest.raises(InvalidKey, match="the scope may have at most 255 bytes, got 256"):
        check_scope("x" * (SCOPE_BYTES_MAX + 1))


@pytest.mark.parametrize("namespace", ["default", "a", "A.b_c-9", "x" * 64])
def test_a_namespace_is_a_short_plain_name(namespace: str) -> None:
    assert check_namespace(namespace) == namespace


@pytest.mark.parametrize("namespace", ["", "a:b", "a b", "x" * 65, "é", "a\n", None, 1])
def test_a_namespace_that_could_be_mistaken_for_another_is_refused(namespace: object) -> None:
    with pytest.raises(InvalidKey):
        check_namespace(namespace)


@given(st.text(st.characters(codec=None, exclude_categories=[])), st.integers(0, 12))
def test_a_clipped_label_fits_and_is_valid_text(text: str, bytes_max: int) -> None:
    label = clip(text, bytes_max)

    assert len(label.encode()) <= bytes_max
    assert "\x00" not in label


def test_a_label_that_fits_is_unchanged() -> None:
    assert clip("naïve 😀", 255) == "naïve 😀"
    assert clip("no\x00thing", 255) == "nothing"
    assert clip("😀😀", 7) == "😀"


class Kind(enum.Enum):
    CARD = "card"
    NOTHING = None


@dataclasses.dataclass
class Order:
    number: int
    lines: list[str]


@pytest.mark.parametrize(
    ("template", "values", "key"),
    [
        ("charge:{order_id}", {"order_id": "42"}, "charge:42"),
        ("charge:{order_id}", {"order_id": 42, "amount": 5}, "charge:42"),
        ("{a}:{b}", {"a": "x", "b": "y"}, "x:y"),
        ("{order.number}", {"order": Order(7, ["a"])}, "7"),
        ("{order.lines[0]}", {"order": Order(7, ["a"])}, "a"),
        ("{kind}", {"kind": Kind.CARD}, "card"),
        ("{id}", {"id": uuid.UUID(int=1)}, "00000000-0000-0000-0000-000000000001"),
        ("{day}", {"day": datetime.date(2024, 1, 2)}, "2024-01-02"),
        ("{at}", {"at": datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.UTC)}, "2024-01-02T03%3A04%3A00+00%3A00"),
        ("{n}", {"n": decimal.Decimal("1.50")}, "1.50"),
        ("literal", {}, "literal"),
        ("{{{a}}}", {"a": 1}, "{1}"),
        ("{a}", {"a": "50%:x"}, "50%25%3Ax"),
        ("{a}/{b}", {"a": "x/y", "b": "z"}, "x%2Fy/z"),
        ("{a}-to-{b}", {"a": "2024-01-01", "b": "c"}, "2024%2D01%2D01-to-c"),
        ("{id}:v1", {"id": "a-b/c"}, "a-b/c:v1"),
    ],
)
def test_a_template_is_filled(template: str, values: dict[str, object], key: str) -> None:
    assert fill(template, values) == key


@pytest.mark.parametrize(
    ("template", "values", "reason"),
    [
        ("{a}", {}, "'a'"),
        ("{}", {"a": 1}, "''"),
        ("{0}", {"a": 1}, "'0'"),
        ("{a.b}", {"a": 1}, "'a.b'"),
        ("{a[0]}", {"a": 1}, r"'a\[0\]'"),
        ("{a[]}", {"a": [1]}, r"'a\[\]'"),
        ("{a", {"a": 1}, "malformed"),
        ("a}", {"a": 1}, "malformed"),
        ("{a:>10}", {"a": 1}, "must not format"),
        ("{a!r}", {"a": 1}, "must not format"),
        ("{a}", {"a": None}, "identifies the work"),
        ("{a}", {"a": True}, "identifies the work"),
        ("{a}", {"a": Kind.NOTHING}, "identifies the work"),
        ("{a}", {"a": 1.5}, "float"),
        ("{a}", {"a": b"x"}, "bytes"),
        ("{a}", {"a": [1]}, "list"),
        ("{a}", {"a": {"b": 1}}, "dict"),
        ("{a}", {"a": Order(1, [])}, "Order"),
        ("{a}", {"a": ""}, "empty"),
        ("", {}, "empty"),
        ("{a}", {"a": "\ud800"}, "surrogate"),
        ("{a}", {"a": "x" * 1025}, "at most 1024 bytes, got 1025"),
        ("{a}{b}", {"a": "x", "b": "y"}, "no separator between"),
        ("{a}and{b}", {"a": "x", "b": "y"}, "no separator between"),
        ("{a}%{b}", {"a": "x", "b": "y"}, "no separator between"),
    ],
)
def test_a_template_that_cannot_give_one_key_is_refused(template: str, values: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidKey, match=reason):
        fill(template, values)


pieces = st.text(st.sampled_from("a1%:-/ 2.5A3"), min_size=1, max_size=3)


@pytest.mark.parametrize("between", [":", "-", " / ", "--", "-and-", ".2-", "->", "é-", "→", "{{", "}}{{", "_"])
@given(values=st.tuples(pieces, pieces, pieces))
def test_two_sets_of_values_never_give_one_key(between: str, values: tuple[str, str, str]) -> None:
    """The same text, split at two places: without encoding, both would be one key."""
    one, two, three = values
    mark = between.format()

    left = fill(f"x:{{a}}{between}{{b}}", {"a": one + mark + two, "b": three})
    right = fill(f"x:{{a}}{between}{{b}}", {"a": one, "b": two + mark + three})

    assert left != right


def test_a_value_is_escaped_the_same_way_at_every_position() -> None:
    assert fill("{a}-{b}:{a}", {"a": "x-y", "b": "z"}) == "x%2Dy-z:x%2Dy"
