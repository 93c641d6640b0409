"""Function tools of the OpenAI Agents SDK, once for each conversation: `pip install 'onceward[openai-agents]'`.

    @once_function_tool(ledger, effect="irreversible", key_fields=["order_id"])
    async def refund(order_id: str, amount: int) -> dict[str, str]: ...

    agent = Agent("shop", tools=[refund])
    await Runner.run(agent, "Refund order 42", run_config=RunConfig(group_id="chat-7"))

`once_function_tool` stands in the place of `function_tool`, and the model sees the same name, description and schema. Its
text for errors is an envelope, which says whether the effect may have happened.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast, get_origin, get_type_hints

from onceward.errors import InvalidOption, described, missing_extra

try:
    from agents import FunctionTool, ModelBehaviorError, RunContextWrapper, default_tool_error_function, function_tool
    from agents.tool import ToolErrorFunction, ToolOutputFileContent, ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "openai-agents") from error

from onceward.core.json_text import compact
from onceward.ledger.terms import EffectClass
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.json_result import to_json
from onceward.tools.keys import check_group, id_text, value_for
from onceward.tools.observer import Observer
from onceward.tools.once_tool import LedgerSource, once_tool
from onceward.tools.tool import IDEMPOTENT_SECONDS, Once, OnceRule

# A text, or a function of the tool's context (or without arguments) that returns one.
ContextText: TypeAlias = str | Callable[[ToolContext[Any]], str] | Callable[[], str]
ToolFunction: TypeAlias = Callable[..., Any]

_CONTEXT = "onceward_context"
_SAME_AGAIN = "Call it again with the same arguments: that returns its status, and does not repeat the effect."
_FILES = (ToolOutputImage, ToolOutputFileContent)
_STRUCTURED = (ToolOutputText, *_FILES)
_FILE_TYPES = {"image", "file"}


def once_function_tool(
    ledger: LedgerSource,
    *,
    effect: EffectClass,
    key_fields: Sequence[str] = (),
    template: str | None = None,
    once: OnceRule = Once.GROUP,
    scope: ContextText | None = None,
    retain_seconds: float = IDEMPOTENT_SECONDS,
    unwrap: bool = False,
    principal: ContextText = "local",
    tenant_id: str | None = None,
    volatile: Sequence[str] = (),
    exact: Sequence[str] = (),
    undo: Callable[..., Any] | None = None,
    reconcile: Callable[..., Any] | None = None,
    provider_key: str | None = None,
    not_done: tuple[type[BaseException], ...] = (),
    how_to_check: str | None = None,
    version: str = "1",
    wait_seconds: float | None = None,
    lease_seconds: float | None = None,
    observer: Observer | None = None,
    name_override: str | None = None,
    failure_error_function: ToolErrorFunction | None = default_tool_error_function,
    timeout_error_function: ToolErrorFunction | None = None,
    **function_options: Any,
) -> Callable[[ToolFunction], FunctionTool]:
    """Decorate a function as a `FunctionTool` whose calls have their effect once, in place of `function_tool`.

    Args:
        ledger: The ledger that records the calls, or a function that returns it.
        effect: The effect class: pure, idempotent, compensatable or irreversible.
        key_fields: The arguments that identify a call. Without `key_fields` and `template`, all arguments do.
        template: A template of the business key instead of `key_fields`, such as `"order:{order_id}"`.
        once: `"group"`: once for each scope. `"ever"`: once for each business key, whatever the scope.
        scope: The group of calls that share their effects: a string, or a function of the `ToolContext` that returns
            one. By default, the `group_id` of the run's `RunConfig`.
        retain_seconds: How long a call is remembered. With once="ever", how long its result is.
        unwrap: Whether the model sees the tool's own result instead of the envelope, if there is a result. Any other
            status is reported as an envelope.
        principal: The caller: a string, or a function of the `ToolContext`. Different principals never share effects.
        tenant_id: The tenant. By default, the principal.
        volatile: See `onceward.tools.tool`, as for the options that follow.
        exact: See `tool`.
        undo: See `tool`.
        reconcile: See `tool`.
        provider_key: See `tool`.
        not_done: See `tool`.
        how_to_check: See `tool`.
        version: See `tool`.
        wait_seconds: See `tool`.
        lease_seconds: See `tool`.
        observer: Notified of each check of a key.
        name_override: The name of the tool. By default, the name of the function.
        failure_error_function: Its text becomes the detail of the envelope if the tool raises. By default, the detail
            is the text of the exception. With None, the exception is raised after it was recorded, and ends the run.
        timeout_error_function: Its text becomes the detail of the envelope after a timeout.
        function_options: The other options of `function_tool`, such as `needs_approval` and `timeout`.

    Returns:
        A decorator that returns the `FunctionTool`.

    Raises:
        InvalidOption: An option is wrong. A call without a scope raises it, too; nothing ran, and the run ends with the
            SDK's `UserError`.
    """
    if scope is not None and not callable(scope):
        check_group(scope)
    unknown = function_options.keys() - (inspect.signature(function_tool).parameters.keys() - {"func"})
    if unknown:
        raise InvalidOption(f"neither once_function_tool nor function_tool has the option {min(unknown)!r}")
    if not unwrap and function_options.keys() & {"output_type", "output_json_schema"}:
        raise InvalidOption("the output of the tool is an envelope; an output schema needs unwrap=True")

    def decorate(function: ToolFunction) -> FunctionTool:
        if not inspect.isroutine(function):
            raise InvalidOption(f"once_function_tool decorates a function, not {function!r:.60}; wrap it in a function")
        name = name_override or function.__name__
        declare = once_tool(
            ledger,
            effect=effect,
            once=once,
            scope=lambda: _call.get().scope(scope),
            principal=lambda: value_for("principal", principal, _call.get().context),
            retain_seconds=retain_seconds,
            name=name,
            key_fields=key_fields,
            template=template,
            tenant_id=tenant_id,
            volatile=volatile,
            exact=exact,
            undo=undo,
            reconcile=reconcile,
            provider_key=provider_key,
            not_done=not_done,
            how_to_check=how_to_check,
            version=version,
            wait_seconds=wait_seconds,
            lease_seconds=lease_seconds,
            observer=observer,
        )
        made = _OnceFunction(function, declare(_observed(function, unwrap=unwrap)), name, unwrap=unwrap)
        report = _ErrorReport(name, failure_error_function, timeout_error_function)
        return function_tool(
            made.wrapper(raises=failure_error_function is None),
            name_override=name_override,
            failure_error_function=None if failure_error_function is None else report.failed,
            timeout_error_function=report.timed_out,
            **function_options,
        )

    return decorate


class NoResult(Exception):
    """A call has no result. It carries the envelope for the model through the SDK's own error handling."""

    def __init__(self, envelope: Envelope) -> None:
        super().__init__(f"{envelope.tool} is {envelope.status}")
        self.envelope = envelope


class _ToolCall:
    """One tool call: its context, and what the function returned or raised."""

    def __init__(self, context: ToolContext[Any]) -> None:
        self.context = context
        self.value: Any = None
        self.raised: BaseException | None = None

    def scope(self, given: ContextText | None) -> str:
        if given is not None:
            return value_for("scope", given, self.context)
        config = getattr(self.context, "run_config", None)
        found = None if config is None else config.group_id
        if not found:
            raise InvalidOption(
                "the run has no group_id, so its calls cannot be told from those of other conversations; pass"
                " run_config=RunConfig(group_id=…), or scope="
            )
        return id_text("group_id", found)

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


_call: contextvars.ContextVar[_ToolCall] = contextvars.ContextVar("onceward_tool_call")


def _observed(function: ToolFunction, *, unwrap: bool) -> ToolFunction:
    """Return the function with its result and exception noted in the call. The ledger stores what the model sees."""

    def shown(value: Any) -> Any:
        _call.get().value = value
        return _as_seen(value) if unwrap else value

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **named: Any) -> Any:
            with _call.get().observed():
                return shown(await function(*args, **named))

        return awaited

    @functools.wraps(function)
    def waited(*args: Any, **named: Any) -> Any:
        with _call.get().observed():
            return shown(function(*args, **named))

    return waited


class _OnceFunction:
    """The function that the SDK calls: it always takes the context, and returns what the model sees."""

    def __init__(self, function: ToolFunction, once: ToolFunction, name: str, *, unwrap: bool) -> None:
        self._function = function
        self._once = once
        self._name = name
        self._unwrap = unwrap
        self._takes_context = _takes_context(once)

    def wrapper(self, *, raises: bool) -> ToolFunction:
        if inspect.iscoroutinefunction(self._once):

            async def awaited(context: ToolContext[Any], *args: Any, **named: Any) -> Any:
                call, positional = self._begin(context, args)
                return self._seen(call, await self._once(*positional, **named), raises=raises)

            return self._described(awaited)

        def waited(context: ToolContext[Any], *args: Any, **named: Any) -> Any:
            call, positional = self._begin(context, args)
            return self._seen(call, self._once(*positional, **named), raises=raises)

        return self._described(waited)

    def _described(self, made: ToolFunction) -> ToolFunction:
        functools.update_wrapper(made, self._once)
        signature = inspect.signature(self._once)
        hints = dict(self._once.__annotations__)
        if not self._takes_context:
            first = inspect.Parameter(_CONTEXT, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=ToolContext[Any])
            signature = signature.replace(parameters=[first, *signature.parameters.values()])
            hints = {_CONTEXT: ToolContext[Any], **hints}
        returned = inspect.signature(self._function).return_annotation if self._unwrap else str
        hints.pop("return", None)
        if returned is not inspect.Signature.empty:
            hints["return"] = returned
        made.__annotations__ = hints
        made.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return made

    def _begin(self, context: ToolContext[Any], args: tuple[Any, ...]) -> tuple[_ToolCall, tuple[Any, ...]]:
        call = _ToolCall(context)
        _call.set(call)  # of this task or thread, which ends with the call
        return call, ((context, *args) if self._takes_context else args)

    def _seen(self, call: _ToolCall, recorded: dict[str, Any], *, raises: bool) -> Any:
        envelope = Envelope(**{**recorded, "status": CallStatus(recorded["status"])})
        if call.raised is not None and not envelope.ok:
            if raises:
                raise call.raised
            raise NoResult(envelope) from call.raised
        is_new = envelope.status is CallStatus.DONE
        is_kept = is_new or (envelope.ok and envelope.code == "" and not envelope.detail)
        value = call.value if is_new else envelope.result
        if self._unwrap and is_kept:
            return value
        files = [one for one in (value if isinstance(value, list) else [value]) if _is_file(one)]
        if not files:
            return compact(envelope.json())
        rest = [to_json(one) for one in value if not _is_file(one)] if isinstance(value, list) else None
        return [ToolOutputText(text=compact(replace(envelope, result=rest).json())), *files]


class _ErrorReport:
    """The texts for the model that the SDK asks for after an error."""

    def __init__(self, name: str, failure: ToolErrorFunction | None, timeout: ToolErrorFunction | None) -> None:
        self._name = name
        self._failure = failure
        self._timeout = timeout

    async def failed(self, context: RunContextWrapper[Any], error: Exception) -> str:
        if isinstance(error, InvalidOption):
            raise error  # an error of the program, which no model can correct
        is_own = self._failure is not default_tool_error_function
        if isinstance(error, NoResult):
            cause = error.__cause__
            if is_own and isinstance(cause, Exception):
                return compact(replace(error.envelope, detail=await _text(self._failure, context, cause)).json())
            return compact(error.envelope.json())
        if isinstance(error, ModelBehaviorError):  # the arguments are not valid, and nothing ran
            return await _text(self._failure, context, error)
        return self._unknown(await _text(self._failure, context, error) if is_own else described(error))

    async def timed_out(self, context: RunContextWrapper[Any], error: Exception) -> str:
        return self._unknown(str(error) if self._timeout is None else await _text(self._timeout, context, error))

    def _unknown(self, detail: str) -> str:
        envelope = Envelope(CallStatus.UNKNOWN, self._name, may_retry=True, how_to_check=_SAME_AGAIN, detail=detail)
        return compact(envelope.json())


async def _text(function: ToolErrorFunction | None, context: RunContextWrapper[Any], error: Exception) -> str:
    found: Any = cast("Callable[..., Any]", function)(context, error)
    return str(await found if inspect.isawaitable(found) else found)


def _takes_context(function: ToolFunction) -> bool:
    """Return whether the SDK passes its context as the first argument."""
    first = next(iter(inspect.signature(function).parameters), None)
    if first is None:
        return False
    hint = get_type_hints(function).get(first)
    return (get_origin(hint) or hint) in {RunContextWrapper, ToolContext}


def _is_file(value: object) -> bool:
    return isinstance(value, _FILES) or (isinstance(value, dict) and value.get("type") in _FILE_TYPES)


def _as_seen(value: Any) -> Any:
    """Return the JSON of which the SDK makes the same text for the model: it calls `str` for most values."""
    if isinstance(value, _STRUCTURED):
        return to_json(value)
    if isinstance(value, list) and value and all(isinstance(one, _STRUCTURED) for one in value):
        return [to_json(one) for one in value]
    try:
        same = str(json.loads(json.dumps(value))) == str(value)
    except (TypeError, ValueError, RecursionError):
        same = False
    return value if same else str(value)
