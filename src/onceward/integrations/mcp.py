"""Tools over the Model Context Protocol: `pip install 'onceward[mcp]'`.

    server = mcp_server(toolbox, ledger)                               # a separate server
    server = MCPServer("shop", extensions=[OnceTools(toolbox, ledger)])     # or more tools for an existing server

Both use the extension points of the `mcp` package. The structured content of every result is the envelope, so that a
model knows what it may do next, even if Onceward itself refuses a call.

`mcp_identity.py` says which calls are the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack, cast

from onceward.errors import OncewardError, missing_extra

try:
    from mcp import types
    from mcp.server import Server, ServerRequestContext
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import principal_components
    from mcp.server.context import CallNext, HandlerResult
    from mcp.server.extension import Extension, ToolBinding
    from mcp.types.version import MODERN_PROTOCOL_VERSIONS
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "mcp") from error

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.integrations.mcp_identity import INFERRED_SECONDS, CallIdentity, Request, token_caller
from onceward.integrations.running_calls import RunningCalls
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import Effect
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.functions import function_of
from onceward.tools.keys import Group
from onceward.tools.observer import Observer
from onceward.tools.receipts import error_envelope
from onceward.tools.tool import Once, Tool
from onceward.tools.toolbox import Toolbox

Context: TypeAlias = ServerRequestContext[Any, Any]

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
        self._toolbox = toolbox
        self._ledger = ledger
        self._identity: CallIdentity[Context] = CallIdentity(
            principal=principal,
            tenant_id=tenant_id,
            turn_group_id=turn_group_id,
            require_group=require_group,
            inferred_seconds=inferred_seconds,
        )
        self._wait_seconds = wait_seconds
        self._observer = observer
        self._running = RunningCalls()

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
            return await self._running.run(call)
        except OncewardError as error:
            return error_envelope(name, error)

    def _options(self, tool: Tool, arguments: Mapping[str, Any], context: Context | None) -> dict[str, Any]:
        """Return the options of `Toolbox.call`: the arguments, the principal, and the key or the group."""
        identity = self._identity.call_options(
            arguments,
            Request(meta={}) if context is None else request_of(context),
            context,
            declared=cast("Mapping[str, Json]", tool.parameters.get("properties", {})),
            needs_group=tool.effect is not Effect.PURE and tool.once is not Once.EVER,
            retain_seconds=tool.idempotent_for,
        )
        return {**identity, "wait_seconds": self._wait_seconds, "observer": self._observer}


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


class RequestContext(Protocol):
    """The context of a request: that of the `mcp` package, or FastMCP's own."""

    @property
    def meta(self) -> Any: ...
    @property
    def request(self) -> Any: ...
    @property
    def protocol_version(self) -> str: ...


def request_of(context: RequestContext) -> Request:
    """Collect the facts about a call from the protocol and its transport.

    Args:
        context: The context of the request.

    Returns:
        The metadata, the HTTP request and the caller that its token identifies.
    """
    http = context.request
    return Request(
        meta=dict(context.meta or {}),
        http=http,
        has_sessions=context.protocol_version not in MODERN_PROTOCOL_VERSIONS,
        token_caller=_token_caller(http),
    )


def _token_caller(http: Any) -> str:
    """Return the caller that the token of a request identifies, or "" without a token."""
    user = None if http is None else http.scope.get("user")
    if not isinstance(user, AuthenticatedUser):
        return ""
    client_id, issuer, subject = principal_components(user.access_token)
    if subject is None:
        # A verifier may put the user into the claims only.
        claimed = (user.access_token.claims or {}).get("sub")
        subject = None if claimed is None else str(claimed)
    return token_caller(client_id, issuer, subject)


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
