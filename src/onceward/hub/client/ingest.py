"""`hub.ingest`: messages are normalized, and entries inserted once, by the policies of the hub's active schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import EllipsisType
from typing import Any

from onceward.core.canonical import Json
from onceward.errors import InvalidInput
from onceward.hub.client import answers
from onceward.hub.client.wire import Wire


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it is stored."""

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
    """What became of a payload: `action` is `inserted`, `updated`, `skipped`, or `failed` for an item of a batch.

    `changed` is False for an update that changed nothing, and `stale` says that the stored version is a newer one.
    `error` says why an item failed, and then there is no `entry`.
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
    """What happens to an entry that is there already. `update_fields` None: all that may be updated are."""

    policy_id: int
    policy_key: str
    source: str
    content_type: str
    conflict_action: str
    update_fields: tuple[str, ...] | None
    enabled: bool
    secondary_role: str


class Ingest:
    """Made by `Hub`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def normalize_telegram(self, message: Mapping[str, object]) -> dict[str, Json]:
        """The payload of a message: `{text, source}`, a whole update of the Bot API, or the message of one."""
        return await self._wire.change("POST", "/normalize/telegram", message, None, _payload)

    async def normalize_email(
        self,
        mail: Mapping[str, object] | bytes,
        *,
        content_type: str | None = None,
        received_at: str | None = None,
        thread_policy: str | None = None,
    ) -> dict[str, Json]:
        """The payload of a mail: `{raw_text, from, subject, source}`, or all of it as bytes, as it was received.

        The options are for the latter; the former has them within.
        """
        path = "/normalize/email"
        options = {"content_type": content_type, "received_at": received_at, "thread_policy": thread_policy}
        said = {name: value for name, value in options.items() if value is not None}
        if not isinstance(mail, bytes):
            if said:
                raise InvalidInput(f"{', '.join(said)} can be said of bytes; a mapping has such things within")
            return await self._wire.change("POST", path, mail, None, _payload)
        request = self._wire.request("POST", path, mail, None)
        request.url = request.url.copy_merge_params(said)
        request.headers["Content-Type"] = "message/rfc822"
        return answers.read(await self._wire.send(request), _payload)

    async def insert_entry(
        self, payload: Mapping[str, object], *, strict: bool = False, idempotency_key: str | None = None
    ) -> EntryInserted:
        """Insert what a normalizer gives, or find what is there. With `strict`, `Conflict` when the two keys are
        those of two entries.
        """
        sent = {**payload, "strict": True} if strict else payload
        return await self._wire.change("POST", _INSERT, sent, idempotency_key, _single)

    async def insert_entries(
        self,
        payloads: Iterable[Mapping[str, object]],
        *,
        strict: bool = False,
        idempotency_key: str | None = None,
    ) -> list[EntryInserted]:
        """Insert several, each for itself: one that fails does not keep the others. In their order."""
        sent = {"items": list(payloads), "strict": strict}
        return await self._wire.change("POST", _INSERT, sent, idempotency_key, _batch)

    async def policies(self, schema: str | None = None) -> list[Policy]:
        """Those of a schema, or of the active one."""
        return await self._wire.pages("/policies", {"schema": schema}, "policies", _policy)

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
        """Make a policy in the active schema, or make the one of this name as it is said here.

        What is not said stays as it is; of `update_fields` None says something: all that may be updated are.
        """
        sent: dict[str, object] = {
            "policy_key": policy_key,
            "source": source,
            "content_type": content_type,
            "conflict_action": conflict_action,
        }
        if not isinstance(update_fields, EllipsisType):
            sent["update_fields"] = None if update_fields is None else list(update_fields)
        said = {"enabled": enabled, "secondary_role": secondary_role}
        sent |= {name: value for name, value in said.items() if value is not None}
        return await self._wire.change("PUT", "/policies", sent, idempotency_key, _policy)

    async def test_mode(self) -> bool:
        """Whether entries go to the schema for tests."""
        return await self._wire.look("/test-mode", {}, _enabled)

    async def set_test_mode(self, enabled: bool, *, idempotency_key: str | None = None) -> bool:
        return await self._wire.change("PUT", "/test-mode", {"enabled": enabled}, idempotency_key, _enabled)


_INSERT = "/db/insert"


def _payload(said: Any) -> dict[str, Json]:
    if not isinstance(said, dict):
        raise TypeError
    return said


def _enabled(said: Any) -> bool:
    return bool(said["enabled"])


def _policy(said: Any) -> Policy:
    fields = said["update_fields"]
    values = {name: said[name] for name in Policy.__slots__}
    return Policy(**{**values, "update_fields": None if fields is None else tuple(fields)})


def _batch(said: Any) -> list[EntryInserted]:
    return [_inserted(one, said["schema"]) for one in said["results"]]


def _single(said: Any) -> EntryInserted:
    return _inserted(said, said["schema"])


def _inserted(said: Any, schema: str) -> EntryInserted:
    failed = said["action"] == "failed"
    return EntryInserted(
        said["action"],
        None if failed else _entry(said),
        bool(said.get("changed")),
        schema,
        said.get("matched_on"),
        tuple(said.get("split_with") or ()),
        bool(said.get("stale")),
        said.get("event_id"),
        said.get("index", 0),
        said.get("duplicate_of_index"),
        said["error"]["detail"] if failed else None,
    )


def _entry(said: Any) -> Entry:
    moments = {name: datetime.fromisoformat(said[name]) for name in ("created_at", "updated_at")}
    return Entry(**{**{name: said[name] for name in Entry.__slots__}, **moments})
