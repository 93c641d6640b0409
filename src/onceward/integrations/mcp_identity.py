"""The identity of a call over the Model Context Protocol: its caller, its idempotency key and its group.

The rules are the same for a server, for a FastMCP middleware and for the proxy, and they are only here. Two calls of the
same caller are the same call if these are equal:

1. the idempotency key: from `_meta.idempotency_key`, `arguments.meta`, `arguments.idempotency_key` or the HTTP header;
2. else the business key and the group: `_meta.turn_group_id`, else the session, else `turn_group_id=`;
3. else the business key, within `inferred_seconds`: the caller is the group.

The number of a JSON-RPC request is never a key: a client counts from the same number again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from onceward.core.json_text import compact
from onceward.errors import InvalidInput, InvalidOption
from onceward.http.request.headers import KEY_HEADERS, key_of
from onceward.ledger.terms import RETAIN_SECONDS_MAX, check_seconds
from onceward.tools.keys import Group, check_group, group_text, id_text, short_name

# Long enough for a client's retries, and short enough that a person can ask for the same effect again later.
INFERRED_SECONDS = 600.0
# Callers without a token and without `principal=`.
LOCAL, ANONYMOUS = "local", "anonymous"
# The argument for a client's metadata on a call, and the names of the key there and elsewhere.
_META = "meta"
_KEY_NAME = "idempotency_key"
_META_KEY_NAMES = ("idempotency-key", _KEY_NAME)
_GROUP_NAME = "turn_group_id"
_SESSION_HEADER = "mcp-session-id"
_SESSION_PARAMETER = "session_id"
_KEY_LENGTH_MAX = 255

ContextT = TypeVar("ContextT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Facts about a call from the protocol and its transport.

    `http` is the HTTP request, or None on stdio. `has_sessions` says whether the version of the protocol has sessions:
    newer versions have none, and nothing verifies a session header there.
    """

    meta: Mapping[str, Any]
    http: Any = None
    has_sessions: bool = False
    token_caller: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIdentity(Generic[ContextT]):
    """The options that identify callers and groups, and the rules that apply them. `OnceTools` explains the options.

    Raises:
        InvalidOption: An option is not valid.
    """

    principal: str | Callable[[ContextT], str] | None = None
    tenant_id: str | None = None
    turn_group_id: Group | None = None
    require_group: bool | None = None
    inferred_seconds: float = INFERRED_SECONDS

    def __post_init__(self) -> None:
        if self.turn_group_id is not None:
            check_group(self.turn_group_id)
        if not callable(self.principal) and self.principal is not None:
            _principal(self.principal)
        check_seconds("inferred_seconds", self.inferred_seconds, RETAIN_SECONDS_MAX)

    def call_options(
        self,
        arguments: Mapping[str, Any],
        request: Request,
        context: ContextT | None,
        *,
        declared: Collection[str],
        needs_group: bool,
        retain_seconds: float,
    ) -> dict[str, Any]:
        """Return the arguments of a call, its principal and tenant, and its key or its group.

        Args:
            arguments: The arguments as the client sent them.
            request: Facts about the call from the protocol and its transport.
            context: The context for a `principal=` that is a function; None if the program itself makes the call.
            declared: The names of the arguments that the tool declares.
            needs_group: Whether the tool has effects that belong to a group.
            retain_seconds: How long the tool's outcomes are stored.

        Returns:
            Options of `Toolbox.call`.

        Raises:
            InvalidInput: The call has different or invalid keys, an invalid group, or no group although it needs one.
            InvalidKey: The header `Idempotency-Key` is not valid.
            InvalidOption: `principal=` or `turn_group_id=` returned something invalid.
        """
        caller = request.token_caller or self._named_caller(request, context)
        key, remaining = extract_key(declared, arguments, request.meta, request.http)
        options: dict[str, Any] = {
            "arguments": remaining,
            "principal": caller,
            "tenant_id": self.tenant_id,
            "idempotency_key": key,
        }
        if key is not None:
            return options
        group = self._group(request)
        if group is None:
            group = short_name(caller)
            if not needs_group:
                return {**options, "turn_group_id": group}
            required = self.require_group
            if required is None:
                required = request.http is not None and not request.token_caller
            if required:
                raise InvalidInput(
                    "this server runs tools with effects only if it can recognize a retry; send _meta.idempotency_key,"
                    " the same for all attempts of one call, or _meta.turn_group_id, the same for all calls of one"
                    " conversation"
                )
            options["retain_seconds"] = min(self.inferred_seconds, retain_seconds)
        return {**options, "turn_group_id": group}

    def _named_caller(self, request: Request, context: ContextT | None) -> str:
        if callable(self.principal):
            return LOCAL if context is None else _principal(self.principal(context))
        if self.principal is not None:
            return self.principal
        return LOCAL if request.http is None else ANONYMOUS

    def _group(self, request: Request) -> str | None:
        named = request.meta.get(_GROUP_NAME)
        if named is not None:
            if not isinstance(named, str):
                raise InvalidInput(f"_meta.{_GROUP_NAME} must be a string, got {type(named).__name__}")
            try:
                return group_text(named)
            except InvalidOption as error:  # a mistake of the client, not of the server's author
                raise InvalidInput(f"_meta.{error}") from None
        if request.has_sessions and request.http is not None:
            # The older transport with server-sent events has its session in the address.
            session: str | None = request.http.headers.get(_SESSION_HEADER) or request.http.query_params.get(
                _SESSION_PARAMETER
            )
            if session:
                return session
        return None if self.turn_group_id is None else group_text(self.turn_group_id)


def token_caller(client_id: str, issuer: str | None, subject: str | None) -> str:
    """Return the caller that a token identifies.

    Args:
        client_id: The client.
        issuer: The issuer of the token.
        subject: The user.

    Returns:
        The JSON form of all three, so that no two callers have the same.
    """
    return compact([client_id, issuer, subject])


def extract_key(
    declared: Collection[str], arguments: Mapping[str, Any], meta: Mapping[str, Any], http: Any = None
) -> tuple[str | None, dict[str, Any]]:
    """Find the idempotency key of a call.

    Args:
        declared: The names of the arguments that the tool declares.
        arguments: The arguments of the call.
        meta: The `_meta` of the request.
        http: The HTTP request, if there is one.

    Returns:
        The key or None, and the arguments. The key is removed from them unless the tool declares it as an argument.

    Raises:
        InvalidInput: A key is not a string of 1 to 255 printable characters, or the call has different keys.
        InvalidKey: The header `Idempotency-Key` is not valid.
    """
    remaining = dict(arguments)
    found = {f"_meta.{_KEY_NAME}": meta.get(_KEY_NAME)}
    meta_argument = remaining.get(_META)
    if isinstance(meta_argument, Mapping):
        found |= {f"arguments.{_META}[{name!r}]": meta_argument.get(name) for name in _META_KEY_NAMES}
        others = {name: value for name, value in meta_argument.items() if name not in _META_KEY_NAMES}
        if _META not in declared and len(others) < len(meta_argument):
            del remaining[_META]
            remaining |= {_META: others} if others else {}
    found[f"arguments.{_KEY_NAME}"] = remaining.get(_KEY_NAME)
    if _KEY_NAME not in declared:
        remaining.pop(_KEY_NAME, None)
    if http is not None:
        lines = [http.headers.getlist(name) for name in KEY_HEADERS]
        if any(lines):
            found["the header Idempotency-Key"] = key_of(*lines)
    given = {place: _check_key(place, value) for place, value in found.items() if value is not None}
    if len({*given.values()}) > 1:
        raise InvalidInput(f"the call has different idempotency keys in {' and '.join(given)}; send only one")
    return next(iter(given.values()), None), remaining


def may_have_key(arguments: Mapping[str, Any]) -> bool:
    """Return whether the arguments contain a key, so that it matters which of them the tool declares."""
    meta_argument = arguments.get(_META)
    inside = isinstance(meta_argument, Mapping) and any(name in meta_argument for name in _META_KEY_NAMES)
    return inside or _KEY_NAME in arguments


def _check_key(place: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _KEY_LENGTH_MAX or not value.isprintable():
        raise InvalidInput(f"{place} must be a string of 1 to {_KEY_LENGTH_MAX} printable characters")
    return value


def _principal(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidOption(
            f"principal= must be a string, or a function of the context that returns one, got {name!r:.60}"
        )
    return id_text("principal", name)
