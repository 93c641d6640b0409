"""The keys of turns, one shape for each layer, and the ledger scopes that keep the layers apart.

    api    {tenant}:{client key}
    beat   {tenant}:beat:{session}:{16 hex of the message ids}
    tool   {tool}:{business key}:turn_group:{turn_group_id}

A supersede chain shares its turn_group_id, so that a tool runs once for all of it; a queued turn has a new one.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast, overload

from onceward.core.canonical import Json, canonical
from onceward.core.fingerprint import fingerprint
from onceward.core.key import check_key, fill, parse
from onceward.errors import InvalidKey

# The layers; each is a ledger scope of its own under tenant and principal.
API = "api"
BEAT = "beat"
TOOL = "tool"
DELIVERY = "delivery"

# The ledger's scope holds 255 bytes, of which the namespace may take 65, the layer 9 and the other name the rest.
_NAME_BYTES_MAX = 80
_SHORT_HASH = 16
_CONTENT_HASH = 32

_ESCAPES = {ord(mark): f"%{ord(mark):02X}" for mark in "%:"}


class HasGroup(Protocol):
    """A turn, as far as keys are concerned."""

    @property
    def turn_group_id(self) -> object: ...


def scope_of(layer: str, principal: str, tenant_id: object = "") -> str:
    """The ledger scope of one layer: no two of layer, tenant and principal share one."""
    return f"{layer}:{_name(str(tenant_id))}:{_name(principal)}"


def _name(text: str) -> str:
    """As it is when it is short and can be read, else its digest, which no encoded name looks like."""
    encoded = text.translate(_ESCAPES)
    data = encoded.encode("utf-8", "surrogatepass")
    if len(data) <= _NAME_BYTES_MAX and encoded.isprintable():
        return encoded
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def api_key(tenant_id: object, client_key: str) -> str:
    return check_key(f"{tenant_id}:{client_key}")


def content_key(
    tenant_id: object, customer_id: object, session_key: str, messages: Iterable[str], metadata: Json = None
) -> str:
    """The key of a message that came without one: 32 hex of what was said, by whom and where; in any order.

    `metadata` is what of it counts for the meaning, see `fingerprint.meaningful`.
    """
    content: dict[str, Json] = {
        "tenant_id": str(tenant_id),
        "customer_id": str(customer_id),
        "session_key": session_key,
        "messages": cast("list[Json]", sorted(messages)),
    }
    if metadata:
        content["metadata"] = metadata
    return hashlib.sha256(canonical(content)).hexdigest()[:_CONTENT_HASH]


def message_hash(message_ids: Iterable[object]) -> str:
    """16 hex of the ids in sorted order: it does not matter in which order the messages arrived."""
    joined = ":".join(sorted(str(one) for one in message_ids))
    return hashlib.sha256(joined.encode()).hexdigest()[:_SHORT_HASH]


def beat_key(tenant_id: object, session_key: str, message_ids: Iterable[object]) -> str:
    return check_key(f"{tenant_id}:beat:{session_key}:{message_hash(message_ids)}")


def extract_business_key(
    tool_name: str,
    tool_args: Mapping[str, object],
    key_fields: Sequence[str] = (),
    template: str | None = None,
) -> str:
    """What a call is about, such as `order:12345`.

    By the named fields, joined with `:`, or by a template such as `"order:{order_id}"`; `%` and `:` inside a value are
    percent-encoded, so that no two calls share a key by accident. A field that is missing or null is `InvalidKey`.
    Without fields it is the first 16 hex of the sha256 of the arguments (RFC 8785).
    """
    pattern = key_template(key_fields, template)
    if pattern is None:
        return arguments_hash(tool_args)[:_SHORT_HASH]
    try:
        return fill(pattern, {name: _spelled(value) for name, value in tool_args.items()})
    except InvalidKey as error:
        raise InvalidKey(f"{tool_name}: {error}") from error


def key_template(key_fields: Sequence[str], template: str | None) -> str | None:
    """The template that these fields are short for; None when the arguments themselves are the key."""
    if isinstance(key_fields, str):
        raise InvalidKey(f"key_fields is a list of argument names, not the text {key_fields!r}")
    if template is not None:
        if key_fields:
            raise InvalidKey("a tool has key_fields or a template, not both")
        if not any(name is not None for _, name in parse(template).parts):
            raise InvalidKey(f"the template {template!r} names no argument: every call would have one key")
        return template
    for name in key_fields:
        if not name or not set(name).isdisjoint("{}.[]!:"):
            raise InvalidKey(f"the key field {name!r} is not the name of an argument")
    return ":".join(f"{{{name}}}" for name in key_fields) or None


def arguments_hash(arguments: Mapping[str, object]) -> str:
    """The sha256 of the RFC 8785 arguments; of their tagged form where JSON has none for them."""
    try:
        return hashlib.sha256(canonical(cast("Json", dict(arguments)))).hexdigest()
    except InvalidKey:
        # Behind a name of their own: a tagged value is not taken for JSON that looks like it.
        return fingerprint(["tagged", dict(arguments)])


def _spelled(value: object) -> object:
    """A number as RFC 8785 writes it: a model that says 12345.0 means 12345."""
    return canonical(value).decode() if isinstance(value, float) else value


def tool_key(tool_name: str, business_key: str, turn_group_id: object) -> str:
    group = str(turn_group_id)
    if not group or any(unicodedata.category(mark) == "Cc" for mark in group):
        raise InvalidKey("a turn_group_id is a text without control characters")
    return check_key(f"{tool_name}:{business_key}:turn_group:{group}")


@overload
def build_tool_idempotency_key(tool_name: str, business_key: str, turn: HasGroup) -> str: ...
@overload
def build_tool_idempotency_key(
    tool_name: str,
    business_key: Mapping[str, object],
    turn: HasGroup,
    *,
    key_fields: Sequence[str] = (),
    template: str | None = None,
) -> str: ...
@overload
def build_tool_idempotency_key(
    tool_name: str,
    *,
    tool_args: Mapping[str, object],
    logical_turn: HasGroup,
    key_fields: Sequence[str] = (),
    template: str | None = None,
) -> str: ...
def build_tool_idempotency_key(
    tool_name: str,
    business_key: str | Mapping[str, object] | None = None,
    turn: HasGroup | None = None,
    *,
    tool_args: Mapping[str, object] | None = None,
    logical_turn: HasGroup | None = None,
    key_fields: Sequence[str] = (),
    template: str | None = None,
) -> str:
    """The key of a tool call: from its business key, or from its arguments and what they are keyed by."""
    about = tool_args if business_key is None else business_key
    group = logical_turn if turn is None else turn
    if about is None or group is None:
        raise InvalidKey("a tool's key needs a business key or the arguments, and the turn")
    if not isinstance(about, str):
        about = extract_business_key(tool_name, about, key_fields, template)
    return tool_key(tool_name, about, group.turn_group_id)
