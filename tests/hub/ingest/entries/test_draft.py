"""Valid payloads, checked without a database."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.core.canonical import Json
from onceward.errors import InvalidInput
from onceward.hub.ingest.entries.columns import COLUMNS, TEXT_BYTES_MAX, WRITTEN
from onceward.hub.ingest.entries.draft import Draft, draft_of, drafts_of
from onceward.hub.ingest.entries.policy import SEEDS

POLICIES = {policy.policy_key: policy for policy in SEEDS}
THOUGHT: dict[str, Any] = {
    "source": "telegram",
    "content_type": "thought",
    "idempotency_policy_key": "telegram_thought_v1",
    "idempotency_key_primary": "tg:0:0",
}
PLAIN: dict[str, Any] = {"source": "manual"}


def draft(base: dict[str, Any], **columns: Json) -> Draft:
    return draft_of({**base, **columns}, POLICIES)


def refusal(base: dict[str, Any], **columns: Json) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        draft(base, **columns)
    return refused.value


def nested(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = {"a": value}
    return value


# Columns.


def test_an_unknown_column_is_named() -> None:
    error = refusal(PLAIN, colour="red", size=1)

    assert [name for name, _ in error.fields] == ["colour", "size"]
    assert "'colour', 'size'" in str(error)


def test_an_entry_is_written_in_the_order_of_its_columns() -> None:
    sent: dict[str, Json] = {name: f"the {name}" for name in TEXT_BYTES_MAX}
    made = draft(PLAIN, **sent, metadata={"ä": [1, 2.5, None]})

    assert dict(zip(WRITTEN, made.values, strict=True)) == {
        **sent,
        "metadata": '{"ä":[1,2.5,null]}',
        "idempotency_policy_id": None,
        "idempotency_key_primary": None,
        "idempotency_key_secondary": None,
    }


def test_a_row_that_was_read_back_is_a_valid_payload_and_assigned_columns_are_ignored() -> None:
    row: dict[str, Json] = dict.fromkeys(COLUMNS)
    row |= {**THOUGHT, "id": "whatever", "entry_id": "whatever", "created_at": 5, "updated_at": [], "metadata": {}}
    row |= {"idempotency_policy_id": 1, "reasons": {"any": "thing"}}

    assert draft(row).values == draft(THOUGHT).values


@pytest.mark.parametrize("name", [*TEXT_BYTES_MAX, "idempotency_key_primary", "idempotency_key_secondary"])
@pytest.mark.parametrize(
    "value", [5, 0, False, [], {}, ["x"], "a\0b", "\ud800"], ids=["5", "0", "no", "[]", "{}", "list", "nul", "half"]
)
def test_a_text_column_accepts_only_storable_text(name: str, value: Json) -> None:
    assert [field for field, _ in refusal(THOUGHT, **{name: value}).fields] == [name]


@pytest.mark.parametrize("name", TEXT_BYTES_MAX)
@pytest.mark.parametrize("letter", ["x", "ä", "🙂"])
def test_a_text_has_a_limit_in_bytes(name: str, letter: str) -> None:
    fits = letter * (TEXT_BYTES_MAX[name] // len(letter.encode()))
    base = {"source": "manual", "title": "ä"}

    assert fits in draft(base, **{name: fits}).values
    assert [field for field, _ in refusal(base, **{name: fits + letter}).fields] == [name]


def test_a_key_has_at_most_512_bytes_and_is_not_blank() -> None:
    assert draft(THOUGHT, idempotency_key_primary="k" * 512).primary == (1, "k" * 512)
    for bad in ("k" * 513, "ä" * 257, "", " \t\u2003"):
        assert refusal(THOUGHT, idempotency_key_primary=bad).fields[0][0] == "idempotency_key_primary"
        assert refusal(THOUGHT, idempotency_key_secondary=bad).fields[0][0] == "idempotency_key_secondary"


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        "text",
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": "x" * 65_536},
        {"a": "ä" * 32_768},
        {"a": ["\0"]},
        {"\0": 1},
        {"a": "\udfff"},
        nested(65),
    ],
    ids=["list", "text", "nan", "inf", "large", "large in bytes", "nul", "nul in a name", "half a character", "deep"],
)
def test_metadata_that_cannot_be_stored_is_refused(metadata: Json) -> None:
    assert "metadata" in str(refusal(PLAIN, metadata=metadata)) or "JSON" in str(refusal(PLAIN, metadata=metadata))


def test_metadata_may_be_deep_and_large_within_its_limits() -> None:
    assert draft(PLAIN, metadata=nested(64)).values[10].count("{") == 64
    many: Json = {"flat": [{}] * 100, "looks like NUL": "\\u0000", "deep text": "[" * 100}
    assert draft(PLAIN, metadata=many).values[10].count("{}") == 100
    assert draft(PLAIN, metadata=None).values[10] == "{}"


def test_endless_metadata_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless

    refusal(PLAIN, metadata=endless)


def test_a_payload_that_is_not_an_object_is_refused() -> None:
    nonsense: list[Any] = [None, [], "text", 5]
    for one in nonsense:
        with pytest.raises(InvalidInput, match="object"):
            draft_of(one, POLICIES)


def test_a_source_is_required() -> None:
    for source in (None, "", "  "):
        assert refusal({"source": source}).fields[0][0] == "source"


def test_strict_must_be_a_boolean() -> None:
    assert [draft(PLAIN, strict=value).is_strict for value in (True, False, None)] == [True, False, False]
    assert draft_of({**PLAIN, "strict": False}, POLICIES, strict=True).is_strict
    assert refusal(PLAIN, strict="yes").fields[0][0] == "strict"


# Fail closed.


@pytest.mark.parametrize(
    "source", ["email", "Email", " EMAIL ", "email-imap", "telegram", "\tTelegram_bot\n", "TELEGRAM2"]
)
def test_mail_and_telegram_without_a_policy_or_without_a_key_are_refused(source: str) -> None:
    refusal({"source": source})
    refusal({"source": source, "idempotency_policy_key": None, "idempotency_key_primary": None})
    for policy in ("telegram_thought_v1", "email_newsletter_v1"):
        refusal({"source": source, "content_type": "thought", "idempotency_policy_key": policy})
    refusal({"source": source, "idempotency_key_primary": "k"})


@pytest.mark.parametrize("source", ["manual", "mail", "my email", "tele gram", "instagram"])
def test_other_sources_without_keys_are_accepted(source: str) -> None:
    made = draft({"source": source})

    assert (made.policy, made.primary, made.secondary) == (None, None, None)
    assert made.values[0] == source


def test_source_and_content_type_are_compared_trimmed_in_lower_case_and_stored_unchanged() -> None:
    made = draft(THOUGHT, source=" Telegram ", content_type="NOTE")

    assert made.values[:2] == (" Telegram ", "NOTE")
    assert made.policy == POLICIES["telegram_thought_v1"]


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"idempotency_policy_key": "none_such"}, "idempotency_policy_key"),
        ({"idempotency_policy_key": ""}, "idempotency_policy_key"),
        ({"idempotency_policy_key": 1}, "idempotency_policy_key"),
        ({"idempotency_policy_key": "telegram_link_v1"}, "idempotency_policy_key"),
        ({"idempotency_policy_key": "email_newsletter_v1"}, "idempotency_policy_key"),
        ({"content_type": "thought/note"}, "idempotency_policy_key"),
        ({"content_type": None}, "idempotency_policy_key"),
        ({"source": "telegram_bot"}, "idempotency_policy_key"),
        ({"idempotency_policy_id": 2}, "idempotency_policy_id"),
        ({"idempotency_policy_id": True}, "idempotency_policy_id"),
        ({"idempotency_policy_id": "1"}, "idempotency_policy_id"),
        ({"idempotency_policy_key": None, "idempotency_policy_id": 1}, "idempotency_policy_key"),
        ({"idempotency_key_primary": None}, "idempotency_key_primary"),
        ({"idempotency_key_primary": None, "idempotency_key_secondary": "h"}, "idempotency_key_primary"),
    ],
)
def test_a_policy_must_exist_be_enabled_and_match(columns: dict[str, Json], field: str) -> None:
    assert [name for name, _ in refusal(THOUGHT, **columns).fields] == [field]


def test_a_disabled_policy_is_refused() -> None:
    thread = {"source": "email", "content_type": "correspondence_thread", "idempotency_key_primary": "k"}

    assert draft(thread, idempotency_policy_key="email_correspondence_thread_v1").primary == (4, "k")
    assert "disabled" in str(refusal(thread, idempotency_policy_key="email_correspondence_thread_v2"))


def test_keys_need_a_policy_for_every_source() -> None:
    for name in ("idempotency_key_primary", "idempotency_key_secondary"):
        assert refusal(PLAIN, **{name: "k"}).fields[0][0] == "idempotency_policy_key"
    assert refusal(PLAIN, idempotency_policy_id=1).fields[0][0] == "idempotency_policy_key"


def test_a_policy_needs_one_of_the_keys() -> None:
    news = {"source": "email", "content_type": "newsletter", "idempotency_policy_key": "email_newsletter_v1"}

    assert refusal(news).fields[0][0] == "idempotency_key_primary"


def test_the_secondary_key_alone_is_enough_if_it_is_an_identity() -> None:
    made = draft(
        {"source": "email", "content_type": "newsletter"},
        idempotency_policy_key="email_newsletter_v1",
        idempotency_key_secondary="day",
    )

    assert (made.primary, made.secondary) == (None, (3, "day"))


def test_each_of_many_payloads_has_its_own_error() -> None:
    drafts = drafts_of([PLAIN, {"source": "email"}, {"colour": 1}, THOUGHT], SEEDS)

    assert [isinstance(one, Draft) for one in drafts] == [True, False, False, True]
