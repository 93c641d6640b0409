"""Valid messages, their defaults, and the window of their channel."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import InvalidInput, TooLarge
from onceward.hub.turns.model.message import MESSAGE_BYTES_MAX, window_seconds
from onceward.turns import UserMessage


def test_omitted_fields_follow_from_the_principal() -> None:
    message = UserMessage(content="hello", principal="ada").ready()

    assert (message.tenant_id, message.customer_id, message.agent_id, message.channel) == (
        "ada",
        "ada",
        "default",
        "api",
    )
    assert message.session_key == "ada:default:ada:api"
    assert message.message_id is None
    assert message.fingerprint


def test_a_custom_session_key_is_unchanged() -> None:
    assert UserMessage(content="hello", session_key="s:1").ready().session_key == "s:1"


def test_two_customers_never_share_a_session_by_their_names() -> None:
    first = UserMessage(content="x", tenant_id="t", agent_id="a:b", customer_id="c").ready()
    second = UserMessage(content="x", tenant_id="t", agent_id="a", customer_id="b:c").ready()

    assert first.session_key != second.session_key


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant_id", "a b"),
        ("tenant_id", "ä"),
        ("tenant_id", "x" * 65),
        ("tenant_id", "a:b"),
        ("customer_id", "x" * 256),
        ("agent_id", " "),
        ("channel", ""),
        ("channel", "x" * 33),
        ("content", " "),
        ("content", "a\0b"),
        ("content", "\ud800"),
        ("message_id", ""),
        ("message_id", "x" * 256),
        ("idempotency_key", "\0"),
        ("session_key", "x" * 513),
        ("customer_id", ":" * 200),
        ("metadata", {"a": ["\0"]}),
    ],
    ids=lambda value: repr(value)[:20].encode("ascii", "replace").decode(),
)
def test_an_unstorable_field_is_refused_by_its_name(field: str, value: object) -> None:
    fields: dict[str, Any] = {"content": "hello", "tenant_id": "t", field: value}

    with pytest.raises(InvalidInput):
        UserMessage(**fields).ready()


def test_a_field_that_is_too_long_is_too_large() -> None:
    with pytest.raises(TooLarge):
        UserMessage(content="x" * (MESSAGE_BYTES_MAX + 1)).ready()
    with pytest.raises(TooLarge):
        UserMessage(content="x", metadata={"a": "x" * MESSAGE_BYTES_MAX}).ready()


def test_the_fingerprint_covers_everything_but_the_key_and_the_principal() -> None:
    def digest(**fields: Any) -> str | None:
        return UserMessage(**{"content": "hello", **fields}).ready().fingerprint

    assert digest() == digest(idempotency_key="k")
    assert digest() == digest(principal="other")
    others = [
        digest(content="Hello"), digest(tenant_id="t"), digest(customer_id="c"), digest(agent_id="a"),
        digest(channel="web"), digest(message_id="m"), digest(session_key="s"), digest(metadata={"a": 1}),
    ]  # fmt: skip
    assert len({digest(), *others}) == len(others) + 1


@pytest.mark.parametrize(
    ("channel", "seconds"),
    [
        ("web", 0.6), ("whatsapp", 1.2), ("telegram", 1.0), ("sms", 0.8), ("slack", 0.8), ("teams", 0.8),
        ("email", 0.0), ("voice", 0.0), ("api", 0.0), ("something else", 0.0),
    ],
)  # fmt: skip
def test_each_channel_has_its_own_window(channel: str, seconds: float) -> None:
    assert window_seconds(channel) == seconds


def test_a_window_is_clamped_to_its_limits() -> None:
    assert window_seconds("web", {"web": 50}) == 0.2
    assert window_seconds("web", {"web": 60_000}) == 3.0
    assert window_seconds("web", {"web": 0}) == 0.0
