"""A message that is delivered again, in any form, never erases stored fields."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hub.ingest.backfill.message_archives import file, mbox
from tests.hub.ingest.entries.payloads import events, stored, thought
from tests.hub.ingest.telegram.message_forms import MEDIA, Part, SampleMessage, bot_api_form, export_form

from onceward.core.canonical import Json
from onceward.hub.db.engine import Database
from onceward.hub.ingest.backfill.json_lines import JsonLines
from onceward.hub.ingest.backfill.mbox import Mbox
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.backfill.run import Backfill, Result, result_of
from onceward.hub.ingest.email.normalize import normalize_email, normalize_mail
from onceward.hub.ingest.entries.insert import insert_entries, insert_entry
from onceward.hub.ingest.entries.schema import PKM
from onceward.hub.ingest.payload import Payload
from onceward.hub.ingest.telegram import normalize_exported, normalize_telegram

# The fields that a normalizer always gives, null or not.
KEY_FIELDS = frozenset({"idempotency_policy_key", "idempotency_key_primary", "idempotency_key_secondary"})
# Columns that an enrichment may fill. The other ones are part of an entry's identity.
ENRICHED: dict[str, Json] = {
    "title": "A title",
    "author": "An author",
    "url": "https://example.com/enriched",
    "url_canonical": "https://example.com/enriched",
    "capture_text": "A transcript",
    "clean_text": "A transcript",
    "content_hash": "of the transcript",
    "external_ref": "ref:1",
}

Delivery: TypeAlias = Callable[[int], Payload]

REPLY = "From: Ada <ada@example.com>\nTo: bo@example.com\nCc: cy@example.com\nSubject: Re: Plan {number}\nMessage-ID: <{number}@example.com>\nIn-Reply-To: <0@example.com>\nDate: Tue, 17 Feb 2026 12:00:00 +0000\n\n{text}\n"  # fmt: skip


def message(number: int, text: str = "A thought", **more: Any) -> SampleMessage:
    return SampleMessage((Part(text),) if text else (), message_id=number, **more)


def from_export(sample: SampleMessage, *, old: bool = False) -> Payload:
    payload = normalize_exported(*export_form(sample, old=old))
    assert payload is not None
    return payload


def plain(number: int, text: str = "A thought", **more: Json) -> Payload:
    """Our own form, which has the fewest fields. The ids are those of `message`."""
    chat = bot_api_form(message(number))["chat"]["id"]
    return normalize_telegram({"text": text, "source": {"chat_id": chat, "message_id": number}, **more})


def reply(number: int, text: str = "Yes.") -> bytes:
    return REPLY.format(number=number, text=text).encode()


def short_reply(number: int, **more: Json) -> Payload:
    return normalize_email({"raw_text": "Yes.", "subject": f"Re: Plan {number}", **more})


# Every form of a message whose policy updates, from the one with the most fields to the one with the fewest.
FORMS: dict[str, Delivery] = {
    "update of the Bot API": lambda number: normalize_telegram(
        {"update_id": 1, "message": bot_api_form(message(number))}
    ),
    "message of the Bot API": lambda number: normalize_telegram(bot_api_form(message(number))),
    "media of the Bot API": lambda number: normalize_telegram(bot_api_form(message(number, "", media="voice"))),
    "export": lambda number: from_export(message(number)),
    "old export": lambda number: from_export(message(number), old=True),
    "media of an export": lambda number: from_export(message(number, "", media="voice")),
    "plain": plain,
    "plain note": lambda number: plain(number, content_type="note"),
    "mail": lambda number: normalize_mail(reply(number)),
    "mail of an archive": lambda number: normalize_mail(reply(number), backfill=True),
    "mail in parts": short_reply,
    "mail without text": lambda number: normalize_email({"raw_text": "", "subject": f"Re: Plan {number}"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_normalizer_omits_fields_that_the_message_does_not_have(form: str) -> None:
    payload = FORMS[form](1)

    assert payload.keys() >= KEY_FIELDS | {"source", "content_type", "metadata", "reasons"}
    assert empty_fields(payload) <= KEY_FIELDS
    assert empty_fields(metadata(payload)) == set()
    assert ("content_hash" in payload) is ("clean_text" in payload) is ("capture_text" in payload)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["single", "batch"])
def test_a_redelivered_message_keeps_added_fields(database: Database, form: str, way: str) -> None:
    sent = FORMS[form](1)
    missing = {name: value for name, value in ENRICHED.items() if not sent.get(name)}
    added: Json = {"summary": "short", "chat_title": "Kitchen", "cc": ["x@example.com"]}
    enriched = {**sent, **missing, "metadata": added}
    insert_entry(database, PKM, sent)
    insert_entry(database, PKM, enriched)
    before, log = stored(database), events(database)

    again = insert_entries(database, PKM, [sent] if way == "single" else [sent, sent])[-1]

    kept = {name for name, value in before[0].items() if value is not None}
    assert kept >= missing.keys()
    assert {name: stored(database)[0][name] for name in missing} == missing
    assert {name for name, value in stored(database)[0].items() if value is not None} == kept
    assert metadata_of(database)["summary"] == "short"
    assert again.action == "updated"
    if not any(metadata(sent).get(name) for name in ("chat_title", "cc")):
        assert (again.changed, stored(database), events(database)) == (False, before, log)


def test_a_short_form_after_an_export_keeps_author_chat_and_sender(database: Database) -> None:
    insert_entry(database, PKM, from_export(message(5, first_name="Ada", reply_to=4)))

    insert_entry(database, PKM, plain(5, "Edited"))

    (row,) = stored(database)
    found = metadata_of(database)
    assert (row["author"], row["clean_text"]) == ("Ada", "Edited")
    assert (found["chat_title"], found["sender_id"], found["reply_to_message_id"]) == ("Kitchen", 5, 4)
    assert found["source_time"] == "2023-11-14T22:13:20.000000Z"


def test_the_next_mail_of_a_thread_keeps_the_url_of_the_thread(database: Database) -> None:
    first = normalize_mail(reply(1, "First."))
    insert_entry(database, PKM, {**first, "url": "https://mail.example.com/1"})

    result = insert_entry(database, PKM, short_reply(1, source={"date": "2026-02-18"}, **{"from": "bo@example.com"}))

    (row,) = stored(database)
    assert (result.action, row["clean_text"], row["author"]) == ("updated", "Yes.", "bo@example.com")
    assert (row["url"], row["external_ref"]) == ("https://mail.example.com/1", "<1@example.com>")
    assert metadata_of(database)["cc"] == ["cy@example.com"]


def test_a_later_item_of_a_batch_with_fewer_fields_erases_nothing(database: Database) -> None:
    rich: Payload = {**plain(7), **ENRICHED, "metadata": {"a": {"b": 1}}}

    first, second = insert_entries(database, PKM, [rich, plain(7)])

    assert (first.action, second.action, second.duplicate_of_index) == ("inserted", "updated", 0)
    (row,) = stored(database)
    redelivered = {"capture_text", "clean_text", "content_hash", "external_ref"}
    assert {name: row[name] for name in ENRICHED.keys() - redelivered} == {
        name: value for name, value in ENRICHED.items() if name not in redelivered
    }
    assert metadata_of(database)["a"] == {"b": 1}


@pytest.mark.parametrize("column", [*ENRICHED, "metadata"])
def test_an_explicit_null_from_a_caller_clears_the_column(database: Database, column: str) -> None:
    insert_entry(database, PKM, {**thought(1), **ENRICHED, "metadata": {"a": 1}})

    result = insert_entry(database, PKM, {**bare(1), column: None})

    (row,) = stored(database)
    expected: dict[str, Any] = {**ENRICHED, "metadata": '{"a":1}', column: "{}" if column == "metadata" else None}
    assert {name: row[name] for name in expected} == expected
    assert result.outcome.changed == (column,)


@pytest.mark.parametrize("own", [{}, {"external_ref": None}], ids=["absent", "null"])
def test_an_update_of_the_stored_version_without_a_reference_is_not_stale(
    database: Database, own: dict[str, Json]
) -> None:
    """Programs send back the metadata that they read, with additions."""
    made = insert_entry(database, PKM, normalize_telegram(bot_api_form(message(1)))).row or {}
    keys = ("source", "content_type", "idempotency_key_primary")
    sent = {"idempotency_policy_key": "telegram_thought_v1", **{name: made[name] for name in keys}, **own}

    result = insert_entry(database, PKM, {**sent, "metadata": {**metadata(made), "summary": "short"}})

    assert (result.changed, result.stale, metadata_of(database)["summary"]) == (True, False, "short")
    assert stored(database)[0]["external_ref"] == own.get("external_ref", made["external_ref"])


def test_an_explicit_null_in_the_metadata_of_a_message_clears_only_that_field(database: Database) -> None:
    insert_entry(database, PKM, plain(1, metadata={"a": 1, "b": {"c": 2, "d": 3}}))

    insert_entry(database, PKM, plain(1, metadata={"b": {"c": None}}))

    found = metadata_of(database)
    assert (found["a"], found["b"]) == (1, {"c": None, "d": 3})


@pytest.mark.parametrize("archive", ["mbox", "lines"])
def test_a_backfill_over_enriched_entries_erases_nothing(database: Database, tmp_path: Path, archive: str) -> None:
    sent = normalize_mail(reply(1)) if archive == "mbox" else plain(1)
    insert_entry(database, PKM, sent)
    missing = {name: value for name, value in ENRICHED.items() if not sent.get(name)}
    insert_entry(database, PKM, {**sent, **missing, "metadata": {"summary": "short"}})
    before = stored(database)
    source: Any
    if archive == "mbox":
        source = Mbox(file(tmp_path, "a.mbox", mbox(reply(1).decode())), Normalizer())
    else:
        chat = bot_api_form(message(1))["chat"]["id"]
        line = {"text": "A thought", "source": {"chat_id": chat, "message_id": 1}}
        source = JsonLines(file(tmp_path, "a.jsonl", json.dumps(line)), Normalizer())

    class Sink:
        def insert(self, payloads: Any) -> list[Result]:
            return [result_of(one) for one in insert_entries(database, PKM, payloads)]

    summary = Backfill(source, Sink(), None, report=print).run()

    assert dict(summary.actions) == {"unchanged": 1}
    assert stored(database) == before


# Any sequence of deliveries.

words = st.sampled_from(["A thought", "See https://a.example/x", "", "Other words"])
samples = st.builds(
    message,
    number=st.just(0),
    text=words,
    edited=st.none() | st.integers(1_700_000_000, 1_700_000_003),
    reply_to=st.none() | st.just(4),
    forwarded_from=st.none() | st.just("Grace"),
    via_bot=st.none() | st.just("gif"),
    media=st.none() | st.sampled_from(list(MEDIA)),
)
values = st.none() | st.sampled_from(["x", "y"])
columns = st.dictionaries(st.sampled_from(list(ENRICHED)), values, max_size=3)
extra = st.dictionaries(st.sampled_from(["chat_title", "media", "cc", "own"]), values, max_size=2)


def telegram_delivery(form: str, sent: SampleMessage, number: int) -> Payload:
    """The message in one of its forms, always as a thought, so that all forms are the same entry."""
    sent = SampleMessage(
        **{name: getattr(sent, name) for name in SampleMessage.__dataclass_fields__} | {"message_id": number}
    )
    if form in {"export", "old"}:
        payload = normalize_exported(*export_form(sent, old=form == "old"), content_type="thought")
        assert payload is not None
        return payload
    if form == "live":
        return normalize_telegram({"message": bot_api_form(sent), "content_type": "thought"})
    return plain(number, sent.text or "nothing", content_type="thought")


def mail_delivery(form: str, sent: SampleMessage, number: int) -> Payload:
    subject = f"Re: Plan {number}"
    if form == "plain":
        return normalize_email({"raw_text": sent.text, "subject": subject})
    head = "" if sent.media is None else "Cc: cy@example.com\n"
    if form == "export":
        head += "From: Ada <ada@example.com>\nMessage-ID: <a@b>\n"
    if sent.edited is not None:
        head += f"Date: Tue, 17 Feb 2026 12:00:0{sent.edited % 10} +0000\n"
    return normalize_mail(f"Subject: {subject}\n{head}\n{sent.text}".encode(), backfill=form == "old")


@st.composite
def deliveries(draw: st.DrawFn) -> Sequence[tuple[Delivery, Mapping[str, Json], Mapping[str, Json]]]:
    """Deliveries of one entry: a function that makes each, and the columns and metadata that its caller adds."""
    make = draw(st.sampled_from([telegram_delivery, mail_delivery]))
    found: list[tuple[Delivery, Mapping[str, Json], Mapping[str, Json]]] = []
    for _ in range(draw(st.integers(2, 5))):
        form, sent = draw(st.sampled_from(["live", "export", "old", "plain"])), draw(samples)
        own = draw(st.just({}) | columns), draw(st.just({}) | extra)

        def delivery(number: int, form: str = form, sent: SampleMessage = sent) -> Payload:
            return make(form, sent, number)

        found.append((delivery, *own))
    return found


numbers = itertools.count(1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(sequence=deliveries(), together=st.booleans())
def test_no_sequence_of_deliveries_turns_a_value_into_null(
    database: Database,
    sequence: Sequence[tuple[Delivery, Mapping[str, Json], Mapping[str, Json]]],
    together: bool,
) -> None:
    number = next(numbers)
    payloads: list[Payload] = []
    for delivery, own, own_metadata in sequence:
        made = delivery(number)
        payloads.append({**made, **own, "metadata": {**metadata(made), **own_metadata}})
    if together:
        results = insert_entries(database, PKM, payloads)
    else:
        results = [insert_entry(database, PKM, payload) for payload in payloads]

    rows = [result.row or {} for result in results]
    assert len({row["id"] for row in rows}) == 1
    for before, after, (_, own, own_metadata) in zip(rows[:-1], rows[1:], sequence[1:], strict=True):
        assert lost_fields(before, after) <= empty_fields(own)
        assert lost_fields(metadata(before), metadata(after)) <= empty_fields(own_metadata)


def lost_fields(before: Mapping[str, Json], after: Mapping[str, Json]) -> set[str]:
    """Return the fields that have lost their value: null, or an empty text or list."""
    return {name for name, value in before.items() if value not in (None, "", []) and after.get(name) in (None, "", [])}


def empty_fields(values: Mapping[str, Json]) -> set[str]:
    return {name for name, value in values.items() if value in (None, "", [])}


def metadata(payload: Mapping[str, Json]) -> dict[str, Json]:
    found = payload["metadata"]
    assert isinstance(found, dict)
    return found


def metadata_of(database: Database) -> dict[str, Any]:
    (row,) = stored(database)
    found: dict[str, Any] = json.loads(row["metadata"])
    return found


def bare(number: int) -> Payload:
    """A payload with only the fields that identify its entry."""
    return {name: value for name, value in thought(number).items() if name in KEY_FIELDS | {"source", "content_type"}}
