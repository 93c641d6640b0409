"""Tools of LangChain agents and LangGraph graphs, once for each thread: `pip install 'onceward[langchain]'`.

    rules = {"refund": {"effect": "irreversible", "key_fields": ["order_id"]}}
    agent = create_agent(model, tools, middleware=[OnceToolMiddleware(ledger, rules)], checkpointer=…)
    node = ToolNode(tools, wrap_tool_call=wrap_tool_call(ledger, rules), awrap_tool_call=awrap_tool_call(ledger, rules))

The tools stay as they are. The rules say which of them have effects, and which arguments identify a call. The id of a
tool call is never part of its key: a model that plans a call again gets the first result.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypedDict, Unpack, cast

from onceward.errors import InvalidOption, NotDone, missing_extra

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain.tools.tool_node import ToolCallRequest
    from langchain_core.messages import ToolMessage
    from langgraph import errors as graph_errors
    from langgraph.types import Command
    from pydantic import BaseModel, ValidationError
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "langchain") from error

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.ledger.ledger import Ledger
from onceward.tools.call import CALLER_KEY, TurnCaller
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.keys import Group, check_group, id_text
from onceward.tools.observer import Observer
from onceward.tools.once_tool import LedgerSource, ledger_from
from onceward.tools.rules import RuleOptions, ToolRules, Unlisted

Result: TypeAlias = ToolMessage | Command[Any]
Wrapper: TypeAlias = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Result]], Result]
AsyncWrapper: TypeAlias = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Awaitable[Result]]], Awaitable[Result]]
Rules: TypeAlias = ToolRules | Mapping[str, RuleOptions] | Mapping[str, Mapping[str, Any]]

# Whether an exception says that the answer to an interrupt is not valid. Older versions do not have it.
_is_invalid_resume: Callable[[BaseException], bool] = getattr(graph_errors, "is_invalid_resume", lambda _error: False)


class OnceToolOptions(TypedDict, total=False):
    """The options of `OnceToolMiddleware`; see there."""

    unlisted: Unlisted | None
    scope: Group | None
    principal: str | Callable[[ToolCallRequest], str]
    tenant_id: str | None
    unwrap: bool
    observer: Observer | None


class OnceToolMiddleware(AgentMiddleware[Any, Any, Any]):
    """Middleware for `create_agent` that runs each listed tool once for its key.

    Put it last in the list: a middleware that repeats failed calls must be outside of it.

    In a turn of the hub (`onceward.turns.brains.langgraph`), the ledger, the scope, the principal and the tenant are
    those of the turn, and a superseded run cannot start an effect.

    Args:
        ledger: The ledger that records the calls, or a function that returns it. None if the graph runs only in turns
            of the hub, which has its own ledger.
        rules: For each tool with an effect, its effect class and key; see `onceward.tools.ToolRules`.
        unlisted: Whether a tool without a rule is passed through (`"pass"`, the default) or refused (`"refuse"`).
        scope: The group of calls that share their effects: a string, or a function without arguments that returns one.
            By default, the `thread_id` of the run's config.
        principal: The caller: a string, or a function of the request. Different principals never share effects.
        tenant_id: The tenant. By default, the principal.
        unwrap: Whether the model sees the tool's own result instead of the envelope, if there is a result. Any other
            status is reported as an envelope.
        observer: Notified of each check of a key.

    Raises:
        InvalidOption: A rule or an option is not valid.
    """

    def __init__(
        self,
        ledger: LedgerSource | None,
        rules: Rules,
        *,
        unlisted: Unlisted | None = None,
        scope: Group | None = None,
        principal: str | Callable[[ToolCallRequest], str] = "local",
        tenant_id: str | None = None,
        unwrap: bool = False,
        observer: Observer | None = None,
    ) -> None:
        super().__init__()
        if ledger is not None and not isinstance(ledger, Ledger) and not callable(ledger):
            raise InvalidOption(
                f"the first argument must be a Ledger, or a function that returns one, got {ledger!r:.60}"
            )
        if isinstance(rules, ToolRules) and unlisted is not None:
            raise InvalidOption("rules= is a ToolRules, which has its own unlisted=; pass the option there")
        if scope is not None:
            check_group(scope)
        self._ledger = ledger
        self._rules = rules if isinstance(rules, ToolRules) else ToolRules(rules, unlisted=unlisted or "pass")
        self._scope = scope
        self._principal = principal
        self._tenant_id = tenant_id
        self._unwrap = unwrap
        self._observer = observer

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Result]) -> Result:
        """Run a tool call once; called by the agent.

        Args:
            request: The call.
            handler: Runs the tool.

        Returns:
            The message for the model, or the tool's `Command`.

        Raises:
            InvalidOption: The run has no `thread_id`, and there is no `scope=`. Or it belongs to a turn of the hub,
                which runs graphs with `astream`. Nothing ran.
            GraphBubbleUp: The tool interrupted the graph. Nothing is recorded, and the tool may run again.
        """
        if self._rules.passes(request.tool_call["name"]):
            return handler(request)
        if _caller_of(request) is not None:
            raise InvalidOption("a turn of the hub runs tools with ainvoke; pass awrap_tool_call= to the ToolNode, too")
        call = _ToolCall(request, self._rules)

        def effect() -> Json:
            with call.observed():
                return call.record(handler(request))

        envelope = self._rules.call_blocking(call.name, call.arguments, effect, **self._own(request))
        return call.message(envelope, unwrap=self._unwrap)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Result]]
    ) -> Result:
        """Run a tool call once, like `wrap_tool_call`; called by the agent.

        Args:
            request: The call.
            handler: Runs the tool.

        Returns:
            The message for the model, or the tool's `Command`.

        Raises:
            InvalidOption: The run has no `thread_id`, and there is no `scope=`. Or the tool's rule and the turn of the
                hub do not fit together. Nothing ran.
            Superseded: The run belongs to a turn of the hub, and was superseded. Nothing ran.
            StoreUnavailable: The run belongs to a turn of the hub, and the ledger or the database did not respond.
            GraphBubbleUp: The tool interrupted the graph. Nothing is recorded, and the tool may run again.
        """
        if self._rules.passes(request.tool_call["name"]):
            return await handler(request)
        caller = _caller_of(request)
        call = _ToolCall(request, self._rules)

        async def effect() -> Json:
            with call.observed():
                return call.record(await handler(request))

        envelope = await self._rules.call(
            call.name,
            call.arguments,
            effect,
            **(self._own(request) if caller is None else self._of_turn(caller, call.name)),
        )
        return call.message(envelope, unwrap=self._unwrap)

    def _of_turn(self, caller: TurnCaller, name: str) -> dict[str, Any]:
        """Return the options of a call in a turn of the hub."""
        if self._scope is not None:
            raise InvalidOption("a turn of the hub has its own scope; remove scope= to run this graph in turns")
        if name in self._rules and name not in caller.tools:
            raise InvalidOption(f"the brain does not know the rule of {name!r}; pass the rules to graph_brain, too")
        return {
            "ledger": caller.ledger,
            "gate": caller.gate,
            "scope": caller.turn_group_id,
            "principal": caller.principal,
            "tenant_id": caller.tenant_id,
            "observer": caller.observer,
        }

    def _own(self, request: ToolCallRequest) -> dict[str, Any]:
        """Return the options of a call outside of a turn."""
        if self._ledger is None:
            raise InvalidOption("this graph has no ledger and runs only in turns of the hub; pass a ledger")
        return {
            "ledger": ledger_from(self._ledger),
            "scope": _thread_of(request) if self._scope is None else self._scope,
            "principal": self._principal(request) if callable(self._principal) else self._principal,
            "tenant_id": self._tenant_id,
            "observer": self._observer,
        }


def wrap_tool_call(ledger: LedgerSource | None, rules: Rules, **options: Unpack[OnceToolOptions]) -> Wrapper:
    """Return the `wrap_tool_call` of a `ToolNode`. A graph that runs with `ainvoke` needs `awrap_tool_call`, too.

    Args:
        ledger: As in `OnceToolMiddleware`.
        rules: As in `OnceToolMiddleware`.
        options: As in `OnceToolMiddleware`.

    Returns:
        The wrapper.

    Raises:
        InvalidOption: A rule or an option is not valid.
    """
    return OnceToolMiddleware(ledger, rules, **options).wrap_tool_call


def awrap_tool_call(ledger: LedgerSource | None, rules: Rules, **options: Unpack[OnceToolOptions]) -> AsyncWrapper:
    """Return the `awrap_tool_call` of a `ToolNode`, for graphs that run with `ainvoke`.

    Args:
        ledger: As in `OnceToolMiddleware`.
        rules: As in `OnceToolMiddleware`.
        options: As in `OnceToolMiddleware`.

    Returns:
        The wrapper.

    Raises:
        InvalidOption: A rule or an option is not valid.
    """
    return OnceToolMiddleware(ledger, rules, **options).awrap_tool_call


class ToolReportedError(Exception):
    """The framework has turned an exception of the tool into a message. The effect may have happened."""


class _ToolCall:
    """One tool call: its arguments, what the framework's tool returned or raised, and the message for the model."""

    def __init__(self, request: ToolCallRequest, rules: ToolRules) -> None:
        self.name: str = request.tool_call["name"]
        self._id = request.tool_call["id"] or ""
        self._returned: Result | None = None
        self._raised: Exception | None = None
        given = request.tool_call["args"]
        self._is_valid, self.arguments = _validated(request, rules.keyed(self.name), given)

    def record(self, result: Result) -> Json:
        """Return what the ledger stores for a result of the tool."""
        self._returned = result
        if isinstance(result, ToolMessage):
            if result.status == "error":
                if not self._is_valid:
                    raise NotDone("the tool did not accept the arguments")
                raise ToolReportedError(result.text)
            return _message_record(result)
        return _command_record(result, self._id)

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Keep an exception of the tool for the graph."""
        try:
            yield
        except Exception as error:
            self._raised = error
            if _is_invalid_resume(error):
                raise NotDone("the answer to an interrupt was not valid") from error
            raise

    def message(self, envelope: Envelope, *, unwrap: bool) -> Result:
        """Return the message for the model, or raise what the graph itself has to see."""
        raised = self._raised
        if raised is not None and (isinstance(raised, graph_errors.GraphBubbleUp) or _is_invalid_resume(raised)):
            raise raised
        if isinstance(raised, NotDone) and isinstance(self._returned, ToolMessage):
            return self._returned  # the framework's own explanation of what is wrong with the arguments
        record: dict[str, Any] | None = envelope.result if isinstance(envelope.result, dict) else None
        if envelope.status is CallStatus.DONE and record is None and self._returned is not None:
            return self._returned  # it could not be stored, but the model gets it now
        if not envelope.ok or record is None:
            return self._envelope_message(envelope)
        if "content" not in record:
            # An operator or a reconcile hook gave this value, in place of the record of a call.
            content = compact(record)
            return self._content_message(content) if unwrap else self._envelope_message(envelope)
        lost = record.get("lost")
        shown = replace(envelope, result=_readable(record["content"]), detail=str(lost or envelope.detail))
        if envelope.status is CallStatus.DONE and isinstance(self._returned, ToolMessage):
            return self._returned if unwrap else self._envelope_message(shown, self._returned.artifact)
        if envelope.status is CallStatus.DONE and self._returned is not None:
            return self._returned
        if record.get("command"):
            return _rebuilt_command(record["command"], self._id)
        if unwrap and not lost:
            return self._content_message(record["content"], record.get("artifact"))
        return self._envelope_message(shown, record.get("artifact"))

    def _content_message(self, content: Any, artifact: object = None) -> ToolMessage:
        return ToolMessage(content=content, artifact=artifact, name=self.name, tool_call_id=self._id)

    def _envelope_message(self, envelope: Envelope, artifact: object = None) -> ToolMessage:
        failed = envelope.status in {CallStatus.REFUSED, CallStatus.UNKNOWN}
        return ToolMessage(
            content=compact(envelope.json()),
            artifact=artifact,
            name=self.name,
            tool_call_id=self._id,
            status="error" if failed else "success",
        )


def _configurable(request: ToolCallRequest) -> Mapping[str, Any]:
    config: Mapping[str, Any] = getattr(request.runtime, "config", None) or {}
    found: Mapping[str, Any] = config.get("configurable", {})
    return found


def _caller_of(request: ToolCallRequest) -> TurnCaller | None:
    """Return the caller of the turn that the run belongs to, if there is one."""
    found = _configurable(request).get(CALLER_KEY)
    return found if isinstance(found, TurnCaller) else None


def _thread_of(request: ToolCallRequest) -> str:
    thread = _configurable(request).get("thread_id")
    if thread is None:
        raise InvalidOption(
            "the run has no thread_id, so its calls cannot be told from those of other conversations; pass"
            " config={'configurable': {'thread_id': …}}, or scope="
        )
    return id_text("thread_id", thread)


def _validated(request: ToolCallRequest, keyed: tuple[str, ...], given: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return whether the tool accepts the arguments, and the arguments with the types of its schema.

    Arguments that equal their defaults are left out, except in the key, so that it does not matter whether the model
    spells them out.
    """
    schema = None if request.tool is None else request.tool.tool_call_schema
    if not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return True, given
    try:
        model = schema.model_validate(given)
    except ValidationError:
        return False, given
    try:
        every = model.model_dump(mode="json")
        explicit = model.model_dump(mode="json", exclude_defaults=True)
    except ValueError:  # a type without a JSON form
        return True, given
    return True, {**{name: every[name] for name in keyed if name in every}, **explicit}


def _message_record(message: ToolMessage) -> dict[str, Json]:
    record: dict[str, Json] = {"content": message.content}  # type: ignore[dict-item]  # text, or JSON blocks
    if message.artifact is not None:
        if _is_json(message.artifact):
            record["artifact"] = message.artifact
        else:
            record["lost"] = "it happened, but its artifact could not be stored: it has no JSON form"
    return record


def _command_record(command: Any, call_id: str) -> dict[str, Json]:
    """Return the record of a `Command`: as JSON, if that is all of it, else the text that the model sees."""
    update = command.update if isinstance(command, Command) else None
    messages = update.get("messages", []) if isinstance(update, dict) else []
    content = next((one.content for one in messages if _answers(one, call_id)), "")
    if (
        isinstance(command, Command)
        and isinstance(update, dict)
        and command.resume is None
        and _is_json([command.graph, command.goto])
        and _is_json({name: value for name, value in update.items() if name != "messages"})
        and all(_answers(one, call_id) and "lost" not in _message_record(one) for one in messages)
    ):
        others = {name: value for name, value in update.items() if name != "messages"}
        stored: Any = {
            "update": others,
            "messages": [{**_message_record(one), "name": one.name} for one in messages],
            "goto": command.goto,
            "graph": command.graph,
        }
        return {"content": content, "command": stored}
    lost = "it happened, but its changes to the state of the graph could not be stored, and are not made again"
    return {"content": content, "lost": lost}


def _rebuilt_command(stored: Any, call_id: str) -> Command[Any]:
    messages = [ToolMessage(tool_call_id=call_id, **one) for one in stored["messages"]]
    update = {**stored["update"], **({"messages": messages} if messages else {})}
    return Command(graph=stored["graph"], update=update, goto=stored["goto"])


def _answers(message: object, call_id: str) -> bool:
    return isinstance(message, ToolMessage) and message.tool_call_id == call_id


def _readable(content: Any) -> Json:
    """Return the content of a message for an envelope: an object or a list instead of its JSON text."""
    if isinstance(content, str) and content[:1] in {"{", "["}:
        try:
            found: Json = json.loads(content)
        except (ValueError, RecursionError):
            return content
        return found
    shown: Json = content
    return shown


def _is_json(value: object) -> bool:
    """Return whether a value is the same after a round trip through JSON."""
    if value is None or type(value) in {bool, int, float, str}:
        return True
    if type(value) in {list, tuple}:
        return all(_is_json(one) for one in cast("list[object]", value))
    if type(value) is dict:
        return all(type(name) is str and _is_json(one) for name, one in value.items())
    return False
