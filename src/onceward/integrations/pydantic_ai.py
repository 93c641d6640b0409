"""Tools of pydantic-ai agents, once for each conversation: `pip install 'onceward[pydantic-ai]'`.

    rules = {"refund": {"effect": "irreversible", "key_fields": ["order_id"]}}
    agent = Agent(model, toolsets=[OnceToolset(FunctionToolset([refund, price_of]), ledger, rules)])
    await agent.run("Refund order 42", conversation_id="chat-7")

The wrapped toolset stays as it is: functions, an MCP server, or a combination. The rules say which of its tools have
effects, and which arguments identify a call. The id of a tool call is never part of its key.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeAlias, cast

from onceward.errors import InvalidOption, NotDone, missing_extra

try:
    from pydantic import BaseModel, TypeAdapter
    from pydantic_ai import exceptions
    from pydantic_ai.messages import ToolReturn, ToolReturnContent, is_multi_modal_content, tool_return_ta
    from pydantic_ai.tools import RunContext
    from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset
    from pydantic_ai.toolsets.function import FunctionToolsetTool
    from pydantic_core import PydanticSerializationError
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "pydantic-ai") from error

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.ledger.ledger import Ledger
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.keys import check_group, id_text, value_for
from onceward.tools.observer import Observer
from onceward.tools.once_tool import LedgerSource, ledger_from
from onceward.tools.rules import RuleOptions, ToolRules, Unlisted

Rules: TypeAlias = ToolRules | Mapping[str, RuleOptions] | Mapping[str, Mapping[str, Any]]
# A text, or a function of the run's context (or without arguments) that returns one.
RunText: TypeAlias = str | Callable[[RunContext[Any]], str] | Callable[[], str]

_UUID7 = 7
# The parts of a `ToolReturn` besides its value, and the words for parts that could not be stored.
_DETAILS = ("content", "metadata", "tools")
_NAMES = {"value": "result"}
_tool_returns: TypeAdapter[ToolReturn[Any]] = TypeAdapter(ToolReturn)
_contents: TypeAdapter[Any] = TypeAdapter(ToolReturnContent)


@dataclass
class OnceToolset(WrapperToolset[Any]):
    """A toolset that runs each listed tool of another toolset once for its key.

    Args:
        wrapped: The toolset with the tools.
        ledger: The ledger that records the calls, or a function that returns it.
        rules: For each tool with an effect, its effect class and key; see `onceward.tools.ToolRules`. The names are
            those of the wrapped toolset.
        unlisted: Whether a tool without a rule is passed through (`"pass"`) or refused (`"refuse"`).
        scope: The group of calls that share their effects: a string, or a function of the `RunContext` that returns
            one. By default, the `conversation_id` of the run.
        principal: The caller: a string, or a function of the `RunContext`. Different principals never share effects.
        tenant_id: The tenant. By default, the principal.
        unwrap: Whether the model sees the tool's own result instead of the envelope, if there is a result. Any other
            status is reported as an envelope.
        observer: Notified of each check of a key.

    Raises:
        InvalidOption: A rule or an option is not valid.
    """

    wrapped: AbstractToolset[Any]
    ledger: LedgerSource
    rules: Rules
    _: KW_ONLY
    unlisted: Unlisted = "pass"
    scope: RunText | None = None
    principal: RunText = "local"
    tenant_id: str | None = None
    unwrap: bool = False
    observer: Observer | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ledger, Ledger) and not callable(self.ledger):
            raise InvalidOption(f"ledger must be a Ledger, or a function that returns one, got {self.ledger!r:.60}")
        if not callable(self.scope) and self.scope is not None:
            check_group(self.scope)
        if not isinstance(self.rules, ToolRules):
            self.rules = ToolRules(self.rules, unlisted=self.unlisted)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Run a tool call once; called by the agent.

        Args:
            name: The name of the tool.
            tool_args: The validated arguments.
            ctx: The context of the run.
            tool: The tool.

        Returns:
            The envelope as a dict, or with `unwrap=True` the tool's result, for the model.

        Raises:
            InvalidOption: The run has no conversation, or an argument has no JSON form. Nothing ran.
            ModelRetry: The tool asks for other arguments. Its key is free.
            CallDeferred: The tool defers its call. Its key is free.
            ApprovalRequired: The tool asks for an approval. Its key is free.
            AgentRunError: The tool ran an agent that failed, for example at a usage limit. It is recorded as an
                exception of the tool.
        """
        rules = cast("ToolRules", self.rules)
        if rules.passes(name):
            return await super().call_tool(name, tool_args, ctx, tool)
        call = _ToolCall(tool)

        async def effect() -> Json:
            return await call.recorded(super(OnceToolset, self).call_tool(name, tool_args, ctx, tool))

        envelope = await rules.call(
            name,
            {argument: _argument(name, argument, value) for argument, value in tool_args.items()},
            effect,
            ledger=ledger_from(self.ledger),
            observer=self.observer,
            scope=_conversation_of(ctx) if self.scope is None else value_for("scope", self.scope, ctx),
            principal=value_for("principal", self.principal, ctx),
            tenant_id=self.tenant_id,
        )
        return call.result(envelope, unwrap=self.unwrap)


class ToolTimedOut(Exception):
    """The tool did not return within its timeout. The effect may have happened."""


class _ToolCall:
    """One tool call: what the wrapped toolset returned or raised, and what the model sees."""

    def __init__(self, tool: ToolsetTool[Any]) -> None:
        self._is_function = isinstance(tool, FunctionToolsetTool) or isinstance(tool.toolset, FunctionToolset)
        self._returned: Any = None
        self._raised: Exception | None = None

    async def recorded(self, running: Any) -> Json:
        """Await the tool, and return what the ledger stores."""
        handled = sys.exception()
        try:
            self._returned = await running
        except exceptions.ModelRetry as error:
            cause = error.__cause__ or (None if error.__context__ is handled else error.__context__)
            if isinstance(cause, TimeoutError) and error.__suppress_context__ and error.__cause__ is None:
                raise ToolTimedOut(error.message) from cause  # made by pydantic-ai, whatever `not_done` says
            if self._is_function and cause is None:
                self._raised = error
                raise NotDone(error.message) from error
            raise
        except (exceptions.AgentRunError, exceptions.UserError) as error:
            self._raised = error
            raise
        return _record(self._returned)

    def result(self, envelope: Envelope, *, unwrap: bool) -> Any:
        """Return what the model sees, or raise what the agent itself has to see."""
        if self._raised is not None:
            raise self._raised
        if not envelope.ok or envelope.result is None:
            return envelope.json()
        record = _record_in(envelope.result)
        is_new = envelope.status is CallStatus.DONE
        value = self._returned if is_new else _restored(record)
        lost = record.get("lost", "")
        if unwrap and (is_new or not lost):
            return value
        return _enveloped(replace(envelope, detail=lost or envelope.detail), value, record)


def _conversation_of(ctx: RunContext[Any]) -> str:
    """Return the conversation of a run, if a repeated run has it, too.

    pydantic-ai gives a run without a conversation a random id (a UUID of version 7). Such an id identifies a conversation
    only if the history already has it.
    """
    found = ctx.conversation_id
    if found and (
        not _is_random(found) or any(one.conversation_id == found and one.run_id != ctx.run_id for one in ctx.messages)
    ):
        return id_text("conversation_id", found)
    raise InvalidOption(
        "the run has no conversation_id, so a repeated run could not find the calls of this one; pass conversation_id="
        " to the run, or scope= to OnceToolset (scope=lambda ctx: ctx.conversation_id, if your ids are UUIDs of"
        " version 7)"
    )


def _is_random(text: str) -> bool:
    try:
        return uuid.UUID(text).version == _UUID7
    except ValueError:
        return False


def _argument(tool: str, name: str, value: object) -> Json:
    try:
        return _ordered(value)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidOption(f"the argument {name!r} of {tool} has no JSON form: {error}") from error


def _ordered(value: object) -> Json:
    """Return the JSON form of a validated argument, with sets in an order that does not depend on the process."""
    if isinstance(value, BaseModel):
        return _ordered(value.model_dump())
    if isinstance(value, Mapping):
        names = tool_return_ta.dump_python(dict.fromkeys(value), mode="json")
        return {name: _ordered(item) for name, item in zip(names, value.values(), strict=True)}
    if isinstance(value, AbstractSet):
        return sorted((_ordered(item) for item in value), key=compact)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_ordered(item) for item in value]
    found: Json = tool_return_ta.dump_python(value, mode="json")
    return found


def _record(value: Any) -> dict[str, Json]:
    """Return what the ledger stores for a result: its JSON form, as the model sees it. The effect has happened."""
    is_detailed = isinstance(value, ToolReturn)
    parts = {"value": value.return_value if is_detailed else value}
    if is_detailed:
        parts |= {name: getattr(value, name) for name in _DETAILS}
    record: dict[str, Json] = {"kind": "tool-return" if is_detailed else "tool-value", "value": None}
    for name, part in parts.items():
        try:
            record[name] = _json_of(part)
        except (PydanticSerializationError, ValueError):
            record["lost"] = f"it happened, but its {_NAMES.get(name, name)} could not be stored: it has no JSON form"
    return record


def _record_in(stored: Json) -> dict[str, Any]:
    """Return the stored record. The value with which a person resolved a claim is one without a record."""
    if isinstance(stored, dict) and stored.get("kind") in {"tool-return", "tool-value"} and "value" in stored:
        return stored
    return {"kind": "tool-value", "value": stored}


def _json_of(value: object) -> Json:
    found: Json = tool_return_ta.dump_python(value, mode="json", by_alias=True)
    return found


def _restored(record: Mapping[str, Any]) -> Any:
    value = _contents.validate_python(record["value"])
    if record["kind"] == "tool-value":
        return value
    details = {name: record.get(name) for name in _DETAILS}
    return replace(_tool_returns.validate_python({"return_value": None, **details}), return_value=value)


def _enveloped(envelope: Envelope, value: Any, record: Mapping[str, Any]) -> Any:
    """Return the envelope around a result. Files stay beside it, because a model cannot read them inside."""
    shown = value.return_value if isinstance(value, ToolReturn) else value
    stored: Any = record["value"]
    files: list[Any] = []
    if is_multi_modal_content(shown):
        files, stored = [shown], None
    elif isinstance(shown, list | tuple) and stored is not None:
        files = [one for one in shown if is_multi_modal_content(one)]
        stored = [kept for one, kept in zip(shown, stored, strict=True) if not is_multi_modal_content(one)]
    returned: Any = replace(envelope, result=stored).json()
    returned = [returned, *files] if files else returned
    return replace(value, return_value=returned) if isinstance(value, ToolReturn) else returned
