"""What a turn's inputs and its dependencies are, each as one hash; and what of a tool call says that it is the same.

`input_fp` and `dep_fp` decide whether something computed may be used again. The fingerprint of a tool call decides
whether a call under a known key is that call again, or another one that must not get its result.
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

# What the meaning of a message depends on, in the order in which it is hashed.
DEPENDENCIES: Final = (
    "scenario_set_version",
    "rules_version",
    "kb_version",
    "agent_config_version",
    "tool_registry_version",
)
# Metadata of a delivery, which says nothing about what the message means.
VOLATILE_METADATA: Final = frozenset({"timestamp", "trace_id", "request_id"})

_UUID = re.compile(r"(?i)(urn:uuid:)?\{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?")
# A date alone may say what a call is about; a time of day with it rarely does.
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)?")


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
    """The hash of a turn's inputs: who talks where, and what was said, in the order of arrival.

    Messages are compared in NFC and without the white space around them. Customers appear by their id alone. `metadata`
    has one mapping for each message; where none of it counts (see `meaningful`), the hash is the one without metadata.
    """
    said: list[Json] = [unicodedata.normalize("NFC", message).strip() for message in messages]
    if metadata and len(metadata) != len(said):
        raise InvalidOption(f"{len(said)} messages have {len(metadata)} metadata; give one mapping for each message")
    parts: list[Json] = [_id(tenant_id), _id(agent_id), session_key, channel, said]
    counted: list[Json] = [meaningful(one, meaningful_metadata) for one in metadata]
    return _hash([*parts, counted] if any(counted) else parts)


def meaningful(metadata: Mapping[str, object], names: Collection[str] | None = None) -> Json:
    """The metadata that counts for the meaning of a message: under these names, or all but `VOLATILE_METADATA`.

    Integers over 2^53-1 have no form in RFC 8785: a digest stands for metadata that has one.
    """
    counted = cast("Json", {name: metadata[name] for name in metadata if counts(name, names)})
    try:
        canonical(counted)
    except InvalidKey:
        return fingerprint(counted)
    return counted


def counts(name: str, names: Collection[str] | None) -> bool:
    return name not in VOLATILE_METADATA if names is None else name in names


def dep_fp(versions: Mapping[str, object]) -> str:
    """The hash of the versions of all that gives a message its meaning; those that are not named count as null.

    Names beside the five of `DEPENDENCIES` are hashed behind them.
    """
    parts: list[Json] = [_version(name, versions.get(name)) for name in DEPENDENCIES]
    others = {name: _version(name, value) for name, value in versions.items() if name not in DEPENDENCIES}
    return _hash([*parts, cast("Json", others)] if others else parts)


def beat_fp(messages: Iterable[tuple[object, str]]) -> Digest:
    """The hash of a beat's content, by (message id, text): a redelivered beat has a new turn id and the same content."""
    pairs: list[Json] = [[name, text] for name, text in sorted((str(name), text) for name, text in messages)]
    return Digest(_hash(pairs))


def call_fp(arguments: Mapping[str, object], *, left_out: Collection[str], exact: Collection[str]) -> dict[str, object]:
    """What of a call's arguments must be equal for it to be the same call.

    `left_out` are volatile, or part of the key already. What looks like a uuid or a moment in time is volatile too,
    except in the fields of `exact`.
    """
    return {
        name: value if name in exact else stable(value)
        for name, value in arguments.items()
        if name not in left_out and (name in exact or not is_volatile(value))
    }


def stable(value: object) -> object:
    """A value without the uuids and moments inside of it."""
    if isinstance(value, dict):
        return {name: stable(item) for name, item in value.items() if not is_volatile(item)}
    if isinstance(value, list):
        return [None if is_volatile(item) else stable(item) for item in value]
    return value


def is_volatile(value: object) -> bool:
    """Whether it looks like something that is drawn anew for each call: a uuid, or a date with a time of day."""
    if not isinstance(value, str):
        return False
    return bool(_UUID.fullmatch(value)) or (bool(_MOMENT.fullmatch(value)) and _is_moment(value))


def _is_moment(text: str) -> bool:
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
    raise InvalidOption(f"the version {name} is a text or a number, not {type(value).__name__}")


def _hash(parts: list[Json]) -> str:
    return hashlib.sha256(canonical(parts)).hexdigest()
