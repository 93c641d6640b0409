"""Batches over HTTP: items in order, each with its own result, and the limits of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.ingest_hub import (
    LETTER,
    PLAIN,
    events,
    ingest_hub,
    insert,
    inserted,
    newsletter,
    problem,
    row_counts,
    rows,
    thought,
)

from onceward.hub.config.config import IngestSettings, setting_types
from onceward.hub.config.setting import WholeNumber
from onceward.hub.db.engine import Database
from onceward.hub.ingest.entries.insert import ITEMS_MAX

made = pytest.mark.usefixtures("database")


def test_a_bad_item_does_not_spoil_the_others_and_the_order_is_kept(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    items = [
        thought(1, "one"),
        "no object",
        thought(2, "two"),
        {"source": "notes", "colour": "red"},
        thought(1, "one, edited"),
        PLAIN,
        thought(9, idempotency_policy_key="unknown"),
    ]
    with ingest_hub(database_url, tmp_path) as client:
        answer = inserted(client, {"items": items})
        results = answer["results"]
        emitted, stored = events(client), rows(database, "pkm")
        again = inserted(client, {"items": items[:1]})["results"]

    actions = [one["action"] for one in results]
    assert actions == ["inserted", "failed", "inserted", "failed", "updated", "inserted", "failed"]
    assert [one["index"] for one in results] == list(range(len(items)))
    assert answer["schema"] == "pkm"
    assert results[4]["duplicate_of_index"] == 0
    assert results[4]["id"] == results[0]["id"]
    for number, field in ((1, "payload"), (3, "colour"), (6, "idempotency_policy_key")):
        assert set(results[number]) == {"index", "action", "error"}
        assert results[number]["error"]["code"] == "badRequest"
        assert results[number]["error"]["errors"][0]["field"] == field
    assert [row["clean_text"] for row in stored] == ["one, edited", "two", None]
    assert [one["name"] for one in emitted].count("entry.inserted") == 3
    assert again[0]["changed"] is True


@made
def test_a_batch_sent_again_inserts_nothing_and_has_no_events(database_url: str, tmp_path: Path) -> None:
    items = [newsletter(f"<{number}>", f"s{number}") for number in range(50)]
    with ingest_hub(database_url, tmp_path) as client:
        first = inserted(client, {"items": items})["results"]
        count = len(events(client))
        again = inserted(client, {"items": items[::-1]})["results"]

        assert {one["action"] for one in first} == {"inserted"}
        assert {one["action"] for one in again} == {"skipped"}
        assert [one["id"] for one in again] == [one["id"] for one in first][::-1]
        assert len(events(client)) == count == 50


@made
def test_strict_fails_an_item_and_not_the_batch(database_url: str, tmp_path: Path) -> None:
    with ingest_hub(database_url, tmp_path) as client:
        inserted(client, {"items": [newsletter("<1>", "s1"), newsletter("<2>", "s2")]})
        both = newsletter("<1>", "s2")
        for all_strict, one_strict in ((True, False), (False, True)):
            sent = {"items": [both, newsletter("<3>", None), {**both, "strict": one_strict}], "strict": all_strict}
            results = inserted(client, sent)["results"]

            assert [one["action"] for one in results[1:]] in (["inserted", "failed"], ["skipped", "failed"])
            assert results[0]["action"] == ("failed" if all_strict else "skipped")
            assert results[2]["error"]["code"] == "conflict"


def test_batches_over_the_limits_are_refused_and_nothing_is_written(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    settings = IngestSettings(max_batch=3, max_batch_bytes=20_000, max_message_bytes=4096)
    mail = b"Message-ID: <1@b>\r\n\r\n" + b"x" * 4096
    headers = {"Content-Type": "message/rfc822"}
    with ingest_hub(database_url, tmp_path, settings) as client:
        there = row_counts(client, database)
        for key in (None, "k"):
            keyed = {} if key is None else {"Idempotency-Key": key}
            for answer in (
                insert(client, {"items": [PLAIN] * 4}, key and f"{key}-items"),
                insert(client, {**PLAIN, "capture_text": "x" * 20_000}, key),
                client.post("/normalize/email", json={**LETTER, "raw_text": "x" * 4096}, headers=keyed),
                client.post("/normalize/email", content=mail, headers={**headers, **keyed}),
            ):
                problem(answer, 413)
            assert row_counts(client, database) == there

        assert inserted(client, {"items": [PLAIN] * 3}, "fits")["results"][2]["action"] == "inserted"
        assert inserted(client, {"items": []})["results"] == []
        assert client.post("/normalize/email", content=mail[:4096], headers=headers).status_code == 200


def test_no_setting_allows_more_than_one_transaction_can_hold() -> None:
    kind = setting_types("ingest")["max_batch"]

    assert isinstance(kind, WholeNumber)
    assert kind.high == ITEMS_MAX


@made
def test_a_body_over_the_usual_limit_is_accepted_with_and_without_a_key(database_url: str, tmp_path: Path) -> None:
    text = "x" * 900_000
    with ingest_hub(database_url, tmp_path) as client:
        items = [thought(number, text) for number in range(3)]
        first = insert(client, {"items": items}, "large")
        again = insert(client, {"items": items}, "large")
        mail = client.post("/normalize/email", json={**LETTER, "raw_text": "y " * 1_000_000})

    assert [one["action"] for one in first.json()["results"]] == ["inserted"] * 3
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    assert mail.status_code == 200
