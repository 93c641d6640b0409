"""The keys of turns, one format for each layer, and the ledger scopes that separate the layers.

    api    {tenant}:{client key}
    beat   {tenant}:beat:{session}:{16 hex of the message ids}
    tool   {tool}:{business key}:turn_group:{turn_group_id}, or {tool}:key:{the caller's idempotency key}
    ever   {tool}:{business key}, of tools that have their effect once, whatever the group

All turns of a turn group share its turn_group_id, so that a tool runs once for the group. A queued turn begins a new
group.
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
    from onceward.tools.tool import Tool

# The group of a call: its name, or a function that returns it when the call is made.
Group: TypeAlias = str | Callable[[], str]

# The layers. Each has its own ledger scope for each tenant and principal.
API = "api"
BEAT = "beat"
TOOL = "tool"
EVER = "ever"
DELIVERY = "delivery"

# A scope of the ledger has at most 255 bytes: up to 65 for the namespace, 9 for the layer, the rest for two names.
_NAME_BYTES_MAX = 80
_SHORT_HASH = 16
_CONTENT_HASH = 32

_ESCAPES = {ord(mark): f"%{ord(mark):02X}" for mark in "%:"}


class HasGroup(Protocol):
    """Anything with a turn group, such as a turn. The group may be a UUID."""

    @property
    def turn_group_id(self) -> object: ...


def scope_of(layer: str, principal: str, tenant_id: object = "") -> str:
    """Return the ledger scope of a layer, a tenant and a principal. No two combinations share a scope."""
    return f"{layer}:{short_name(id_text('tenant_id', tenant_id))}:{short_name(id_text('principal', principal))}"


def is_ever(scope: str) -> bool:
    """Return whether a ledger scope is one of calls that happen once ever, whose entries must not expire."""
    return scope.partition(":")[0].partition(".")[0] == EVER


def id_text(what: str, value: object) -> str:
    """Return the text of an id: a string, a whole number or a UUID.

    Raises `InvalidOption` for anything else, and for a text with the memory address of an object.
    """
    # Call the method of the base type: a subclass may override it.
    for kind in (str, int, uuid.UUID):
        if isinstance(value, kind) and not isinstance(value, bool):
            text = kind.__str__(value)
            if has_address(text):
                raise InvalidOption(
                    f"{what} contains the memory address of an object, which differs on each retry; pass its id"
                )
            return text
    raise InvalidOption(f"{what} must be a string, a whole number or a UUID, got {_kind(value)}")


def check_group(group: object) -> None:
    """Raise `InvalidOption` for a value that cannot be a group, before any call is made."""
    if isinstance(group, str):
        _group_name(group)
    elif not callable(group):
        raise InvalidOption(f"{_GROUP_RULE}, got {_kind(group)}")
    elif inspect.iscoroutinefunction(group):
        raise InvalidOption(f"{_GROUP_RULE}, got a coroutine function; await it first, and pass its result")
    else:
        try:
            inspect.signature(group).bind()
        except TypeError:
            raise InvalidOption(f"{_GROUP_RULE}, got a function that takes arguments") from None
        except ValueError:
            pass  # a built-in without a signature; its call will fail if it needs arguments


def group_text(group: object) -> str:
    """Return the name of a group; call it if it is a function."""
    check_group(group)
    if isinstance(group, str):
        return _group_name(group)
    found = cast("Callable[[], object]", group)()
    if inspect.iscoroutine(found):
        found.close()  # avoid the warning that it was never awaited
    if not isinstance(found, str):
        raise InvalidOption(f"{_GROUP_RULE}, got a function that returned {_kind(found)}")
    return _group_name(found)


_GROUP_RULE = "turn_group_id must be a string, or a function without arguments that returns one"


def _group_name(group: str) -> str:
    name = str.__str__(group)
    if not name or any(unicodedata.category(mark) == "Cc" for mark in name):
        raise InvalidOption("turn_group_id must be a string with at least one character and no control characters")
    return id_text("turn_group_id", name)


def value_for(option: str, value: object, context: object) -> str:
    """Return an option of a call: its text, or the result of its function, which may take the framework's context.

    Raises `InvalidOption` for anything that is not a text.
    """
    if callable(value):
        value = value(context) if inspect.signature(value).parameters else value()
        if inspect.iscoroutine(value):
            value.close()  # avoid the warning that it was never awaited
    if not isinstance(value, str) or not value:
        found = "an empty one" if value == "" else _kind(value)
        raise InvalidOption(f"{option}= must be a text, or a function that returns one, got {found}")
    return id_text(option, value)


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def short_name(text: str) -> str:
    """Return a name for a scope: the encoded name if it is short and printable, else a digest that no name equals."""
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
    """Return a key for a request without one: 32 hex digits of a hash of its sender, session and messages.

    The order of the messages does not matter. `metadata` is its meaningful part, see `fingerprint.meaningful`.
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
    """Return 16 hex digits of a hash of the sorted ids. The order in which the messages arrived does not matter."""
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
    """Return the business key of a tool call, such as `order:12345`.

    `%` and `:` inside a value are percent-encoded, so that two calls never share a key by accident.

    Args:
        tool_name: The name of a tool, or a `Tool`, which has its own key fields or template.
        tool_args: The arguments of the call.
        key_fields: The arguments that form the key, joined with `:`.
        template: A template of the key instead of `key_fields`, such as `"order:{order_id}"`.

    Returns:
        The business key. Without fields and template, the first 16 hex digits of the sha256 of the arguments
        (RFC 8785).

    Raises:
        InvalidKey: A field is missing or null, or the template is not valid.
        InvalidInput: The `Tool` does not accept these arguments.
        InvalidOption: `key_fields` or `template` is combined with a `Tool`, or `tool_name` is not valid.
    """
    declared = _declared(tool_name)
    if declared is not None:
        if key_fields or template is not None:
            raise InvalidOption(
                f"the tool {declared.name} declares its own key; to use another key, pass the tool by its name"
            )
        return declared.business_key(declared.normalized(tool_args))
    return business_key(name_of(tool_name), tool_args, key_template(key_fields, template))


def business_key(name: str, arguments: Mapping[str, object], pattern: str | None) -> str:
    """Return the business key by a checked template, or by all arguments if there is none."""
    if pattern is None:
        return arguments_hash(arguments)[:_SHORT_HASH]
    try:
        return fill(pattern, {field: _spelled(value) for field, value in arguments.items()})
    except InvalidKey as error:
        raise InvalidKey(f"{name}: {error}") from error


def name_of(tool: object) -> str:
    """Return the name of a tool that is given by its name or as a `Tool`."""
    declared = _declared(tool)
    if declared is not None:
        return declared.name
    if not isinstance(tool, str) or not tool:
        raise InvalidOption(f"a tool must be given by its name or as a Tool, got {_kind(tool) if tool else repr(tool)}")
    return id_text("the name of a tool", tool)


def _declared(tool: object) -> Tool | None:
    from onceward.tools.tool import Tool  # noqa: PLC0415  # it imports this module

    return tool if isinstance(tool, Tool) else None


def key_template(key_fields: Sequence[str], template: str | None) -> str | None:
    """Return the template of the business key; None if all arguments form the key."""
    if isinstance(key_fields, str):
        raise InvalidKey(f"key_fields must be a list of argument names, got the string {key_fields!r}")
    if template is not None:
        if key_fields:
            raise InvalidKey("a tool cannot have both key_fields and a template")
        if not any(name is not None for _, name in parse(template).parts):
            raise InvalidKey(f"the template {template!r} names no argument: every call would have the same key")
        return template
    for name in key_fields:
        if not name or not set(name).isdisjoint("{}.[]!:"):
            raise InvalidKey(f"the key field {name!r} is not the name of an argument")
    return ":".join(f"{{{name}}}" for name in key_fields) or None


def arguments_hash(arguments: Mapping[str, object]) -> str:
    """Return the sha256 of the arguments in RFC 8785 form, or in their tagged form if they have no RFC 8785 form."""
    try:
        return hashlib.sha256(canonical(cast("Json", dict(arguments)))).hexdigest()
    except InvalidKey:
        # The mark "tagged" separates a tagged value from JSON that looks the same.
        return fingerprint(["tagged", dict(arguments)])


def _spelled(value: object) -> object:
    """Format a float as in RFC 8785: 12345.0 from a model means 12345."""
    return canonical(value).decode() if isinstance(value, float) else value


def tool_key(name: str, business_key: str, turn_group_id: object) -> str:
    return check_built_key(f"{name}:{business_key}:turn_group:{group_text(turn_group_id)}")


def ever_key(name: str, business_key: str) -> str:
    """Return the key of a call that happens once, whatever its group."""
    return check_built_key(f"{name}:{business_key}")


def given_key(name: str, idempotency_key: str) -> str:
    """Return the key of a call that has an idempotency key: no business key and no group is added to it."""
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
    """Build the key of a tool call, from its business key or from its arguments.

    Args:
        tool_name: The name of a tool, or a `Tool`.
        business_key: The business key, or the arguments of the call.
        turn: The turn, or any object with a `turn_group_id`.
        tool_args: Another name for `business_key`.
        logical_turn: Another name for `turn`.
        key_fields: The arguments that form the business key.
        template: A template of the business key instead of `key_fields`.

    Returns:
        The key: `{tool}:{business key}:turn_group:{turn_group_id}`.

    Raises:
        InvalidKey: The business key or the turn is missing, or the arguments do not form a key.
        InvalidInput: The `Tool` does not accept these arguments.
        InvalidOption: A value has a wrong type.
    """
    name = name_of(tool_name)
    key_source = tool_args if business_key is None else business_key
    any_turn = logical_turn if turn is None else turn
    if key_source is None or any_turn is None:
        raise InvalidKey("the key of a tool call needs a turn, and a business key or the arguments")
    group = any_turn.turn_group_id
    if isinstance(group, uuid.UUID):
        group = id_text("turn_group_id", group)
    if isinstance(key_source, str):
        key_source = id_text("the business key", key_source)
    elif isinstance(key_source, Mapping):
        key_source = extract_business_key(tool_name, key_source, key_fields, template)
    else:
        raise InvalidOption(
            f"the business key must be a string, or the arguments as a mapping, got {_kind(key_source)}"
        )
    return tool_key(name, key_source, group)
