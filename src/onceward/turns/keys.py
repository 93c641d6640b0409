"""The keys of turns, one shape for each layer, and the ledger scopes that keep the layers apart.

    api    {tenant}:{client key}
    beat   {tenant}:beat:{session}:{16 hex of the message ids}
    tool   {tool}:{business key}:turn_group:{turn_group_id}, or {tool}:key:{the caller's idempotency key}

A supersede chain shares its turn_group_id, so that a tool runs once for all of it; a queued turn has a new one.
"""

from __future__ import annotations

import hashlib
import inspect
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast, overload

from onceward.core.canonical import Json, canonical
from onceward.core.fingerprint import fingerprint
from onceward.core.key import check_built_key, check_key, fill, has_address, parse
from onceward.errors import InvalidKey, InvalidOption

if TYPE_CHECKING:
    from onceward.turns.tool import Tool

# The group of a call: its name, or a function that knows it when the call is made.
Group: TypeAlias = str | Callable[[], str]

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
    """A turn, as far as keys are concerned. Its group may be a UUID as well."""

    @property
    def turn_group_id(self) -> object: ...


def scope_of(layer: str, principal: str, tenant_id: object = "") -> str:
    """The ledger scope of one layer: no two of layer, tenant and principal share one."""
    return f"{layer}:{short_name(id_text('tenant_id', tenant_id))}:{short_name(id_text('principal', principal))}"


def id_text(what: str, value: object) -> str:
    """The text of an id: a string, a whole number or a UUID. `InvalidOption` for anything else, such as an object whose
    text is its memory address.
    """
    # By the type's own method: a subclass may show itself in any way.
    for kind in (str, int, uuid.UUID):
        if isinstance(value, kind) and not isinstance(value, bool):
            text = kind.__str__(value)
            if has_address(text):
                raise InvalidOption(f"{what} is the memory address of an object, which no retry has; pass its id")
            return text
    raise InvalidOption(f"{what} must be a string, a whole number or a UUID, not {_kind(value)}")


def check_group(group: object) -> None:
    """Refuse with `InvalidOption`, as early as it can be seen, what cannot name a group."""
    if isinstance(group, str):
        _group_name(group)
    elif not callable(group):
        raise InvalidOption(f"{_GROUP_RULE}, not {_kind(group)}")
    elif inspect.iscoroutinefunction(group):
        raise InvalidOption(f"{_GROUP_RULE}, not a coroutine function; await it before, and pass what it gives")
    else:
        try:
            inspect.signature(group).bind()
        except TypeError:
            raise InvalidOption(f"{_GROUP_RULE}, and this function takes arguments") from None
        except ValueError:
            pass  # a built-in that does not tell; its call will


def group_text(group: object) -> str:
    """The name of a group, from its function where it is one."""
    check_group(group)
    if isinstance(group, str):
        return _group_name(group)
    found = cast("Callable[[], object]", group)()
    if inspect.iscoroutine(found):
        found.close()  # nobody will await it
    if not isinstance(found, str):
        raise InvalidOption(f"{_GROUP_RULE}, and this function has returned {_kind(found)}")
    return _group_name(found)


_GROUP_RULE = "turn_group_id must be a string, or a function without arguments that returns one"


def _group_name(group: str) -> str:
    name = str.__str__(group)
    if not name or any(unicodedata.category(mark) == "Cc" for mark in name):
        raise InvalidOption("turn_group_id must be a string with at least one character and no control characters")
    return id_text("turn_group_id", name)


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def short_name(text: str) -> str:
    """A name as scopes have it: as it is when it is short and can be read, else its digest, which no encoded name looks like."""
    encoded = text.translate(_ESCAPES)
    data = encoded.encode("utf-8", "surrogatepass")
    if len(data) <= _NAME_BYTES_MAX and encoded.isprintable():
        return encoded
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def api_key(tenant_id: object, client_key: str) -> str:
    return check_key(f"{id_text('tenant_id', tenant_id)}:{client_key}")


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
    joined = ":".join(sorted(id_text("a message id", one) for one in message_ids))
    return hashlib.sha256(joined.encode()).hexdigest()[:_SHORT_HASH]


def beat_key(tenant_id: object, session_key: str, message_ids: Iterable[object]) -> str:
    tenant, session = id_text("tenant_id", tenant_id), id_text("session_key", session_key)
    return check_key(f"{tenant}:beat:{session}:{message_hash(message_ids)}")


def extract_business_key(
    tool_name: str | Tool,
    tool_args: Mapping[str, object],
    key_fields: Sequence[str] = (),
    template: str | None = None,
) -> str:
    """What a call is about, such as `order:12345`.

    A `Tool` brings its own key fields or template. Of a tool that is named, it goes by the fields of `key_fields`,
    joined with `:`, or by a template such as `"order:{order_id}"`; `%` and `:` inside a value are percent-encoded, so
    that no two calls share a key by accident. A field that is missing or null is `InvalidKey`. Without fields it is the
    first 16 hex of the sha256 of the arguments (RFC 8785).
    """
    declared = _declared(tool_name)
    if declared is not None:
        if key_fields or template is not None:
            raise InvalidOption(f"the tool {declared.name} has its own key; pass its name to use another one")
        return declared.business_key(declared.given(tool_args))
    return business_key(name_of(tool_name), tool_args, key_template(key_fields, template))


def business_key(name: str, arguments: Mapping[str, object], pattern: str | None) -> str:
    """The business key by a template that is checked already, or by all arguments."""
    if pattern is None:
        return arguments_hash(arguments)[:_SHORT_HASH]
    try:
        return fill(pattern, {field: _spelled(value) for field, value in arguments.items()})
    except InvalidKey as error:
        raise InvalidKey(f"{name}: {error}") from error


def name_of(tool: object) -> str:
    """The name of a tool, which is given by its name or by itself."""
    declared = _declared(tool)
    if declared is not None:
        return declared.name
    if not isinstance(tool, str) or not tool:
        raise InvalidOption(f"a tool is given by its name or by its Tool, not by {_kind(tool) if tool else repr(tool)}")
    return id_text("the name of a tool", tool)


def _declared(tool: object) -> Tool | None:
    from onceward.turns.tool import Tool  # noqa: PLC0415  # which is made with this module

    return tool if isinstance(tool, Tool) else None


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


def tool_key(name: str, business_key: str, turn_group_id: object) -> str:
    return check_built_key(f"{name}:{business_key}:turn_group:{group_text(turn_group_id)}")


def given_key(name: str, idempotency_key: str) -> str:
    """The key of a call that came with one: it alone says which calls are the same."""
    return check_built_key(f"{name}:key:{idempotency_key}")


@overload
def build_tool_idempotency_key(tool_name: str | Tool, business_key: str, turn: HasGroup) -> str: ...
@overload
def build_tool_idempotency_key(
    tool_name: str | Tool,
    business_key: Mapping[str, object],
    turn: HasGroup,
    *,
    key_fields: Sequence[str] = (),
    template: str | None = None,
) -> str: ...
@overload
def build_tool_idempotency_key(
    tool_name: str | Tool,
    *,
    tool_args: Mapping[str, object],
    logical_turn: HasGroup,
    key_fields: Sequence[str] = (),
    template: str | None = None,
) -> str: ...
def build_tool_idempotency_key(
    tool_name: str | Tool,
    business_key: str | Mapping[str, object] | None = None,
    turn: HasGroup | None = None,
    *,
    tool_args: Mapping[str, object] | None = None,
    logical_turn: HasGroup | None = None,
    key_fields: Sequence[str] = (),
    template: str | None = None,
) -> str:
    """The key of a tool call: from its business key, or from its arguments and what they are keyed by."""
    name = name_of(tool_name)
    about = tool_args if business_key is None else business_key
    of_turn = logical_turn if turn is None else turn
    if about is None or of_turn is None:
        raise InvalidKey("a tool's key needs a business key or the arguments, and the turn")
    group = of_turn.turn_group_id
    if isinstance(group, uuid.UUID):
        group = id_text("turn_group_id", group)
    if isinstance(about, str):
        about = id_text("the business key", about)
    elif isinstance(about, Mapping):
        about = extract_business_key(tool_name, about, key_fields, template)
    else:
        raise InvalidOption(f"the business key must be a string, or the arguments as a mapping, not {_kind(about)}")
    return tool_key(name, about, group)
