"""Hashes of a turn's inputs and dependencies, and the fingerprint of a tool call.

`input_fp` and `dep_fp` decide whether a computed value may be reused. The fingerprint of a tool call decides whether a
call with a known key is the same call again, or another one that must not get its result.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, cast

from onceward.core.canonical import Json, canonical
from onceward.core.fingerprint import Digest, fingerprint
from onceward.errors import InvalidKey, InvalidOption

# The versions on which the meaning of a message depends, in the order in which they are hashed.
DEPENDENCIES: Final = (
    "scenario_set_version",
    "rules_version",
    "kb_version",
    "agent_config_version",
    "tool_registry_version",
)
# Metadata of the delivery, which does not change the meaning of a message.
VOLATILE_METADATA: Final = frozenset({"timestamp", "trace_id", "request_id"})

_UUID = re.compile(r"(?i)(urn:uuid:)?\{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?")
# A date alone may identify a call; a date with a time of day rarely does.
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)?")


def input_fp(
    tenant_id: object,
    agent_id: object,
    session_key: str,
    channel: str,
    messages: Iterable[str],
    metadata: Sequence[Mapping[str, object]] = (),
    *,
    meaningful_metadata: Collection[str] | None = None,
) -> str:
    """Return the hash of a turn's inputs: tenant, agent, session, channel, and the messages in order of arrival.

    Args:
        tenant_id: The tenant.
        agent_id: The agent that answers.
        session_key: The session of the turn.
        channel: The channel of the messages.
        messages: The texts. They are normalized to NFC and stripped.
        metadata: One mapping for each message. If none of it is meaningful (see `meaningful`), the hash is the same as
            without metadata.
        meaningful_metadata: The names of metadata that are hashed; None for all but the volatile ones.

    Raises:
        InvalidOption: If the numbers of messages and mappings differ.
    """
    texts: list[Json] = [unicodedata.normalize("NFC", message).strip() for message in messages]
    if metadata and len(metadata) != len(texts):
        raise InvalidOption(
            f"metadata must have one mapping for each message, got {len(metadata)} for {len(texts)} messages"
        )
    parts: list[Json] = [_id(tenant_id), _id(agent_id), session_key, channel, texts]
    counted: list[Json] = [meaningful(one, meaningful_metadata) for one in metadata]
    return _hash([*parts, counted] if any(counted) else parts)


def meaningful(metadata: Mapping[str, object], names: Collection[str] | None = None) -> Json:
    """Return the metadata that is part of a message's meaning: these names, or all except `VOLATILE_METADATA`.

    Integers over 2^53-1 have no form in RFC 8785. Metadata that contains one is replaced by a digest.
    """
    counted = cast("Json", {name: metadata[name] for name in metadata if is_meaningful(name, names)})
    try:
        canonical(counted)
    except InvalidKey:
        return fingerprint(counted)
    return counted


def is_meaningful(name: str, names: Collection[str] | None) -> bool:
    return name not in VOLATILE_METADATA if names is None else name in names


def dep_fp(versions: Mapping[str, object]) -> str:
    """Return the hash of the versions on which the meaning of a message depends.

    Args:
        versions: A version for each name of `DEPENDENCIES`. Missing versions count as null. Other names are hashed after
            these five.
    """
    parts: list[Json] = [_version(name, versions.get(name)) for name in DEPENDENCIES]
    others = {name: _version(name, value) for name, value in versions.items() if name not in DEPENDENCIES}
    return _hash([*parts, cast("Json", others)] if others else parts)


def beat_fp(messages: Iterable[tuple[object, str]]) -> Digest:
    """Return the hash of a beat's (message id, text) pairs. A redelivered beat has a new turn id but the same hash."""
    pairs: list[Json] = [[name, text] for name, text in sorted((str(name), text) for name, text in messages)]
    return Digest(_hash(pairs))


def call_fp(arguments: Mapping[str, object], *, left_out: Collection[str], exact: Collection[str]) -> dict[str, object]:
    """Return the arguments that must be equal for two calls to be the same.

    `left_out` names arguments that are volatile or already part of the key. Values that look like a UUID or a timestamp
    are volatile, too, except in the fields of `exact`.
    """
    return {
        name: value if name in exact else stable(value)
        for name, value in arguments.items()
        if name not in left_out and (name in exact or not is_volatile(value))
    }


def stable(value: object) -> object:
    """Return a value without the UUIDs and timestamps inside it."""
    if isinstance(value, dict):
        return {name: stable(item) for name, item in value.items() if not is_volatile(item)}
    if isinstance(value, list):
        return [None if is_volatile(item) else stable(item) for item in value]
    return value


def is_volatile(value: object) -> bool:
    """Return whether a value looks like one that differs in every call: a UUID, or a date with a time of day."""
    if not isinstance(value, str):
        return False
    return bool(_UUID.fullmatch(value)) or (bool(_TIMESTAMP.fullmatch(value)) and _is_timestamp(value))


def _is_timestamp(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text.upper())
    except ValueError:
        return False
    return True


def _id(value: object) -> Json:
    return None if value is None else str(value)


def _version(name: str, value: object) -> Json:
    if value is None or isinstance(value, str | int | float | bool | list | dict):
        return cast("Json", value)
    raise InvalidOption(f"the version {name} must be a JSON value, such as a string, got {type(value).__name__}")


def _hash(parts: list[Json]) -> str:
    return hashlib.sha256(canonical(parts)).hexdigest()
