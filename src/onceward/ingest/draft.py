"""A payload, checked: what an insert would write, under which policy. Pure.

Email and Telegram are fail-closed: without a policy and a key nothing of theirs is accepted. Sources are compared
trimmed and in lower case, and whatever begins with one of the two names counts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from onceward.core.canonical import Json
from onceward.core.text import bytes_of, compact, has_nul, refused
from onceward.errors import InvalidInput, OncewardError
from onceward.ingest.columns import (
    COLUMNS,
    KEY_BYTES_MAX,
    METADATA_BYTES_MAX,
    POLICY_ID,
    PRIMARY,
    SECONDARY,
    TEXT_BYTES_MAX,
)
from onceward.ingest.payload import Payload
from onceward.ingest.policy import Policy

POLICY_KEY = "idempotency_policy_key"
# Deeper than any real message, and what the hub takes in a body.
NESTING_MAX = 64

# Besides the columns: how the entry was made, and how careful the caller is.
_ALLOWED = frozenset(COLUMNS) | {POLICY_KEY, "reasons", "strict"}
_FAIL_CLOSED = ("email", "telegram")
_TEXTS = tuple(TEXT_BYTES_MAX.items())


@dataclass(frozen=True, slots=True)
class Draft:
    """What is written: `values` are the columns `WRITTEN`, in their order, the metadata as JSON text."""

    payload: Payload
    values: tuple[Any, ...]
    policy: Policy | None
    strict: bool

    @property
    def primary(self) -> str | None:
        return cast("str | None", self.values[-2])

    @property
    def secondary(self) -> str | None:
        return cast("str | None", self.values[-1])


def drafts_of(
    payloads: Sequence[Payload], policies: Sequence[Policy], *, strict: bool = False
) -> list[Draft | OncewardError]:
    """Each payload checked, or what is wrong with it."""
    by_key = {policy.policy_key: policy for policy in policies}
    drafts: list[Draft | OncewardError] = []
    for payload in payloads:
        try:
            drafts.append(draft_of(payload, by_key, strict=strict))
        except InvalidInput as error:
            drafts.append(error)
    return drafts


def draft_of(payload: Payload, policies: Mapping[str, Policy], *, strict: bool = False) -> Draft:
    """Check a payload; `InvalidInput` names what is wrong with it.

    What the database assigns may be there, as it is in a row that was read back, and counts for nothing.
    """
    if not isinstance(cast("object", payload), dict):
        raise refused("payload", "must be an object")
    if not payload.keys() <= _ALLOWED:
        raise _unknown(payload)
    values = [_text(name, payload.get(name), bytes_max) for name, bytes_max in _TEXTS]
    source, content_type = values[0], values[1]
    if source is None or not source.strip():
        raise refused("source", "is missing" if source is None else "must not be blank")
    values.append(metadata_text(payload.get("metadata")))
    primary, secondary = _key(payload, PRIMARY), _key(payload, SECONDARY)
    policy = _policy(payload, policies, source, content_type, has_key=bool(primary or secondary))
    if policy is not None and policy.secondary_role == "hint" and primary is None:
        raise refused(PRIMARY, f"is missing: the secondary key of {policy.policy_key} is only a hint")
    wish = payload.get("strict")
    if wish is not None and not isinstance(wish, bool):
        raise refused("strict", "must be true or false")
    identity = (None if policy is None else policy.policy_id, primary, secondary)
    return Draft(payload, (*values, *identity), policy, strict or bool(wish))


def metadata_text(metadata: Json) -> str:
    """The metadata as it is stored; `InvalidInput` when it cannot be."""
    if metadata is None:
        return "{}"
    if not isinstance(metadata, dict):
        raise refused("metadata", "must be an object")
    text = compact(metadata)
    size = len(text) if text.isascii() else bytes_of("metadata", text)
    if size > METADATA_BYTES_MAX:
        raise refused("metadata", f"is limited to {METADATA_BYTES_MAX} bytes of compact JSON and has {size}")
    if "\\u0000" in text and has_nul(metadata):
        raise refused("metadata", "must not contain the character NUL")
    if text.count("{") + text.count("[") > NESTING_MAX and _depth(metadata) > NESTING_MAX:
        raise refused("metadata", f"is nested deeper than {NESTING_MAX} levels")
    return text


def _unknown(payload: Payload) -> InvalidInput:
    names = sorted(str(name)[:64] for name in payload.keys() - _ALLOWED)
    return InvalidInput(
        f"an entry has no column {', '.join(map(repr, names))}", tuple((name, "is not a column") for name in names)
    )


def _text(name: str, value: Json, bytes_max: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise refused(name, "must be a text or null")
    # Nearly every text passes here, so the bytes are counted without making them where that can be.
    if (len(value) if value.isascii() else bytes_of(name, value)) > bytes_max:
        raise refused(name, f"is longer than {bytes_max} bytes")
    if "\0" in value:
        raise refused(name, "must not contain the character NUL")
    return value


def _key(payload: Payload, name: str) -> str | None:
    key = _text(name, payload.get(name), KEY_BYTES_MAX)
    if key is not None and not key.strip():
        raise refused(name, "must not be blank")
    return key


def _policy(
    payload: Payload, policies: Mapping[str, Policy], source: str, content_type: str | None, *, has_key: bool
) -> Policy | None:
    name, number = payload.get(POLICY_KEY), payload.get(POLICY_ID)
    if name is None:
        closed = source.strip().lower().startswith(_FAIL_CLOSED)
        if closed or has_key or number is not None:
            why = "needs" if closed else "has a key or a policy's id, which need"
            raise refused(POLICY_KEY, f"is missing: an entry of the source {source[:64]!r} {why} a policy and a key")
        return None
    if not isinstance(name, str) or not name.strip():
        raise refused(POLICY_KEY, "must be the name of a policy")
    policy = policies.get(name)
    if policy is None or not policy.enabled:
        raise refused(POLICY_KEY, f"{name[:128]!r} is {'not a policy' if policy is None else 'a disabled policy'} here")
    if number is not None and (number != policy.policy_id or isinstance(number, bool)):
        raise refused(POLICY_ID, f"is not the id of {name}")
    if not _fits(policy, source, content_type):
        raise refused(
            POLICY_KEY,
            f"{name} is about {policy.source} and {policy.content_type}, not about {source!r} and {content_type!r}",
        )
    if not has_key:
        raise refused(PRIMARY, f"is missing, and so is {SECONDARY}: the policy {name} needs at least one of them")
    return policy


@functools.lru_cache(maxsize=256)
def _fits(policy: Policy, source: str, content_type: str | None) -> bool:
    kind = (content_type or "").strip().lower()
    return source.strip().lower() == policy.source and kind in policy.content_type.split("/")


def _depth(value: Json) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0
