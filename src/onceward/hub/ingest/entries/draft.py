"""Drafts: validated payloads, with the values that an insert writes and their policy. Pure.

Email and Telegram are fail-closed: an entry without a policy and a key is refused. Sources are compared trimmed and in
lower case, and every source that begins with one of the two names counts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from onceward.core.canonical import Json
from onceward.core.json_text import bytes_of, checked, compact, depth, has_nul, refused
from onceward.errors import InvalidInput, OncewardError
from onceward.hub.ingest.entries.columns import (
    COLUMNS,
    KEY_BYTES_MAX,
    METADATA_BYTES_MAX,
    POLICY_ID,
    PRIMARY,
    SECONDARY,
    TEXT_BYTES_MAX,
)
from onceward.hub.ingest.entries.policy import Policy
from onceward.hub.ingest.payload import Payload

POLICY_KEY = "idempotency_policy_key"
# Deeper than any real message, and the limit for request bodies.
NESTING_MAX = 64

# The columns, the policy key, the normalizer's reasons, and the caller's option `strict`.
_ALLOWED = frozenset(COLUMNS) | {POLICY_KEY, "reasons", "strict"}
_FAIL_CLOSED = ("email", "telegram")
_TEXTS = (*TEXT_BYTES_MAX, PRIMARY, SECONDARY)
_BYTES_MAX = (*TEXT_BYTES_MAX.values(), KEY_BYTES_MAX, KEY_BYTES_MAX)
# Texts of at most this many characters are within the byte limits, because a character has at most 4 bytes.
_CHARACTERS_SURE = tuple(bytes_max // 4 for bytes_max in _BYTES_MAX)
# If all texts together have at most this many characters, each is within its limit.
_SHORT = min(_CHARACTERS_SURE)


class Draft(NamedTuple):
    """A validated payload.

    `values` are the columns `WRITTEN`, in their order, the metadata as JSON text. `primary` and `secondary` are pairs
    of policy id and key, which are unique among the entries.
    """

    payload: Payload
    values: tuple[Any, ...]
    policy: Policy | None
    primary: tuple[int, str] | None
    secondary: tuple[int, str] | None
    is_strict: bool


def drafts_of(
    payloads: Sequence[Payload], policies: Iterable[Policy], *, strict: bool = False
) -> list[Draft | OncewardError]:
    """Return a draft for each payload, or its error."""
    by_key = {policy.policy_key: policy for policy in policies}
    drafts: list[Draft | OncewardError] = []
    for payload in payloads:
        try:
            drafts.append(draft_of(payload, by_key, strict=strict))
        except InvalidInput as error:
            drafts.append(error)
    return drafts


def draft_of(payload: Payload, policies: Mapping[str, Policy], *, strict: bool = False) -> Draft:
    """Validate a payload; `InvalidInput` names the invalid field.

    Columns that the database assigns may be present, as in a row that was read back, and are ignored.
    """
    if not isinstance(cast("object", payload), dict):
        raise refused("payload", "must be an object")
    if not payload.keys() <= _ALLOWED:
        raise _unknown(payload)
    texts = _texts(payload)
    source, content_type, primary, secondary = texts[0], texts[1], texts[-2], texts[-1]
    if source is None or not source.strip():
        raise refused("source", "is missing" if source is None else "must not be blank")
    if (primary is not None and not primary.strip()) or (secondary is not None and not secondary.strip()):
        raise refused(SECONDARY if primary is None or primary.strip() else PRIMARY, "must not be blank")
    metadata = metadata_text(payload.get("metadata"))
    wish = payload.get("strict")
    if wish is not None and not isinstance(wish, bool):
        raise refused("strict", "must be true or false")
    is_strict = strict or bool(wish)
    policy = _policy(payload, policies, source, content_type, has_key=bool(primary or secondary))
    if policy is None:
        return Draft(payload, (*texts[:-2], metadata, None, None, None), None, None, None, is_strict)
    if primary is None and policy.secondary_role == "hint":
        raise refused(
            PRIMARY,
            f"is required, because the secondary key of {policy.policy_key} does not identify an entry"
            " (secondary_role is hint)",
        )
    number = policy.policy_id
    return Draft(
        payload,
        (*texts[:-2], metadata, number, primary, secondary),
        policy,
        None if primary is None else (number, primary),
        None if secondary is None else (number, secondary),
        is_strict,
    )


def metadata_text(metadata: Json) -> str:
    """Return the metadata as stored JSON text; `InvalidInput` if it cannot be stored."""
    if metadata is None:
        return "{}"
    if not isinstance(metadata, dict):
        raise refused("metadata", "must be an object")
    text = compact(metadata)
    size = len(text) if text.isascii() else bytes_of("metadata", text)
    if size > METADATA_BYTES_MAX:
        raise refused("metadata", f"must be at most {METADATA_BYTES_MAX} bytes of compact JSON, got {size}")
    if "\\u0000" in text and has_nul(metadata):
        raise refused("metadata", "must not contain a NUL character")
    if text.count("{") + text.count("[") > NESTING_MAX and depth(metadata) > NESTING_MAX:
        raise refused("metadata", f"is nested deeper than {NESTING_MAX} levels")
    return text


def _unknown(payload: Payload) -> InvalidInput:
    names = sorted(str(name)[:64] for name in payload.keys() - _ALLOWED)
    return InvalidInput(
        f"unknown columns: {', '.join(map(repr, names))}",
        tuple((name, "is not a column of an entry") for name in names),
    )


def _texts(payload: Payload) -> Sequence[str | None]:
    """Validate the text columns and the two keys. Nearly all payloads pass a fast check of all texts together."""
    values = list(map(payload.get, _TEXTS))
    if _are_fine(values):
        return cast("list[str | None]", values)
    return [_text(name, value, bytes_max) for name, value, bytes_max in zip(_TEXTS, values, _BYTES_MAX, strict=True)]


def _are_fine(values: Sequence[Json]) -> bool:
    try:
        joined = "".join([value for value in values if value is not None])  # type: ignore[misc]  # raises for non-text
        if "\0" in joined:
            return False
        if not joined.isascii():
            joined.encode()
    except (TypeError, UnicodeEncodeError):
        return False
    if len(joined) <= _SHORT:
        return True
    limits = _BYTES_MAX if joined.isascii() else _CHARACTERS_SURE
    for value, length in zip(values, limits, strict=True):
        if value is not None and len(cast("str", value)) > length:
            return False
    return True


def _text(name: str, value: Json, bytes_max: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise refused(name, "must be a string or null")
    return checked(name, value, bytes_max, blank=True)


def _policy(
    payload: Payload, policies: Mapping[str, Policy], source: str, content_type: str | None, *, has_key: bool
) -> Policy | None:
    name, number = payload.get(POLICY_KEY), payload.get(POLICY_ID)
    if name is None:
        closed = source.strip().lower().startswith(_FAIL_CLOSED)
        if closed or has_key or number is not None:
            why = "must have a policy and a key" if closed else "that has a key or a policy id must name its policy"
            raise refused(POLICY_KEY, f"is missing: an entry of source {source[:64]!r} {why}")
        return None
    if not isinstance(name, str) or not name.strip():
        raise refused(POLICY_KEY, "must be the name of a policy")
    policy = policies.get(name)
    if policy is None or not policy.enabled:
        raise refused(POLICY_KEY, f"{name[:128]!r} is {'an unknown' if policy is None else 'a disabled'} policy")
    if number is not None and (number != policy.policy_id or isinstance(number, bool)):
        raise refused(POLICY_ID, f"is not the id of {name}")
    if not _fits(policy.source, policy.content_type, source, content_type):
        raise refused(
            POLICY_KEY,
            f"{name} is for source {policy.source} and content type {policy.content_type},"
            f" not for {source!r} and {content_type!r}",
        )
    if not has_key:
        raise refused(PRIMARY, f"is missing, and so is {SECONDARY}: policy {name} needs at least one of them")
    return policy


@functools.lru_cache(maxsize=256)
def _fits(its_source: str, its_types: str, source: str, content_type: str | None) -> bool:
    kind = (content_type or "").strip().lower()
    return source.strip().lower() == its_source and kind in its_types.split("/")
