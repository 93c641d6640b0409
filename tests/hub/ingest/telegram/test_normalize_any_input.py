"""Any input gives an entry or a refusal with its reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hub.ingest.telegram.entry_checks import COLUMNS
from tests.hub.ingest.telegram.message_forms import MEDIA, Part, SampleMessage, bot_api_form, export_form

from onceward.core.json_text import compact, has_nul
from onceward.errors import InvalidInput
from onceward.hub.ingest.telegram import normalize_exported, normalize_telegram

texts = st.text(max_size=8) | st.sampled_from(
    ["", "\0", "\ud83d", "5", "-5", "https://a.example/", "a.example", "9" * 30]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**31, 2**52, 2**63, -(2**63), 10**100])
    | st.floats()
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)

SAMPLE = SampleMessage(
    (Part("🙂 "), Part("https://a.example/", "link"), Part(" or "), Part("here", "text_link", "https://b.example/")),
    edited=1_700_000_060,
    last_name="L",
    reply_to=6,
    forwarded_from="Grace",
    via_bot="gif",
)
FORM: dict[str, Any] = {
    "text": "🙂 https://a.example/ or here",
    "source": {"chat_id": 1, "message_id": 2, "url": "https://c.example/", "date": 1, "edit_date": "2023-11-15"},
    "entities": [{"type": "text_link", "offset": 24, "length": 4, "url": "https://b.example/"}],
    "content_type": "note",
    "title": "T",
    "author": "A",
    "metadata": {"a": [1], "source_time": 5},
}
RICH = {"rich_message": {"blocks": [{"type": "list", "items": [{"blocks": [{"type": "paragraph", "text": ["a", {"type": "url", "text": "b", "url": "x"}]}]}]}]}}  # fmt: skip
SENDER = {"sender_chat": {"id": -5, "title": "News"}, "author_signature": "Ada", "from": None}


def check_storable(payload: dict[str, Any] | None) -> None:
    """Check that both databases can store an entry."""
    if payload is None:
        return
    assert list(payload) == [name for name in COLUMNS if name in payload]
    assert payload.keys() >= {"source", "content_type", "metadata", *COLUMNS[-4:]}
    assert all(value is not None for name, value in payload.items() if name not in COLUMNS[-4:])
    assert not has_nul(payload)
    compact(payload).encode()
    assert payload["content_type"] in {"thought", "note", "link"}
    assert payload["idempotency_key_primary"]
    assert all(payload["reasons"])


def check_normalize(normalize: Callable[..., dict[str, Any] | None], *sent: Any) -> None:
    before = copy.deepcopy(sent)
    try:
        check_storable(normalize(*sent))
    except InvalidInput as refusal:
        assert str(refusal)  # noqa: PT017  # either way it is an answer
    assert sent == before, "what was sent is left as it was"


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path in the value, and so every field that a normalizer could read."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, item in inner for place in places(item, (*path, name)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = replaced(changed[path[0]], path[1:], new)
    return changed


LIVE: list[dict[str, Any]] = [
    FORM,
    {"update_id": 1, "message": bot_api_form(SAMPLE), "content_type": "link"},
    bot_api_form(SampleMessage(())) | RICH | SENDER,
    *(bot_api_form(SampleMessage((Part("a"),), media=kind)) for kind in MEDIA),
]
EXPORTED: list[dict[str, Any]] = [
    dict(zip(("chat", "message"), export_form(sample), strict=True))
    for sample in (SAMPLE, *(SampleMessage((), media=kind) for kind in MEDIA))
]
EXPORTED.append({"chat": {"type": "bot_chat", "id": 1}, "message": {"id": 1} | RICH})


@given(sent=values)
def test_any_json_is_an_entry_or_refused(sent: Any) -> None:
    check_normalize(normalize_telegram, sent)
    check_normalize(normalize_exported, sent, sent)


@pytest.mark.parametrize("number", range(len(LIVE)))
def test_every_field_of_a_message_may_hold_anything(number: int) -> None:
    assert_any_value(LIVE[number], lambda sent: check_normalize(normalize_telegram, sent))


@pytest.mark.parametrize("number", range(len(EXPORTED)))
def test_every_field_of_an_exported_message_may_hold_anything(number: int) -> None:
    def normalize(sent: Any) -> None:
        chat, message = (sent.get("chat"), sent.get("message")) if isinstance(sent, dict) else (sent, sent)
        check_normalize(normalize_exported, chat, message)

    assert_any_value(EXPORTED[number], normalize)


# One of each kind, so that every field meets every kind of value without any luck.
KINDS: list[Any] = [
    None, True, False, 0, -1, 2**63, 10**5000, 1.5, float("nan"), "", " ", "\0", "\ud83d", "5", "9" * 30, "x.example", [], [5],
    [[]], ["a"], [None], {}, {"a": 1}, {"type": "url"}, [{}], [{"text": 5}],
]  # fmt: skip


def assert_any_value(message: dict[str, Any], normalize: Callable[[Any], None]) -> None:
    for place in places(message):
        for value in KINDS:
            normalize(replaced(message, place, value))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_two_fields_may_hold_anything_at_once(data: st.DataObject) -> None:
    sent: Any = data.draw(st.sampled_from(LIVE))
    for _ in range(2):
        sent = replaced(sent, data.draw(st.sampled_from(places(sent))), data.draw(values))

    check_normalize(normalize_telegram, sent)
