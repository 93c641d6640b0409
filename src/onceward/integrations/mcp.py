"""Tools over the Model Context Protocol: `pip install 'onceward[mcp]'`.

    server = mcp_server(toolbox, ledger)                               # a separate server
    server = MCPServer("shop", extensions=[OnceTools(toolbox, ledger)])     # or more tools for an existing server

Both use the extension points of the `mcp` package. The structured content of every result is the envelope, so that a
model knows what it may do next, even if Onceward itself refuses a call.

Two calls of the same caller are the same call if these are equal:

1. the idempotency key: from `_meta.idempotency_key`, `arguments.meta`, `arguments.idempotency_key` or the HTTP header;
2. else the business key and the group: `_meta.turn_group_id`, else the session, else `turn_group_id=`;
3. else the business key, within `inferred_seconds`: the caller is the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack, cast

try:
    from mcp import types
    from mcp.server import Server, ServerRequestContext
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import principal_components
    from mcp.server.context import CallNext, HandlerResult
    from mcp.server.extension import Extension, ToolBinding
    from mcp.types.version import MODERN_PROTOCOL_VERSIONS
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"onceward.integrations.mcp needs {error.name!r}: pip install 'onceward[mcp]'", name=error.name
    ) from error

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.errors import (
    Busy,
    InvalidInput,
    InvalidKey,
    InvalidOption,
    KeyReused,
    NotDurable,
    NotFound,
    OncewardError,
)
from onceward.http.request.headers import KEY_HEADERS, key_of
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import RETAIN_SECONDS_MAX, Effect, check_seconds
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.functions import function_of
from onceward.tools.keys import Group, check_group, group_text, id_text, short_name
from onceward.tools.observer import Observer
from onceward.tools.tool import Tool
from onceward.tools.toolbox import Toolbox

Context: TypeAlias = ServerRequestContext[Any, Any]

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
_KEY_LENGTH_MAX = 255

# The output schema of every tool.
ENVELOPE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"enum": [status.value for status in CallStatus]},
        "tool": {"type": "string"},
        "key": {"type": "string"},
        "result": {},
        "receipt": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "may_retry": {"type": "boolean"},
        "how_to_check": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "first_at": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": list(Envelope(CallStatus.DONE, "").json()),
}
# The effect classes as hints of the protocol: read only, destructive, idempotent.
_HINTS = {
    Effect.PURE: (True, False, True),
    Effect.IDEMPOTENT: (False, False, True),
    Effect.COMPENSATABLE: (False, False, False),
    Effect.IRREVERSIBLE: (False, True, False),
}
# Errors that are raised before anything runs.
_NOTHING_RAN = (NotFound, InvalidInput, InvalidKey, InvalidOption, KeyReused, NotDurable)
_SAME_AGAIN = "Call it again with the same arguments and the same key: that does not repeat the effect."
_CHANGE_IT = "Nothing happened. Correct the call; the detail explains what is wrong."
_TELL_OPERATOR = "Calling it again does not help. Tell the person who runs this server."


class OnceToolsOptions(TypedDict, total=False):
    """The options of `OnceTools`; see there."""

    principal: str | Callable[[Context], str] | None
    tenant_id: str | None
    turn_group_id: Group | None
    require_group: bool | None
    inferred_seconds: float
    wait_seconds: float | None
    observer: Observer | None


class OnceTools(Extension):
    """The tools of a toolbox as an extension of an `MCPServer`. Other tools of the server are not affected.

    Args:
        toolbox: The tools.
        ledger: The ledger that records the calls.
        principal: The caller of requests without a token: a string, or a function of the request's context. By
            default, `local` on stdio and `anonymous` on HTTP.
        tenant_id: The tenant. By default, the principal.
        turn_group_id: The group of calls that do not name one, for a server of one conversation: a string, or a
            function without arguments that returns one.
        require_group: Whether calls with neither a key nor a group are refused. By default, they are refused over HTTP
            without a token, and accepted otherwise.
        inferred_seconds: How long the outcome of a call with neither a key nor a group is stored.
        wait_seconds: How long a call waits for a running duplicate.
        observer: Notified of each check of a key.

    Raises:
        InvalidOption: `principal`, `turn_group_id` or `inferred_seconds` is not valid.
    """

    identifier = "onceward/tools"

    def __init__(
        self,
        toolbox: Toolbox,
        ledger: Ledger,
        *,
        principal: str | Callable[[Context], str] | None = None,
        tenant_id: str | None = None,
        turn_group_id: Group | None = None,
        require_group: bool | None = None,
        inferred_seconds: float = INFERRED_SECONDS,
        wait_seconds: float | None = None,
        observer: Observer | None = None,
    ) -> None:
        if turn_group_id is not None:
            check_group(turn_group_id)
        if not callable(principal) and principal is not None:
            _principal(principal)
        self._toolbox = toolbox
        self._ledger = ledger
        self._principal = principal
        self._tenant_id = tenant_id
        self._turn_group_id = turn_group_id
        self._require_group = require_group
        self._inferred_seconds = check_seconds("inferred_seconds", inferred_seconds, RETAIN_SECONDS_MAX)
        self._wait_seconds = wait_seconds
        self._observer = observer
        self._running: set[asyncio.Task[Envelope]] = set()

    # Methods that an `MCPServer` calls on its extensions.

    def tools(self) -> Sequence[ToolBinding]:
        """Return every tool as a function with the same signature; called by the server.

        Returns:
            One binding for each tool.
        """

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Json]:
            # Called through `MCPServer.call_tool` by the program itself, without a request.
            return (await self._run_call(name, arguments, None)).json()

        return [
            ToolBinding(
                function_of(tool, call),
                kwargs={"name": tool.name, "description": tool.description, "annotations": _annotations(tool)},
            )
            for tool in self._toolbox
        ]

    async def intercept_tool_call(
        self, params: types.CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        """Run calls of tools of the toolbox, and pass other calls on; called by the server.

        Args:
            params: The name and the arguments of the call.
            ctx: The context of the request.
            call_next: Runs the call of any other tool.

        Returns:
            The result of the call.
        """
        if params.name not in self._toolbox:
            return await call_next(ctx)
        return await self.call_tool(ctx, params)

    # Handlers of a `Server`.

    async def list_tools(
        self, _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Handle `tools/list`.

        Returns:
            All tools of the toolbox.
        """
        return types.ListToolsResult(tools=[_mcp_tool(tool) for tool in self._toolbox])

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Handle `tools/call`.

        Args:
            context: The context of the request.
            params: The name and the arguments of the call.

        Returns:
            The envelope as text and as structured content. It is marked as an error if the call was refused or its
            outcome is unknown.
        """
        envelope = await self._run_call(params.name, params.arguments or {}, context)
        shown = envelope.json()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=compact(shown))],
            structured_content=shown,
            is_error=envelope.status in {CallStatus.REFUSED, CallStatus.UNKNOWN},
        )

    # Internals.

    async def _run_call(self, name: str, arguments: Mapping[str, Any], context: Context | None) -> Envelope:
        try:
            options = self._options(self._toolbox[name], arguments, context)
            call = self._toolbox.call(name, ledger=self._ledger, **options)
            # A separate task: a client that disconnects or stops waiting does not interrupt the effect. A retry gets
            # the outcome.
            task = asyncio.create_task(call)
            self._running.add(task)
            task.add_done_callback(self._discard_task)
            return await asyncio.shield(task)
        except OncewardError as error:
            return _error_envelope(name, error)

    def _discard_task(self, task: asyncio.Task[Envelope]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log it: the ledger has the outcome

    def _options(self, tool: Tool, arguments: Mapping[str, Any], context: Context | None) -> dict[str, Any]:
        """Return the options of `Toolbox.call`: the arguments, the principal, and the key or the group."""
        request = None if context is None else context.request
        token_caller = _token_caller(request)
        caller = token_caller or self._named_caller(context)
        meta: dict[str, Any] = dict((context and context.meta) or {})
        key, remaining = extract_key(tool, arguments, meta, request)
        options: dict[str, Any] = {
            "arguments": remaining,
            "principal": caller,
            "tenant_id": self._tenant_id,
            "idempotency_key": key,
            "wait_seconds": self._wait_seconds,
            "observer": self._observer,
        }
        if key is not None:
            return options
        group = self._group(meta, request, context)
        if group is None:
            required = self._require_group
            if required is None:
                required = request is not None and not token_caller
            if required and tool.effect is not Effect.PURE:
                raise InvalidInput(
                    "this server runs tools with effects only if it can recognize a retry; send _meta.idempotency_key,"
                    " the same for all attempts of one call, or _meta.turn_group_id, the same for all calls of one"
                    " conversation"
                )
            group = short_name(caller)
            options["retain_seconds"] = min(self._inferred_seconds, tool.idempotent_for)
        return {**options, "turn_group_id": group}

    def _named_caller(self, context: Context | None) -> str:
        if callable(self._principal):
            if context is None:
                return LOCAL
            return _principal(self._principal(context))
        if self._principal is not None:
            return self._principal
        return LOCAL if context is None or context.request is None else ANONYMOUS

    def _group(self, meta: Mapping[str, Any], request: Any, context: Context | None) -> str | None:
        named = meta.get(_GROUP_NAME)
        if named is not None:
            if not isinstance(named, str):
                raise InvalidInput(f"_meta.{_GROUP_NAME} must be a string, got {type(named).__name__}")
            try:
                return group_text(named)
            except InvalidOption as error:  # a mistake of the client, not of the server's author
                raise InvalidInput(f"_meta.{error}") from None
        # Newer versions of the protocol have no sessions: nothing verifies a session header there.
        if request is not None and context is not None and context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            session: str | None = request.headers.get(_SESSION_HEADER)
            if session:
                return session
        return None if self._turn_group_id is None else group_text(self._turn_group_id)


def mcp_server(
    toolbox: Toolbox,
    ledger: Ledger,
    *,
    name: str = "onceward",
    instructions: str | None = None,
    **options: Unpack[OnceToolsOptions],
) -> Server[Any]:
    """Create an MCP server with the tools of a toolbox, for any transport of the `mcp` package.

    Args:
        toolbox: The tools.
        ledger: The ledger that records the calls.
        name: The name of the server.
        instructions: The instructions of the server for clients.
        options: See `OnceTools`.

    Returns:
        The server.

    Raises:
        InvalidOption: An option is not valid.
    """
    tools = OnceTools(toolbox, ledger, **options)
    return Server(
        name,
        instructions=instructions,
        on_list_tools=tools.list_tools,
        on_call_tool=tools.call_tool,
    )


def extract_key(
    tool: Tool, arguments: Mapping[str, Any], meta: Mapping[str, Any], request: Any = None
) -> tuple[str | None, dict[str, Any]]:
    """Find the idempotency key of a call.

    Args:
        tool: The tool.
        arguments: The arguments of the call.
        meta: The `_meta` of the request.
        request: The HTTP request, if there is one.

    Returns:
        The key or None, and the arguments. The key is removed from them unless the tool declares it as an argument.

    Raises:
        InvalidInput: A key is not a string of 1 to 255 printable characters, or the call has different keys.
        InvalidKey: The header `Idempotency-Key` is not valid.
    """
    remaining = dict(arguments)
    declared = cast("Mapping[str, Json]", tool.parameters.get("properties", {}))
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
    if request is not None:
        lines = [request.headers.getlist(name) for name in KEY_HEADERS]
        if any(lines):
            found["the header Idempotency-Key"] = key_of(*lines)
    given = {place: _check_key(place, value) for place, value in found.items() if value is not None}
    if len({*given.values()}) > 1:
        raise InvalidInput(f"the call has different idempotency keys in {' and '.join(given)}; send only one")
    return next(iter(given.values()), None), remaining


def _check_key(place: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _KEY_LENGTH_MAX or not value.isprintable():
        raise InvalidInput(f"{place} must be a string of 1 to {_KEY_LENGTH_MAX} printable characters")
    return value


def _token_caller(request: Any) -> str:
    """Return the caller that the token of a request identifies, or "" without a token.

    It is the JSON form of client, issuer and subject, so that no two callers have the same.
    """
    user = None if request is None else request.scope.get("user")
    if not isinstance(user, AuthenticatedUser):
        return ""
    return compact(list(principal_components(user.access_token)))


def _principal(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidOption(
            f"principal= must be a string, or a function of the context that returns one, got {name!r:.60}"
        )
    return id_text("principal", name)


def _error_envelope(name: str, error: OncewardError) -> Envelope:
    """Return an Onceward error as an envelope, so that the model can read it instead of a protocol error."""
    if isinstance(error, Busy):
        status, how = CallStatus.IN_PROGRESS, _SAME_AGAIN
    elif isinstance(error, _NOTHING_RAN):
        status, how = CallStatus.REFUSED, _CHANGE_IT
    else:
        status, how = CallStatus.UNKNOWN, _SAME_AGAIN if error.retryable else _TELL_OPERATOR
    return Envelope(
        status, name, may_retry=error.retryable, how_to_check=how, detail=str(error) or error.code, code=error.code
    )


def _annotations(tool: Tool) -> types.ToolAnnotations:
    read_only, destructive, idempotent = _HINTS[tool.effect]
    return types.ToolAnnotations(read_only_hint=read_only, destructive_hint=destructive, idempotent_hint=idempotent)


def _mcp_tool(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description or None,
        input_schema=dict(tool.parameters),
        output_schema=ENVELOPE_SCHEMA,
        annotations=_annotations(tool),
    )
