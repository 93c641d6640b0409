"""Tools over the Model Context Protocol: `pip install 'onceward[mcp]'`.

    server = mcp_server(toolbox, ledger)                               # a server of its own
    server = MCPServer("shop", extensions=[OnceTools(toolbox, ledger)])     # or more tools for a server that you have

Both are made of the extension points of the `mcp` package. The envelope is the structured content of every result, so
that a model knows what it may do next; also when Onceward itself refuses a call.

A call is the same call again when its caller is the same, and

1. its idempotency key: from `_meta.idempotency_key`, `arguments.meta`, `arguments.idempotency_key` or the HTTP header;
2. else what it is about, in its group: `_meta.turn_group_id`, else the session, else `turn_group_id=`;
3. else what it is about, within `inferred_seconds`: the caller is the group.
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
from onceward.core.request import KEY_HEADERS, key_of
from onceward.core.text import compact
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
from onceward.ledger import Ledger
from onceward.terms import RETAIN_SECONDS_MAX, Effect, check_seconds
from onceward.turns.adapters.functions import function_of
from onceward.turns.envelope import CallStatus, Envelope
from onceward.turns.keys import Group, check_group, group_text, id_text, short_name
from onceward.turns.observe import Observer
from onceward.turns.tool import Tool
from onceward.turns.toolbox import Toolbox

Context: TypeAlias = ServerRequestContext[Any, Any]

# Long enough for a client's retries, short enough that a person who asks for the same again later gets it.
INFERRED_SECONDS = 600.0
# Callers without a token and without `principal=`.
LOCAL, ANONYMOUS = "local", "anonymous"
# The argument that holds a client's remarks on a call, and what its key is called there and elsewhere.
_META = "meta"
_KEY_NAME = "idempotency_key"
_META_KEY_NAMES = ("idempotency-key", _KEY_NAME)
_GROUP_NAME = "turn_group_id"
_SESSION_HEADER = "mcp-session-id"
_KEY_LENGTH_MAX = 255

# What every tool answers with.
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
# What the classes say in the words of the protocol: read only, destructive, idempotent.
_HINTS = {
    Effect.PURE: (True, False, True),
    Effect.IDEMPOTENT: (False, False, True),
    Effect.COMPENSATABLE: (False, False, False),
    Effect.IRREVERSIBLE: (False, True, False),
}
# Errors that are found before anything runs.
_NOTHING_RAN = (NotFound, InvalidInput, InvalidKey, InvalidOption, KeyReused, NotDurable)
_SAME_AGAIN = "Call it again with the same arguments and the same key: what was done is not done again."
_CHANGE_IT = "Nothing happened. Correct the call as the detail says."
_TELL_SOMEBODY = "Calling it again does not help. Tell the person who runs this server."


class Options(TypedDict, total=False):
    """The options of `OnceTools`, which explains them."""

    principal: str | Callable[[Context], str] | None
    tenant_id: str | None
    turn_group_id: Group | None
    require_group: bool | None
    inferred_seconds: float
    wait_seconds: float | None
    observer: Observer | None


class OnceTools(Extension):
    """The tools of a toolbox for an `MCPServer`, which may have other tools as well; those it leaves alone.

    principal         who calls when there is no token: a string, or a function of the request's context. Without it,
                      callers are `local` on stdio and `anonymous` on HTTP
    tenant_id         as in `Toolbox.call`
    turn_group_id     the group of calls that name none, for a server of one conversation: a string, or a function
                      without arguments that returns one
    require_group     refuse calls with neither a key nor a group. By default, those over HTTP without a token
    inferred_seconds  how long the outcome of such a call is kept, where it is not refused
    wait_seconds      how long a duplicate waits for the call that runs
    observer          told of every check of a key
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

    # What an `MCPServer` asks of its extensions.

    def tools(self) -> Sequence[ToolBinding]:
        """Every tool as a function of the same signature."""

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Json]:
            # Of `MCPServer.call_tool`, by the program itself: there is no request.
            return (await self._answer(name, arguments, None)).json()

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
        """Answer calls of tools of the toolbox; pass others on."""
        if params.name not in self._toolbox:
            return await call_next(ctx)
        return await self.call_tool(ctx, params)

    # What a `Server` asks of its handlers.

    async def list_tools(
        self, _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_shown(tool) for tool in self._toolbox])

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        envelope = await self._answer(params.name, params.arguments or {}, context)
        shown = envelope.json()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=compact(shown))],
            structured_content=shown,
            is_error=envelope.status in {CallStatus.REFUSED, CallStatus.UNKNOWN},
        )

    # Inside.

    async def _answer(self, name: str, arguments: Mapping[str, Any], context: Context | None) -> Envelope:
        try:
            options = self._options(self._toolbox[name], arguments, context)
            call = self._toolbox.call(name, ledger=self._ledger, **options)
            # A task of its own: a client that goes away, or gives up waiting, does not stop an effect in its middle.
            # What became of it waits for the retry.
            task = asyncio.create_task(call)
            self._running.add(task)
            task.add_done_callback(self._ended)
            return await asyncio.shield(task)
        except OncewardError as error:
            return _failed(name, error)

    def _ended(self, task: asyncio.Task[Envelope]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: its client may have gone, and the ledger has what became of the call

    def _options(self, tool: Tool, arguments: Mapping[str, Any], context: Context | None) -> dict[str, Any]:
        """Who calls what, and what tells this call from others."""
        request = None if context is None else context.request
        token = _token(request)
        caller = token or self._named_caller(context)
        meta: dict[str, Any] = dict((context and context.meta) or {})
        key, left = taken_key(tool, arguments, meta, request)
        options: dict[str, Any] = {
            "arguments": left,
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
                required = request is not None and not token
            if required and tool.effect is not Effect.PURE:
                raise InvalidInput(
                    "this server runs a tool with effects only for calls whose retries it can recognise; send"
                    " _meta.idempotency_key, the same for all tries of one call, or _meta.turn_group_id, the same for"
                    " all calls of one conversation"
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
                raise InvalidInput(f"_meta.{_GROUP_NAME} must be a string, not {type(named).__name__}")
            try:
                return group_text(named)
            except InvalidOption as error:  # the client's mistake, and not that of whoever made the server
                raise InvalidInput(f"_meta.{error}") from None
        # Newer versions of the protocol have no sessions; a header that claims one is not checked by anybody.
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
    **options: Unpack[Options],
) -> Server[Any]:
    """A server of these tools, to be run on any transport of its package. The options are those of `OnceTools`."""
    tools = OnceTools(toolbox, ledger, **options)
    return Server(
        name,
        instructions=instructions,
        on_list_tools=tools.list_tools,
        on_call_tool=tools.call_tool,
    )


def taken_key(
    tool: Tool, arguments: Mapping[str, Any], meta: Mapping[str, Any], request: Any = None
) -> tuple[str | None, dict[str, Any]]:
    """The idempotency key of a call, and the arguments without it where the tool does not declare it itself."""
    left = dict(arguments)
    declared = cast("Mapping[str, Json]", tool.parameters.get("properties", {}))
    found = {f"_meta.{_KEY_NAME}": meta.get(_KEY_NAME)}
    remarks = left.get(_META)
    if isinstance(remarks, Mapping):
        found |= {f"arguments.{_META}[{name!r}]": remarks.get(name) for name in _META_KEY_NAMES}
        others = {name: value for name, value in remarks.items() if name not in _META_KEY_NAMES}
        if _META not in declared and len(others) < len(remarks):
            del left[_META]
            left |= {_META: others} if others else {}
    found[f"arguments.{_KEY_NAME}"] = left.get(_KEY_NAME)
    if _KEY_NAME not in declared:
        left.pop(_KEY_NAME, None)
    if request is not None:
        lines = [request.headers.getlist(name) for name in KEY_HEADERS]
        if any(lines):
            found["the header Idempotency-Key"] = key_of(*lines)
    given = {place: _checked(place, value) for place, value in found.items() if value is not None}
    if len({*given.values()}) > 1:
        raise InvalidInput(f"the call has idempotency keys that differ, in {' and '.join(given)}; send one")
    return next(iter(given.values()), None), left


def _checked(place: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _KEY_LENGTH_MAX or not value.isprintable():
        raise InvalidInput(f"{place} must be a string of 1 to {_KEY_LENGTH_MAX} printable characters")
    return value


def _token(request: Any) -> str:
    """The caller by the token of the request, empty without one: client, issuer and subject. As JSON, in which no two
    callers look alike.
    """
    user = None if request is None else request.scope.get("user")
    if not isinstance(user, AuthenticatedUser):
        return ""
    return compact(list(principal_components(user.access_token)))


def _principal(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidOption(f"principal= is a string, or a function of the context that returns one, not {name!r:.60}")
    return id_text("principal", name)


def _failed(name: str, error: OncewardError) -> Envelope:
    """What a model reads of an error of Onceward, instead of a failure of the protocol."""
    if isinstance(error, Busy):
        status, how = CallStatus.IN_PROGRESS, _SAME_AGAIN
    elif isinstance(error, _NOTHING_RAN):
        status, how = CallStatus.REFUSED, _CHANGE_IT
    else:
        status, how = CallStatus.UNKNOWN, _SAME_AGAIN if error.retryable else _TELL_SOMEBODY
    return Envelope(
        status, name, may_retry=error.retryable, how_to_check=how, detail=str(error) or error.code, code=error.code
    )


def _annotations(tool: Tool) -> types.ToolAnnotations:
    read_only, destructive, idempotent = _HINTS[tool.effect]
    return types.ToolAnnotations(read_only_hint=read_only, destructive_hint=destructive, idempotent_hint=idempotent)


def _shown(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description or None,
        input_schema=dict(tool.parameters),
        output_schema=ENVELOPE_SCHEMA,
        annotations=_annotations(tool),
    )
