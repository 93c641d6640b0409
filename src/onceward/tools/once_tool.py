"""One function as a tool that has its effect once, under any framework's own decorator.

    @framework_tool
    @once_tool(ledger, effect="irreversible", key_fields=["order_id"], scope=lambda: conversation.get())
    def refund(order_id: str, amount: int) -> dict[str, str]: ...

The decorated function keeps its name, parameters and docstring, which frameworks read. It returns the envelope as JSON
for the model. The parameters that a framework fills in itself are not arguments of the call, and never part of its key.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeAlias, cast

from onceward import errors
from onceward.core.scalar import Unkeepable
from onceward.ledger.blocking import wait
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import EffectClass
from onceward.tools.call import Call, plan
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.invocation import FunctionRun, is_one_of
from onceward.tools.json_result import to_json
from onceward.tools.json_schema import schema_of
from onceward.tools.keys import Group, check_group, id_text
from onceward.tools.observer import Observer
from onceward.tools.receipts import error_envelope
from onceward.tools.tool import IDEMPOTENT_SECONDS, Once, OnceRule, Tool, tool
from onceward.tools.toolbox import run_call

P = ParamSpec("P")
LedgerSource: TypeAlias = Ledger | Callable[[], Ledger]
Principal: TypeAlias = str | Callable[[], str]

# Classes whose values a framework passes to a tool, and annotations that mark such a parameter, by the package of the
# framework. They are recognized by name, because nothing here imports a framework.
CONTEXTS: dict[str, frozenset[str]] = {
    "agents": frozenset({"RunContextWrapper"}),
    "pydantic_ai": frozenset({"RunContext"}),
    "langchain_core": frozenset({"InjectedToolArg", "RunnableConfig", "BaseCallbackManager", "BaseRunManager"}),
    "langgraph": frozenset({"ToolRuntime", "Runtime", "BaseStore"}),
    "mcp": frozenset({"Context", "Resolve"}),
    "fastmcp": frozenset({"Context"}),
}
_CONTEXT_NAMES = frozenset[str]().union(*CONTEXTS.values())
_WORD = re.compile(r"[A-Za-z_]\w*")
# Errors that the bare value of a call can be missing for, by their code.
_RAISED: dict[str, type[errors.OncewardError]] = {
    one.code: one
    for one in (
        errors.Busy,
        errors.ClaimLost,
        errors.InDoubt,
        errors.InvalidInput,
        errors.InvalidKey,
        errors.KeyReused,
        errors.OutcomeNotKept,
        errors.TransactionConflict,
    )
}


def once_tool(
    ledger: LedgerSource,
    *,
    effect: EffectClass,
    key_fields: Sequence[str] = (),
    template: str | None = None,
    once: OnceRule = Once.GROUP,
    scope: Group | None = None,
    retain_seconds: float = IDEMPOTENT_SECONDS,
    unwrap: bool = False,
    context: Sequence[str] = (),
    principal: Principal = "local",
    tenant_id: str | None = None,
    name: str | None = None,
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
) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Decorate a function so that a call has its effect once. Put a framework's own decorator above it.

    A `def` stays a `def` and blocks; an `async def` stays an `async def`.

    Args:
        ledger: The ledger that records the calls, or a function that returns it.
        effect: The effect class: pure, idempotent, compensatable or irreversible.
        key_fields: The arguments that identify a call. Without `key_fields` and `template`, all arguments do.
        template: A template of the business key instead of `key_fields`, such as `"order:{order_id}"`.
        once: `"group"`: once for each scope. `"ever"`: once for each business key, whatever the scope.
        scope: The group of calls that share their effects, such as a conversation: a string, or a function without
            arguments that returns one and is called for each call. Required with once="group".
        retain_seconds: How long a call is remembered. With once="ever", how long its result is.
        unwrap: Whether to return the result of the function instead of the envelope. A call without a result then
            raises: the exception of the function, or an Onceward error such as `InDoubt`.
        context: Parameters that the framework fills in and that are not part of the call. Parameters with a context
            class of a known framework are found by their annotation; so is `self`.
        principal: The caller: a string, or a function without arguments that returns one. Different principals never
            share effects.
        tenant_id: The tenant. By default, the principal.
        name: The name of the tool in its keys. By default, the name of the function.
        volatile: See `tool`.
        exact: See `tool`.
        undo: See `tool`.
        reconcile: See `tool`.
        provider_key: See `tool`. The decorated function does not have this parameter.
        not_done: See `tool`.
        how_to_check: See `tool`.
        version: See `tool`.
        wait_seconds: See `tool`.
        lease_seconds: See `tool`.
        observer: Notified of each check of a key.

    Returns:
        A decorator. The decorated function returns the envelope as a dict; errors of Onceward are envelopes, too.

    Raises:
        InvalidOption: An option is wrong, or a value has no JSON form. The decorator and the function raise it, too.
    """
    if not isinstance(ledger, Ledger) and not callable(ledger):
        raise errors.InvalidOption(f"once_tool needs a Ledger, or a function that returns one, got {ledger!r:.60}")
    if scope is not None:
        check_group(scope)
    if isinstance(context, str):
        raise errors.InvalidOption(f"context= must be a list of parameter names, got the string {context!r}")

    def decorate(function: Callable[P, Any]) -> Callable[P, Any]:
        if not callable(function) or not hasattr(function, "__name__") or isinstance(function, type):
            raise errors.InvalidOption(f"once_tool decorates a function, not {function!r:.60}; wrap it in a function")
        hidden = _context_of(function, context, {*key_fields, *volatile, *exact})
        declare = tool(
            effect=effect,
            name=name,
            key_fields=key_fields,
            template=template,
            once=once,
            volatile=volatile,
            exact=exact,
            undo=undo,
            reconcile=reconcile,
            provider_key=provider_key,
            idempotent_for=retain_seconds,
            not_done=not_done,
            how_to_check=how_to_check,
            version=version,
            wait_seconds=wait_seconds,
            lease_seconds=lease_seconds,
            parameters=schema_of(function, {*hidden, *([provider_key] if provider_key else [])}),
        )
        declared = declare(function)
        keyed = hidden & {*declared.keyed}
        if keyed:
            raise errors.InvalidOption(
                f"the parameter {min(keyed)!r} of {declared.name} is filled in by the framework, so it cannot be in the"
                " key"
            )
        if scope is None and declared.once is Once.GROUP:
            raise errors.InvalidOption(
                f'{declared.name} needs scope=, the group of calls that share their effects, or once="ever"'
            )
        made = _OnceFunction(
            function, declared, ledger, scope, principal, tenant_id, hidden, unwrap=unwrap, observer=observer
        )
        return made.wrapper()

    return decorate


@dataclass(slots=True)
class _OnceFunction:
    """A decorated function: how its calls become planned calls, and envelopes become its results."""

    function: Callable[..., Any]
    declared: Tool
    ledger: LedgerSource
    scope: Group | None
    principal: Principal
    tenant_id: str | None
    hidden: frozenset[str]
    unwrap: bool
    observer: Observer | None

    def wrapper(self) -> Callable[..., Any]:
        function = self.function
        signature = inspect.signature(function)
        provider_key = self.declared.provider_key
        visible = signature.replace(
            parameters=[one for one in signature.parameters.values() if one.name != provider_key]
        )
        hints = dict(getattr(function, "__annotations__", {}))
        hints.pop(provider_key or "", None)
        if not self.unwrap:
            # Frameworks may check a result against the annotation, and the result is the envelope.
            visible = visible.replace(return_annotation=dict[str, Any])
            hints["return"] = dict[str, Any]
        made = self._async_wrapper(visible) if inspect.iscoroutinefunction(function) else self._sync_wrapper(visible)
        functools.update_wrapper(made, function)
        made.__annotations__ = hints
        made.__signature__ = visible  # type: ignore[attr-defined]  # inspect reads it first
        return made

    def _async_wrapper(self, visible: inspect.Signature) -> Callable[..., Any]:
        async def awaited(*args: Any, **named: Any) -> Any:
            ran = FunctionRun()

            async def effect_fn(extra: Mapping[str, Any]) -> Any:
                with ran.recorded():
                    ran.value = await self.function(*args, **named, **extra)
                return ran.value

            try:
                return self._result(await self._envelope(visible, args, named, effect_fn), ran)
            except errors.OncewardError as error:
                return self._after_error(error, ran)

        return awaited

    def _sync_wrapper(self, visible: inspect.Signature) -> Callable[..., Any]:
        def waited(*args: Any, **named: Any) -> Any:
            ran = FunctionRun()

            async def effect_fn(extra: Mapping[str, Any]) -> Any:  # stepped on this thread, without a loop
                with ran.recorded():
                    ran.value = self.function(*args, **named, **extra)
                if inspect.iscoroutine(ran.value):
                    ran.value.close()
                    raise errors.NotDone(f"{self.declared.name} returned a coroutine; declare it with async def")
                return ran.value

            try:
                return self._result(wait(self._envelope(visible, args, named, effect_fn)), ran)
            except errors.OncewardError as error:
                return self._after_error(error, ran)

        return waited

    async def _envelope(
        self,
        visible: inspect.Signature,
        args: tuple[Any, ...],
        named: dict[str, Any],
        effect_fn: Callable[[Mapping[str, Any]], Any],
    ) -> Envelope:
        ledger = ledger_from(self.ledger)
        try:
            call = replace(self._plan_call(visible, args, named), effect_fn=effect_fn)
        except (errors.InvalidInput, errors.InvalidKey) as error:
            return Envelope(CallStatus.REFUSED, self.declared.name, detail=str(error), code=error.code)
        return await run_call(ledger, call, observer=self.observer)

    def _plan_call(self, visible: inspect.Signature, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        try:
            bound = visible.bind(*args, **named)
        except TypeError as error:
            raise errors.InvalidInput(str(error)) from None
        arguments: dict[str, Any] = {}
        for one, value in bound.arguments.items():
            if one in self.hidden:
                continue
            if visible.parameters[one].kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= {more: self._argument(more, item) for more, item in value.items()}
            else:
                arguments[one] = self._argument(one, value)
        principal = self.principal() if callable(self.principal) else self.principal
        return plan(
            self.declared,
            arguments,
            principal=id_text("principal", principal),
            tenant_id=principal if self.tenant_id is None else self.tenant_id,
            turn_group_id=self.scope,
        )

    def _argument(self, name: str, value: object) -> object:
        try:
            return to_json(value)
        except Unkeepable as error:
            raise errors.InvalidOption(
                f"the argument {name!r} of {self.declared.name} cannot be part of a call: {error}; if the framework"
                f" fills it in, name it in context=[{name!r}]"
            ) from error

    def _result(self, envelope: Envelope, ran: FunctionRun) -> Any:
        ran.raise_interrupt()
        if not self.unwrap:
            return envelope.json()
        kept = envelope.code != errors.OutcomeNotKept.code and "result_not_kept" not in (envelope.receipt or {})
        if envelope.ok and kept:
            return envelope.result
        if envelope.status is CallStatus.DONE:
            return ran.value
        if ran.raised is not None:
            raise ran.raised
        if envelope.ok:
            raise errors.OutcomeNotKept(envelope.detail)
        raise _RAISED.get(envelope.code, errors.NotDone)(envelope.detail)

    def _after_error(self, error: errors.OncewardError, ran: FunctionRun) -> Any:
        """Return an error of Onceward as an envelope. Errors of the program itself are raised."""
        if self.unwrap or error is ran.raised or isinstance(error, errors.InvalidOption):
            raise error
        return error_envelope(self.declared.name, error).json()


def ledger_from(source: LedgerSource) -> Ledger:
    """Return a ledger that is given as itself or by a function."""
    found = source if isinstance(source, Ledger) else source()
    if not isinstance(found, Ledger):
        raise errors.InvalidOption(f"a function in place of a ledger must return a Ledger, got {found!r:.60}")
    return found


def _context_of(function: Callable[..., Any], named: Sequence[str], arguments: set[str]) -> frozenset[str]:
    """Return the parameters that are not arguments of a call: those that are named, and those of known classes."""
    known = inspect.signature(function).parameters
    unknown = {*named} - known.keys()
    if unknown:
        raise errors.InvalidOption(
            f"context= names {min(unknown)!r}, which is not a parameter of {function.__qualname__}"
        )
    found = {*named}
    for at, (one, parameter) in enumerate(known.items()):
        if (at == 0 and one in {"self", "cls"}) or (
            one not in arguments and one not in found and _is_context(function, one, parameter.annotation)
        ):
            found.add(one)
    return frozenset(found)


def _is_context(function: Callable[..., Any], name: str, annotation: object) -> bool:
    if isinstance(annotation, str):
        scope = {**getattr(function, "__globals__", {}), **_closure(function)}
        try:
            annotation = eval(annotation, scope)  # noqa: S307  # the annotation that the user's own source declares
        except Exception as error:
            if _CONTEXT_NAMES.isdisjoint(_WORD.findall(cast("str", annotation))):
                return False
            raise errors.InvalidOption(
                f"the annotation of {name!r} in {function.__qualname__} cannot be evaluated ({errors.described(error)});"
                f" if the framework fills this parameter in, name it in context=[{name!r}]"
            ) from error
    return any(isinstance(one, type) and is_one_of(one, CONTEXTS) for one in _parts(annotation))


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return {**inspect.getclosurevars(function).nonlocals}
    except (TypeError, ValueError):
        return {}


def _parts(annotation: object) -> list[object]:
    """Return the classes in an annotation: of a union, of a generic class, and the marks of `Annotated`."""
    origin = typing.get_origin(annotation)
    if origin is None:
        return [annotation if isinstance(annotation, type) else type(annotation)]
    if origin is typing.Annotated:
        first, *marks = typing.get_args(annotation)
        return [*_parts(first), *(one for mark in marks for one in _parts(mark))]
    if isinstance(origin, type) and is_one_of(origin, CONTEXTS):
        return [origin]
    if origin is typing.Union or _is_union(annotation):
        return [part for one in typing.get_args(annotation) for part in _parts(one)]
    return []


def _is_union(annotation: object) -> bool:
    return type(annotation).__name__ in {"UnionType", "Union"}
