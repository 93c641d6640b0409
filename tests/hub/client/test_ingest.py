"""`hub.ingest` against a hub: every method, awaited and waiting."""

from __future__ import annotations

import inspect
from typing import Any
from uuid import uuid4

import pytest
from tests.hub.client.conftest import RunWithHub
from tests.hub.client.test_reference import public, words

from onceward import errors
from onceward.hub.client import BlockingHub, BlockingIngest, Hub, Ingest

MAIL = b"From: Ada <ada@example.com>\r\nSubject: Lunch?\r\nMessage-ID: <%s@example.com>\r\n\r\nAt noon?\r\n"


def test_a_message_is_normalized_inserted_and_found_again(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        number = uuid4().int % 10**12
        message = {"text": "Buy milk", "source": {"chat_id": 7, "message_id": number}}
        payload = await hub.ingest.normalize_telegram(message)
        first = await hub.ingest.insert_entry(payload, idempotency_key=f"thought-{number}")
        replayed = await hub.ingest.insert_entry(payload, idempotency_key=f"thought-{number}")
        again = await hub.ingest.insert_entry({**payload, "title": "Shopping"})

        assert payload["idempotency_key_primary"] == f"tg:7:{number}"
        assert (first.action, first.changed, first.schema, first.matched_on) == ("inserted", True, "pkm", None)
        assert replayed == first
        assert (again.action, again.changed, again.matched_on) == ("updated", True, "primary")
        assert first.entry is not None
        assert again.entry is not None
        assert (again.entry.id, again.entry.title) == (first.entry.id, "Shopping")
        assert again.entry.updated_at > first.entry.created_at
        assert first.event_id is not None

    run_with_hub(url, use)


def test_mail_is_normalized_from_its_parts_and_from_its_raw_form(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        raw = MAIL % uuid4().hex.encode()
        mail = await hub.ingest.normalize_email(raw)
        thread = await hub.ingest.normalize_email(
            raw, content_type="correspondence", received_at="2026-02-17T12:00:00Z"
        )
        parts = await hub.ingest.normalize_email(
            {"raw_text": "At noon?", "from": "ada@example.com", "subject": "Re: Lunch?"}
        )

        assert mail["content_type"] == "newsletter"
        assert thread["idempotency_key_primary"] == parts["idempotency_key_primary"]
        with pytest.raises(errors.InvalidInput, match="content_type: only allowed with a mail as bytes"):
            await hub.ingest.normalize_email({}, content_type="newsletter")

    run_with_hub(url, use)


def test_a_batch_has_a_result_for_each_item_and_a_refusal_is_raised(url: str, run_with_hub: RunWithHub) -> None:
    def newsletter(primary: str, secondary: str) -> dict[str, object]:
        return {
            "source": "email",
            "content_type": "newsletter",
            "idempotency_policy_key": "email_newsletter_v1",
            "idempotency_key_primary": primary,
            "idempotency_key_secondary": secondary,
        }

    async def use(hub: Hub) -> None:
        one, two = uuid4().hex, uuid4().hex
        wrong: dict[str, object] = {"source": "notes", "colour": "red"}
        items = [newsletter(one, one), wrong, newsletter(two, two), newsletter(one, one)]
        results = await hub.ingest.insert_entries(iter(items))

        assert [result.action for result in results] == ["inserted", "failed", "inserted", "skipped"]
        assert [result.index for result in results] == [0, 1, 2, 3]
        assert results[1].entry is None
        assert "colour" in (results[1].error or "")
        assert results[3].duplicate_of_index == 0
        split = await hub.ingest.insert_entry(newsletter(one, two))
        assert results[2].entry is not None
        assert split.split_with == (results[2].entry.id,)
        with pytest.raises(errors.Conflict):
            await hub.ingest.insert_entry(newsletter(one, two), strict=True)
        (failed,) = await hub.ingest.insert_entries([newsletter(one, two)], strict=True)
        assert failed.action == "failed"
        with pytest.raises(errors.InvalidInput) as refused:
            await hub.ingest.insert_entry({"source": "email"})
        assert refused.value.fields[0][0] == "idempotency_policy_key"

    run_with_hub(url, use)


def test_policies_and_the_mode_can_be_read_and_changed(url: str) -> None:
    with BlockingHub(url) as hub:
        policy_key = f"songs_{uuid4().hex}"
        made = hub.ingest.put_policy(
            policy_key, source="songs", content_type="song", conflict_action="update", update_fields=["title"]
        )
        changed = hub.ingest.put_policy(
            policy_key,
            source="songs",
            content_type="song",
            conflict_action="skip",
            enabled=False,
            secondary_role="hint",
        )

        assert (made.update_fields, made.enabled, made.secondary_role) == (("title",), True, "identity")
        assert (changed.policy_id, changed.conflict_action) == (made.policy_id, "skip")
        assert (changed.update_fields, changed.enabled, changed.secondary_role) == (("title",), False, "hint")
        fields: dict[str, Any] = {"source": "songs", "content_type": "song", "conflict_action": "skip"}
        assert hub.ingest.put_policy(policy_key, **fields) == changed
        changed = hub.ingest.put_policy(policy_key, update_fields=None, **fields)
        assert (changed.update_fields, changed.enabled, changed.secondary_role) == (None, False, "hint")
        assert changed in hub.ingest.policies()
        assert changed not in hub.ingest.policies("pkm_test")
        assert hub.ingest.set_test_mode(enabled=True)
        assert hub.ingest.test_mode()
        assert not hub.ingest.set_test_mode(enabled=False)
        assert not hub.ingest.test_mode()


def test_both_clients_and_the_reference_have_every_method_and_argument() -> None:
    verbs = public(Ingest)

    assert verbs == public(BlockingIngest)
    for name in verbs:
        assert inspect.signature(getattr(BlockingIngest, name)) == inspect.signature(getattr(Ingest, name))
    arguments = {name for verb in verbs for name in inspect.signature(getattr(Ingest, verb)).parameters} - {"self"}
    assert verbs | arguments <= words()
