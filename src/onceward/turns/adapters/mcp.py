"""A toolbox as a server of the Model Context Protocol.

The envelope is the structured content of every result, so that a model knows what it may do next. A client says in
`_meta.turn_group_id` (or `_meta.idempotency_key`) which calls belong together; without it, the HTTP session is the
group, or the one that the server was given. A call without any group is refused: nobody could tell its retry from
another call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError

from onceward.core.text import compact
from onceward.errors import OncewardError
from onceward.ledger import Ledger
from onceward.terms import Effect
from onceward.turns.envelope import CallStatus, Envelope
from onceward.turns.observe import Observer
from onceward.turns.tool import Tool
from onceward.turns.toolbox import Toolbox

Context: TypeAlias = ServerRequestContext[Any, Any]

# Where a client names the group of a call, in the order in which they are looked for.
GROUP_NAMES = ("turn_group_id", "idempotency_key")
_SESSION_HEADER = "mcp-session-id"

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
    },
    "required": ["status", "tool", "key", "result", "receipt", "may_retry", "how_to_check", "detail"],
}
# What the classes say in the words of the protocol: read only, destructive, idempotent.
_HINTS = {
    Effect.PURE: (True, False, True),
    Effect.IDEMPOTENT: (False, False, True),
    Effect.COMPENSATABLE: (False, False, False),
    Effect.IRREVERSIBLE: (False, True, False),
}


def mcp_server(
    toolbox: Toolbox,
    ledger: Ledger,
    *,
    name: str = "onceward",
    instructions: str | None = None,
    principal: str | Callable[[Context], str] = "local",
    tenant_id: str | None = None,
    turn_group_id: str | None = None,
    wait_seconds: float | None = None,
    observer: Observer | None = None,
) -> Server[Any]:
    """The server; it is run on any transport of its package.

    principal      who calls: a text, or a function of the request's context
    turn_group_id  the group of calls that name none, for a server that serves one conversation, as on stdio
    """
    running: set[asyncio.Task[Envelope]] = set()

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_shown(tool) for tool in toolbox])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        group = _group(context) or turn_group_id
        if group is None and not _is_pure(toolbox, params.name):
            detail = "the call belongs to no group; name one in _meta.turn_group_id, the same for all its retries"
            return _result(Envelope(CallStatus.REFUSED, params.name, detail=detail))
        call = toolbox.call(
            params.name,
            params.arguments or {},
            ledger=ledger,
            turn_group_id=group or "none",
            principal=principal if isinstance(principal, str) else principal(context),
            tenant_id=tenant_id,
            wait_seconds=wait_seconds,
            observer=observer,
        )
        # A task of its own: a client that goes away, or gives up waiting, does not stop an effect in its middle. What
        # became of it waits for the retry.
        task = asyncio.create_task(call)
        running.add(task)
        task.add_done_callback(running.discard)
        try:
            return _result(await asyncio.shield(task))
        except OncewardError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=str(error)) from error

    return Server(
        name,
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda tool: toolbox[tool].parameters if tool in toolbox else None,
    )


def _shown(tool: Tool) -> types.Tool:
    read_only, destructive, idempotent = _HINTS[tool.effect]
    return types.Tool(
        name=tool.name,
        description=tool.description or None,
        input_schema=dict(tool.parameters),
        output_schema=ENVELOPE_SCHEMA,
        annotations=types.ToolAnnotations(
            read_only_hint=read_only, destructive_hint=destructive, idempotent_hint=idempotent
        ),
    )


def _result(envelope: Envelope) -> types.CallToolResult:
    shown = envelope.json()
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=compact(shown))],
        structured_content=shown,
        is_error=envelope.status in {CallStatus.REFUSED, CallStatus.UNKNOWN},
    )


def _group(context: Context) -> str | None:
    meta: dict[str, Any] = dict(context.meta or {})
    for name in GROUP_NAMES:
        if isinstance(meta.get(name), str) and meta[name]:
            return str(meta[name])
    headers = getattr(context.request, "headers", None)
    return None if headers is None else headers.get(_SESSION_HEADER)


def _is_pure(toolbox: Toolbox, name: str) -> bool:
    return name not in toolbox or toolbox[name].effect is Effect.PURE
