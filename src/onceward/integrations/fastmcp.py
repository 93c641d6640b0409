"""Once-only tools of a FastMCP server: `pip install 'onceward[fastmcp]'`.

    server = FastMCP("shop")
    server.add_middleware(OnceMiddleware(ledger, {"refund": {"effect": "irreversible", "key_fields": ["order_id"]}}))

The tools stay as they are. The middleware uses FastMCP's own hook, `on_call_tool`. A call that happened returns the
tool's own result, with the envelope in `_meta.onceward`; `mcp_result.py` has the other cases. `mcp_identity.py` says
which calls are the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from onceward.errors import NotDone, OncewardError, missing_extra

try:
    from fastmcp.exceptions import AuthorizationError, DisabledError, NotFoundError, ToolError, ValidationError
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.tools.base import InputRequiredToolResult, ToolResult
    from mcp.types import CallToolRequestParams, CallToolResult
    from pydantic import ValidationError as ArgumentError
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "fastmcp") from error

from onceward.integrations.mcp import request_of
from onceward.integrations.mcp_identity import INFERRED_SECONDS, CallIdentity, Request, may_have_key
from onceward.integrations.mcp_result import foreign_result, lacks_result, text_of
from onceward.integrations.running_calls import RunningCalls
from onceward.ledger.ledger import Ledger
from onceward.tools.envelope import Envelope
from onceward.tools.keys import Group
from onceward.tools.observer import Observer
from onceward.tools.receipts import error_envelope
from onceward.tools.rules import RuleOptions, ToolRules, Unlisted
from onceward.tools.tool import Once, Tool

Context: TypeAlias = MiddlewareContext[CallToolRequestParams]

# FastMCP raises these before it runs a tool. An exception of the tool itself is a `ToolError`.
_NOTHING_RAN = (NotFoundError, DisabledError, AuthorizationError)


class OnceMiddleware(Middleware):
    """Makes tools of a FastMCP server once-only. Add it last, so that other middleware refuses a call first.

    Args:
        ledger: The ledger that records the calls.
        rules: For each tool, its effect class and what identifies its calls; see `RuleOptions`.
        unlisted: Whether calls of other tools are passed on (`"pass"`) or refused (`"refuse"`).
        principal: The caller of requests without a token: a string, or a function of the middleware's context. By
            default, `local` on stdio and `anonymous` on HTTP.
        tenant_id: The tenant. By default, the principal.
        turn_group_id: The group of calls that do not name one: a string, or a function without arguments that returns
            one.
        require_group: Whether calls with neither a key nor a group are refused. By default, they are refused over HTTP
            without a token, and accepted otherwise.
        inferred_seconds: How long the outcome of a call with neither a key nor a group is stored.
        observer: Notified of each check of a key.

    Raises:
        InvalidOption: A rule or an option is not valid.
    """

    def __init__(
        self,
        ledger: Ledger,
        rules: Mapping[str, RuleOptions] | Mapping[str, Mapping[str, Any]],
        *,
        unlisted: Unlisted = "pass",
        principal: str | Callable[[Context], str] | None = None,
        tenant_id: str | None = None,
        turn_group_id: Group | None = None,
        require_group: bool | None = None,
        inferred_seconds: float = INFERRED_SECONDS,
        observer: Observer | None = None,
    ) -> None:
        self._rules = ToolRules(rules, unlisted=unlisted)
        self._tools = {tool.name: tool for tool in self._rules}
        self._ledger = ledger
        self._identity: CallIdentity[Context] = CallIdentity(
            principal=principal,
            tenant_id=tenant_id,
            turn_group_id=turn_group_id,
            require_group=require_group,
            inferred_seconds=inferred_seconds,
        )
        self._observer = observer
        self._running = RunningCalls()

    async def on_call_tool(
        self, context: Context, call_next: CallNext[CallToolRequestParams, ToolResult]
    ) -> ToolResult:
        """Run a call once, if its tool has a rule; called by the server.

        Args:
            context: The call and its context.
            call_next: Runs the tool.

        Returns:
            The result of the tool, or an error that contains the envelope.
        """
        name = context.message.name
        if self._rules.passes(name):
            return await call_next(context)
        attempt = _Attempt(self._tools.get(name), call_next)
        try:
            envelope = await self._envelope(context, attempt)
        except OncewardError as error:
            envelope = error_envelope(name, error)
        if attempt.raised is not None:
            raise attempt.raised
        if attempt.asked is not None:
            return attempt.asked
        structured = lacks_result(envelope) and await _has_output_schema(context)
        shown = foreign_result(envelope, attempt.failed, structured=structured)
        return ToolResult.from_mcp_result(CallToolResult.model_validate(shown))

    async def _envelope(self, context: Context, attempt: _Attempt) -> Envelope:
        name = context.message.name
        arguments = context.message.arguments or {}
        tool = attempt.tool
        if tool is None:
            # Refused, with the reason.
            return await self._rules.call(name, arguments, _nothing, ledger=self._ledger, scope=None)
        server = context.fastmcp_context
        request = None if server is None else server.request_context
        options = self._identity.call_options(
            arguments,
            Request(meta={}) if request is None else request_of(request),
            None if request is None else context,
            declared=await _declared(context) if may_have_key(arguments) else (),
            needs_group=tool.once is not Once.EVER,
            retain_seconds=tool.idempotent_for,
        )
        remaining = options.pop("arguments")
        message = context.message.model_copy(update={"arguments": remaining})

        async def handler() -> dict[str, Any]:
            return await attempt.run(context.copy(message=message))

        group = options.pop("turn_group_id", None)
        call = self._rules.call(
            name, remaining, handler, ledger=self._ledger, observer=self._observer, scope=group, **options
        )
        return await self._running.run(call)


class _Attempt:
    """One run of a tool: what it returned or raised, if this call ran it."""

    def __init__(self, tool: Tool | None, call_next: CallNext[CallToolRequestParams, ToolResult]) -> None:
        self.tool = tool
        self._call_next = call_next
        # An exception for FastMCP: it did not run the tool.
        self.raised: Exception | None = None
        # The tool asks the client for input first.
        self.asked: ToolResult | None = None
        # The tool's own result if it reported an error.
        self.failed: dict[str, Any] | None = None

    async def run(self, context: Context) -> dict[str, Any]:
        try:
            result = await self._call_next(context)
        except _NOTHING_RAN as error:
            self.raised = error
            raise NotDone(str(error)) from error
        except ValidationError as error:
            if isinstance(error.__cause__, ArgumentError):  # the arguments do not match the tool's signature
                self.raised = error
                raise NotDone(str(error)) from error
            self.failed = _error_result(str(error))
            raise
        except ToolError as error:
            self.failed = _error_result(str(error))
            cause = error.__cause__
            not_done: tuple[type[BaseException], ...] = (NotDone,)
            if self.tool is not None:
                not_done += self.tool.not_done
            if isinstance(cause, not_done):
                raise cause from error  # FastMCP hides the exception of the tool behind its own
            raise
        if isinstance(result, InputRequiredToolResult):
            self.asked = result
            raise NotDone("the tool asks for input first")
        found = _json(result)
        if result.is_error:
            self.failed = found
            raise ToolError(f"the tool reported an error: {text_of(found)}")
        return found


def _json(result: ToolResult) -> dict[str, Any]:
    whole = CallToolResult.model_validate(
        {
            "content": result.content,
            "structuredContent": result.structured_content,
            "isError": result.is_error,
            "_meta": result.meta,
        }
    )
    return whole.model_dump(mode="json", by_alias=True, exclude_none=True)


def _error_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}


async def _nothing() -> None:
    """Stand for the tool of a call that is refused before it runs."""


async def _declared(context: Context) -> tuple[str, ...]:
    """Return the names of the arguments that the tool declares."""
    tool = await _server_tool(context)
    return () if tool is None else tuple(tool.parameters.get("properties", ()))


async def _has_output_schema(context: Context) -> bool:
    tool = await _server_tool(context)
    return tool is not None and tool.output_schema is not None


async def _server_tool(context: Context) -> Any:
    server = context.fastmcp_context
    return None if server is None else await server.fastmcp.get_tool(context.message.name)
