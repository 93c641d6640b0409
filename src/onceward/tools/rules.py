"""Rules for tools that a framework owns: which of its tools run once, and what identifies their calls.

    rules = ToolRules({"refund": {"effect": "irreversible", "key_fields": ["order_id"]}})
    envelope = await rules.call("refund", arguments, handler, ledger=ledger, scope=conversation_id)

A middleware calls this for each tool call, with a handler that runs the framework's own tool. The rules are plain
mappings, so that they can come from a file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from onceward import errors
from onceward.ledger.blocking import wait
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import Effect, EffectClass
from onceward.tools.call import Call, Gate, plan
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.invocation import FunctionRun
from onceward.tools.keys import Group
from onceward.tools.observer import Observer
from onceward.tools.receipts import error_envelope
from onceward.tools.tool import OnceRule, Tool, tool
from onceward.tools.toolbox import run_call

# The treatment of tools without a rule.
Unlisted: TypeAlias = Literal["pass", "refuse"]


class RuleOptions(TypedDict, total=False):
    """The rule of one tool. `effect` is required; `retain_seconds` is how long a call is remembered. See `tool`."""

    effect: EffectClass
    key_fields: Sequence[str]
    template: str
    once: OnceRule
    volatile: Sequence[str]
    exact: Sequence[str]
    retain_seconds: float
    undo: Callable[..., Any]
    reconcile: Callable[..., Any]
    not_done: tuple[type[BaseException], ...]
    how_to_check: str
    version: str
    wait_seconds: float
    lease_seconds: float


class ToolRules:
    """The rules of a framework's tools, by the name of the tool.

    Args:
        rules: For each tool, its options; see `RuleOptions`. Only `effect` is required. A pure tool is not recorded.
        unlisted: Whether a tool without a rule is passed through (`"pass"`) or refused (`"refuse"`).

    Raises:
        InvalidOption: A rule is not valid. The message names the tool.
    """

    def __init__(
        self, rules: Mapping[str, RuleOptions] | Mapping[str, Mapping[str, Any]], *, unlisted: Unlisted = "pass"
    ) -> None:
        if not isinstance(rules, Mapping):
            raise errors.InvalidOption(f"rules must be a mapping from tool names to options, got {rules!r:.60}")
        if unlisted not in get_args(Unlisted):
            raise errors.InvalidOption(f"unlisted= must be 'pass' or 'refuse', not {unlisted!r}")
        self._tools = {name: _declared(name, options) for name, options in rules.items()}
        self._refuses = unlisted == "refuse"

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def passes(self, name: str) -> bool:
        """Return whether the framework may run this tool directly: it is pure, or has no rule and is not refused.

        Args:
            name: The name of the tool.

        Returns:
            True if nothing is recorded for this tool.
        """
        declared = self._tools.get(name)
        return not self._refuses if declared is None else declared.effect is Effect.PURE

    def keyed(self, name: str) -> tuple[str, ...]:
        """Return the arguments that the key of a tool names.

        Args:
            name: The name of the tool.

        Returns:
            The names of the arguments; none if the tool has no rule, or if all its arguments form the key.
        """
        declared = self._tools.get(name)
        return () if declared is None else declared.keyed

    def plan(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        scope: Group | None,
        principal: str = "local",
        tenant_id: str | None = None,
        idempotency_key: str | None = None,
        retain_seconds: float | None = None,
    ) -> Call:
        """Plan a call without running it: check its arguments and build its key.

        Args:
            name: The name of the tool.
            arguments: The arguments of the call, by name. A call id is not one of them.
            scope: The group of calls that share their effects: a string, or a function without arguments that returns
                one. Not needed for a rule with once="ever", or with an idempotency key.
            principal: The caller. Different principals never share effects.
            tenant_id: The tenant. By default, the principal.
            idempotency_key: The caller's key for this call, used instead of the business key and the scope.
            retain_seconds: How long the outcome is stored, instead of the rule's `retain_seconds`.

        Returns:
            The planned call.

        Raises:
            NotFound: The tool has no rule.
            InvalidInput: The arguments have no JSON form.
            InvalidKey: The arguments do not form a key, for example because a key field is missing.
            InvalidOption: `scope`, `principal` or `tenant_id` is not valid.
        """
        declared = self._tools.get(name)
        if declared is None:
            raise errors.NotFound(f"the tool {name!r} has no rule, and tools without a rule are refused")
        return plan(
            declared,
            arguments,
            principal=principal,
            tenant_id=principal if tenant_id is None else tenant_id,
            turn_group_id=scope,
            idempotency_key=idempotency_key,
            retain_seconds=retain_seconds,
        )

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        handler: Callable[[], Awaitable[Any]],
        *,
        ledger: Ledger,
        gate: Gate | None = None,
        observer: Observer | None = None,
        **identity: Any,
    ) -> Envelope:
        """Run a framework's tool once for its key. A repeated call returns the outcome of the first.

        Args:
            name: The name of the tool.
            arguments: The arguments of the call, by name. A call id is not one of them.
            handler: Runs the tool, and returns its result as JSON.
            ledger: The ledger that records the call.
            gate: The gate of a turn: asked before the effect begins, and notified of the result. With a gate, errors
                of the gate and of the ledger are raised, because the turn handles them.
            observer: Notified of the check of the key.
            identity: The options of `plan` that identify the call, such as `scope`.

        Returns:
            The envelope. It reports every result, including exceptions of the handler and errors of Onceward; if the
            store is unavailable, its status is `unknown`.

        Raises:
            InvalidOption: An option is wrong. Nothing ran.
            Superseded: The gate refused the call. Nothing ran.
            StoreUnavailable: There is a gate, and the store of the ledger is unavailable.
            Exception: The exception by which the tool interrupts its framework, such as `GraphInterrupt`. Nothing is
                recorded, and the tool may run again.
        """
        ran = FunctionRun()

        async def effect_fn(_extra: Mapping[str, Any]) -> Any:
            with ran.recorded():
                return await handler()

        return await self._run(name, arguments, effect_fn, ran, ledger, gate, observer, identity)

    def call_blocking(
        self,
        name: str,
        arguments: Mapping[str, Any],
        handler: Callable[[], Any],
        *,
        ledger: Ledger,
        observer: Observer | None = None,
        **identity: Any,
    ) -> Envelope:
        """Run a framework's tool like `call`, with a handler that blocks.

        Args:
            name: As in `call`.
            arguments: As in `call`.
            handler: Runs the tool on this thread, and returns its result as JSON.
            ledger: As in `call`.
            observer: As in `call`.
            identity: As in `call`.

        Returns:
            The envelope.

        Raises:
            InvalidOption: An option is wrong. Nothing ran.
            Exception: As in `call`.
        """
        ran = FunctionRun()

        async def effect_fn(_extra: Mapping[str, Any]) -> Any:  # stepped on this thread, without a loop
            with ran.recorded():
                return handler()

        return wait(self._run(name, arguments, effect_fn, ran, ledger, None, observer, identity))

    async def _run(
        self,
        name: str,
        arguments: Mapping[str, Any],
        effect_fn: Callable[[Mapping[str, Any]], Awaitable[Any]],
        ran: FunctionRun,
        ledger: Ledger,
        gate: Gate | None,
        observer: Observer | None,
        identity: Mapping[str, Any],
    ) -> Envelope:
        try:
            call = replace(self.plan(name, arguments, **identity), effect_fn=effect_fn)
            envelope = await run_call(ledger, call, gate=gate, observer=observer)
        except errors.InvalidOption:
            raise
        except (errors.NotFound, errors.InvalidInput, errors.InvalidKey) as error:
            return Envelope(CallStatus.REFUSED, name, detail=str(error), code=error.code)
        except errors.OncewardError as error:
            if gate is not None:
                raise
            return error_envelope(name, error)
        ran.raise_interrupt()
        return envelope


def _declared(name: object, options: object) -> Tool:
    if not isinstance(name, str) or not isinstance(options, Mapping):
        raise errors.InvalidOption(
            f"a rule must be a mapping of options under the name of a tool, got {options!r:.60} under {name!r:.60}"
        )
    unknown = options.keys() - RuleOptions.__annotations__.keys()
    if unknown:
        raise errors.InvalidOption(
            f"the rule of {name!r} has the unknown option {min(map(str, unknown))!r}; the options are"
            f" {', '.join(RuleOptions.__annotations__)}"
        )
    if "effect" not in options:
        raise errors.InvalidOption(f"the rule of {name!r} has no effect; declare one of {', '.join(Effect)}")
    given = dict(options)
    for option in ("key_fields", "volatile", "exact"):
        names = given.get(option, ())
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
            raise errors.InvalidOption(
                f"the rule of {name!r} is not valid: {option} must be a list of argument names, got {names!r:.60}"
            )
    for option in ("template", "how_to_check", "version"):
        if not isinstance(given.get(option, ""), str):
            raise errors.InvalidOption(
                f"the rule of {name!r} is not valid: {option} must be a string, got {given[option]!r:.60}"
            )
    if "retain_seconds" in given:
        given["idempotent_for"] = given.pop("retain_seconds")
    try:
        return tool(name=name, description="", **given)(_run_by_the_framework)
    except errors.InvalidOption as error:
        raise errors.InvalidOption(f"the rule of {name!r} is not valid: {error}") from error


async def _run_by_the_framework(**_arguments: Any) -> None:  # it has to be a tool's function
    """Stand for the framework's own tool, whose parameters are not known here. Each call brings its own effect_fn."""
    raise AssertionError
