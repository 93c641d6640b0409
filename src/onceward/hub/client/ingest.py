"""`hub.ingest`: normalize messages, and insert entries once, under the policies of the hub's active schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import EllipsisType
from typing import Any

from onceward.core.canonical import Json
from onceward.errors import InvalidInput
from onceward.hub.client import responses
from onceward.hub.client.connection import HubConnection


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored entry."""

    id: str
    entry_id: int
    created_at: datetime
    updated_at: datetime
    source: str
    content_type: str | None
    title: str | None
    author: str | None
    url: str | None
    url_canonical: str | None
    capture_text: str | None
    clean_text: str | None
    content_hash: str | None
    external_ref: str | None
    metadata: dict[str, Json]
    idempotency_policy_id: int | None
    idempotency_key_primary: str | None
    idempotency_key_secondary: str | None


@dataclass(frozen=True, slots=True)
class EntryInserted:
    """Result of inserting a payload.

    Attributes:
        action: `inserted`, `updated` or `skipped`, or `failed` for an item of a batch.
        entry: The stored entry, or None if the item failed.
        changed: False for an update that changed nothing.
        schema: The schema of the entry.
        matched_on: The key by which an existing entry was found: `primary` or `secondary`.
        split_with: The ids of other entries that have the payload's other key.
        stale: Whether the stored version is newer than the payload.
        event_id: The id of the event, or None if nothing changed.
        index: The position of the item in its batch.
        duplicate_of_index: The position of an earlier item of the batch that is the same entry.
        error: The reason why the item failed.
    """

    action: str
    entry: Entry | None
    changed: bool
    schema: str
    matched_on: str | None = None
    split_with: tuple[str, ...] = ()
    stale: bool = False
    event_id: int | None = None
    index: int = 0
    duplicate_of_index: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy of ingested entries: what happens to an entry that exists.

    Attributes:
        conflict_action: `skip` leaves an existing entry unchanged, `update` changes it.
        update_fields: The fields that an update changes, or None for all that may be updated.
        secondary_role: `identity` if the secondary key identifies an entry like the primary one, otherwise `hint`.
    """

    policy_id: int
    policy_key: str
    source: str
    content_type: str
    conflict_action: str
    update_fields: tuple[str, ...] | None
    enabled: bool
    secondary_role: str


class Ingest:
    """Ingested entries of a hub. `Hub` creates it as `hub.ingest`."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection

    async def normalize_telegram(self, message: Mapping[str, object]) -> dict[str, Json]:
        """Normalize a Telegram message into the payload of an entry. Nothing is stored.

        Args:
            message: `{text, source}`, a whole update of the Bot API, or the message in an update.

        Returns:
            The payload, for `insert_entry`.

        Raises:
            InvalidInput: The message cannot be normalized.
        """
        return await self._connection.change("POST", "/normalize/telegram", message, None, _payload)

    async def normalize_email(
        self,
        mail: Mapping[str, object] | bytes,
        *,
        content_type: str | None = None,
        received_at: str | None = None,
        thread_policy: str | None = None,
    ) -> dict[str, Json]:
        """Normalize a mail into the payload of an entry. Nothing is stored.

        Args:
            mail: `{raw_text, from, subject, source}`, or the whole mail as bytes, as it was received.
            content_type: The content type of the entry. This and the next two are only for a mail as bytes; a mapping
                contains them itself.
            received_at: The time of receipt.
            thread_policy: The policy for correspondence threads.

        Returns:
            The payload, for `insert_entry`.

        Raises:
            InvalidInput: The mail cannot be normalized, or an option was given with a mapping.
        """
        path = "/normalize/email"
        options = {"content_type": content_type, "received_at": received_at, "thread_policy": thread_policy}
        params = {name: value for name, value in options.items() if value is not None}
        if not isinstance(mail, bytes):
            if params:
                raise InvalidInput(
                    f"{', '.join(params)}: only allowed with a mail as bytes; put it into the mapping instead"
                )
            return await self._connection.change("POST", path, mail, None, _payload)
        request = self._connection.request("POST", path, mail, None)
        request.url = request.url.copy_merge_params(params)
        request.headers["Content-Type"] = "message/rfc822"
        return responses.read(await self._connection.send(request), _payload)

    async def insert_entry(
        self, payload: Mapping[str, object], *, strict: bool = False, idempotency_key: str | None = None
    ) -> EntryInserted:
        """Insert an entry, or apply its policy to the entry that exists.

        Args:
            payload: The payload of a normalizer.
            strict: Raise `Conflict` if the two keys belong to two different entries.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The result, with the stored entry.

        Raises:
            InvalidInput: The payload is not valid.
            Conflict: With `strict`, the two keys belong to two different entries.
        """
        sent = {**payload, "strict": True} if strict else payload
        return await self._connection.change("POST", _INSERT, sent, idempotency_key, _single)

    async def insert_entries(
        self,
        payloads: Iterable[Mapping[str, object]],
        *,
        strict: bool = False,
        idempotency_key: str | None = None,
    ) -> list[EntryInserted]:
        """Insert several entries. One that fails does not stop the others.

        Args:
            payloads: The payloads of a normalizer, at most 1000.
            strict: An item fails if its two keys belong to two different entries.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The results, in the order of the payloads.

        Raises:
            InvalidInput: The batch is not valid.
            TooLarge: The batch is too large.
        """
        sent = {"items": list(payloads), "strict": strict}
        return await self._connection.change("POST", _INSERT, sent, idempotency_key, _batch)

    async def policies(self, schema: str | None = None) -> list[Policy]:
        """List the policies of a schema.

        Args:
            schema: `pkm` or `pkm_test`. By default, the active schema.

        Returns:
            The policies.
        """
        return await self._connection.pages("/policies", {"schema": schema}, "policies", _policy)

    async def put_policy(
        self,
        policy_key: str,
        *,
        source: str,
        content_type: str,
        conflict_action: str,
        update_fields: Iterable[str] | EllipsisType | None = ...,
        enabled: bool | None = None,
        secondary_role: str | None = None,
        idempotency_key: str | None = None,
    ) -> Policy:
        """Create or change a policy in the active schema. Requires scope `admin`.

        Args:
            policy_key: The name of the policy.
            source: The source of its entries.
            content_type: The content type of its entries.
            conflict_action: `skip` to leave an existing entry unchanged, `update` to change it.
            update_fields: The fields that an update changes. None means all that may be updated. Not given (`...`), the
                policy keeps its fields.
            enabled: Whether the policy is used. None keeps the current value.
            secondary_role: `identity` or `hint`. None keeps the current value.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The stored policy.

        Raises:
            InvalidInput: A value is not valid.
            Conflict: The policy has entries, so that its source and content type cannot change.
        """
        sent: dict[str, object] = {
            "policy_key": policy_key,
            "source": source,
            "content_type": content_type,
            "conflict_action": conflict_action,
        }
        if not isinstance(update_fields, EllipsisType):
            sent["update_fields"] = None if update_fields is None else list(update_fields)
        options = {"enabled": enabled, "secondary_role": secondary_role}
        sent |= {name: value for name, value in options.items() if value is not None}
        return await self._connection.change("PUT", "/policies", sent, idempotency_key, _policy)

    async def test_mode(self) -> bool:
        """Return whether test mode is on, in which entries go to the schema `pkm_test`.

        Returns:
            True if test mode is on.
        """
        return await self._connection.read("/test-mode", {}, _enabled)

    async def set_test_mode(self, enabled: bool, *, idempotency_key: str | None = None) -> bool:
        """Turn test mode on or off. Requires scope `admin`.

        Args:
            enabled: Whether entries go to the schema `pkm_test`.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            True if test mode is on now.
        """
        return await self._connection.change("PUT", "/test-mode", {"enabled": enabled}, idempotency_key, _enabled)


_INSERT = "/db/insert"


def _payload(body: Any) -> dict[str, Json]:
    if not isinstance(body, dict):
        raise TypeError
    return body


def _enabled(body: Any) -> bool:
    return bool(body["enabled"])


def _policy(body: Any) -> Policy:
    fields = body["update_fields"]
    values = {name: body[name] for name in Policy.__slots__}
    return Policy(**{**values, "update_fields": None if fields is None else tuple(fields)})


def _batch(body: Any) -> list[EntryInserted]:
    return [_inserted(one, body["schema"]) for one in body["results"]]


def _single(body: Any) -> EntryInserted:
    return _inserted(body, body["schema"])


def _inserted(body: Any, schema: str) -> EntryInserted:
    failed = body["action"] == "failed"
    return EntryInserted(
        body["action"],
        None if failed else _entry(body),
        bool(body.get("changed")),
        schema,
        body.get("matched_on"),
        tuple(body.get("split_with") or ()),
        bool(body.get("stale")),
        body.get("event_id"),
        body.get("index", 0),
        body.get("duplicate_of_index"),
        body["error"]["detail"] if failed else None,
    )


def _entry(body: Any) -> Entry:
    moments = {name: datetime.fromisoformat(body[name]) for name in ("created_at", "updated_at")}
    return Entry(**{**{name: body[name] for name in Entry.__slots__}, **moments})
