"""The declaration of a tool: a function, its effect class, and the arguments that identify a call.

    @tool(effect="irreversible", template="order:{order_id}", provider_key="idempotency_key")
    async def refund(order_id: str, amount: int, idempotency_key: str) -> dict[str, str]: ...

A declared tool is not callable itself. Call it through a toolbox, which makes the call safe to repeat.
"""

from __future__ import annotations

import enum
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast

from onceward.core.canonical import Json
from onceward.core.json_text import written
from onceward.core.key import parse
from onceward.core.scalar import Unkeepable
from onceward.errors import InvalidInput, InvalidKey, InvalidOption
from onceward.ledger.terms import RETAIN_SECONDS_MAX, Effect, EffectClass, Terms, check_seconds
from onceward.tools.invocation import check_hook
from onceward.tools.json_result import to_json
from onceward.tools.json_schema import Schema, problem, schema_of
from onceward.tools.keys import business_key, key_template

# The retention of a call: longer than a conversation about one subject.
IDEMPOTENT_SECONDS = 24 * 3600.0
# Arguments are recorded with every call that is not pure. Store larger data as a blob and pass its id.
ARGUMENTS_BYTES_MAX = 1024 * 1024
# Names that fit into keys, schemas and the protocols of models.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# The end of the argument's name in a field of a template, such as `{order[id]}`.
_ARGUMENT = re.compile(r"[.\[]")


class Once(enum.StrEnum):
    """The extent within which calls with the same business key have one effect."""

    GROUP = "group"
    EVER = "ever"


# It is declared as a member or by its name, which type checkers verify.
OnceRule: TypeAlias = Once | Literal["group", "ever"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A declared tool. Create it with the decorator `tool(…)`, which explains the options.

    Args:
        name: The name of the tool: 1 to 64 of A-Z a-z 0-9 _ . -
        function: The function to call.
        effect: The effect class.
        description: The description for the model.
        key_fields: See `tool`.
        template: See `tool`.
        once: See `tool`.
        volatile: See `tool`.
        exact: See `tool`.
        undo: See `tool`.
        reconcile: See `tool`.
        provider_key: See `tool`.
        idempotent_for: How many seconds a call is remembered.
        not_done: See `tool`.
        how_to_check: See `tool`.
        version: See `tool`.
        wait_seconds: See `tool`.
        lease_seconds: See `tool`.
        parameters: The JSON Schema of the arguments. By default, derived from the function.

    Raises:
        InvalidOption: An option is wrong, or names an argument that the function does not have.
        InvalidKey: `key_fields` or `template` is not valid.
    """

    name: str
    function: Callable[..., Any]
    effect: Effect
    description: str = ""
    key_fields: tuple[str, ...] = ()
    template: str | None = None
    once: OnceRule = Once.GROUP
    volatile: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    undo: Callable[..., Any] | None = None
    reconcile: Callable[..., Any] | None = None
    provider_key: str | None = None
    idempotent_for: float = IDEMPOTENT_SECONDS
    not_done: tuple[type[BaseException], ...] = ()
    how_to_check: str | None = None
    version: str = "1"
    wait_seconds: float | None = None
    lease_seconds: float | None = None
    parameters: Schema = field(default_factory=dict)
    # Derived: the template of the business key (None if all arguments form it), the arguments that it names, those of
    # them whose complete value is in the key, and the defaults of the function.
    pattern: str | None = field(init=False, repr=False)
    keyed: tuple[str, ...] = field(init=False, repr=False)
    keyed_whole: frozenset[str] = field(init=False, repr=False)
    defaults: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidOption(f"the name of a tool must be 1 to 64 of A-Z a-z 0-9 _ . -, got {self.name!r}")
        # The terms of the ledger check the options that they share with a tool.
        terms = Terms(
            effect=self.effect,
            undo=self.undo,
            reconcile=self.reconcile,
            not_done=self.not_done,
            wait_seconds=self.wait_seconds,
            lease_seconds=self.lease_seconds,
        )
        object.__setattr__(self, "effect", terms.effect)
        object.__setattr__(self, "once", checked_once(self.once, terms.effect))
        check_seconds("idempotent_for", self.idempotent_for, RETAIN_SECONDS_MAX)
        function = self.function
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidOption(f"{self.name} is a generator and has no single result to store; use a plain function")
        hidden = () if self.provider_key is None else (self.provider_key,)
        if not self.parameters:
            object.__setattr__(self, "parameters", schema_of(function, hidden))
        known = inspect.signature(function).parameters
        pattern = key_template(self.key_fields, self.template)
        named = [] if pattern is None else [name for _, name in parse(pattern).parts if name is not None]
        for attribute, value in (
            ("pattern", pattern),
            ("keyed", tuple(_ARGUMENT.split(name, maxsplit=1)[0] for name in named)),
            ("keyed_whole", frozenset(name for name in named if not _ARGUMENT.search(name))),
            ("defaults", {one.name: _in_json(one.default) for one in known.values() if one.default is not one.empty}),
        ):
            object.__setattr__(self, attribute, value)
        self._check_names(known)
        names = {*cast("Schema", self.parameters.get("properties", {})), *hidden, "call"}
        open_ended = self.parameters.get("additionalProperties") is True
        if self.undo is not None:
            check_hook("undo", self.undo, {*names, "result"}, others=0, open_ended=open_ended)
        if self.reconcile is not None:
            check_hook("reconcile", self.reconcile, {*names, "entry"}, others=1, open_ended=open_ended)

    def normalized(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are recorded, after a round trip through JSON.

        JSON has one type of number: a parameter of type int gets 5 for 5.0.

        Args:
            arguments: The arguments of a call, by name.

        Returns:
            The arguments as JSON values.

        Raises:
            InvalidInput: They have no JSON form, are too large, or do not match the tool's schema.
        """
        try:
            text = written(dict(arguments))
            size = len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"the arguments have no JSON form: {error}") from error
        if size > ARGUMENTS_BYTES_MAX:
            raise InvalidInput(f"the arguments are limited to {ARGUMENTS_BYTES_MAX} bytes, got {size}")
        given: dict[str, Any] = json.loads(text)
        properties = cast("dict[str, dict[str, Json]]", self.parameters.get("properties", {}))
        for name, value in given.items():
            is_integer = properties.get(name, {}).get("type") == "integer"
            if is_integer and isinstance(value, float) and value.is_integer():
                given[name] = int(value)
        wrong = problem(self.parameters, given)
        if wrong is not None:
            raise InvalidInput(wrong)
        return given

    def without_defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that differ from their defaults.

        A call that passes a default explicitly is therefore the same as one that omits it, and a new optional parameter
        does not change the identity of calls.

        Args:
            given: The normalized arguments.

        Returns:
            A dict without the arguments that equal their defaults.
        """
        return {name: value for name, value in given.items() if not self._is_default(name, value)}

    # The names of these two methods in 0.1.
    given = normalized
    said = without_defaults

    def business_key(self, given: Mapping[str, Any]) -> str:
        """Return the business key of a call with these arguments.

        Args:
            given: The normalized arguments.

        Returns:
            The business key, such as `order:42`.

        Raises:
            InvalidKey: An argument that the key names is missing or null.
        """
        if self.pattern is None:
            same = {name: value for name, value in self.without_defaults(given).items() if name not in self.volatile}
            return business_key(self.name, same, None)
        return business_key(self.name, {**self.defaults, **given}, self.pattern)

    def _is_default(self, name: str, value: object) -> bool:
        if name not in self.defaults:
            return False
        default = self.defaults[name]
        return type(value) is type(default) and bool(value == default)

    def _check_names(self, known: Mapping[str, inspect.Parameter]) -> None:
        if self.provider_key is not None and self.provider_key not in known:
            raise InvalidOption(f"provider_key= names {self.provider_key!r}, which is not a parameter of {self.name}")
        open_ended = any(one.kind is one.VAR_KEYWORD for one in known.values())
        for option, names in (("its key", self.keyed), ("volatile=", self.volatile), ("exact=", self.exact)):
            for name in names:
                if name == self.provider_key or (name not in known and not open_ended):
                    raise InvalidOption(f"{option} names {name!r}, which is not an argument of {self.name}")
        both = ({*self.volatile} & {*self.keyed}) | ({*self.volatile} & {*self.exact})
        if both:
            raise InvalidOption(
                f"the argument {min(both)!r} of {self.name} is volatile, so it cannot identify calls too"
            )


def checked_once(once: object, effect: object) -> Once:
    """Return the option `once` of a tool with this effect class, or raise `InvalidOption`."""
    try:
        rule = Once(cast("str", once))
    except ValueError:
        raise InvalidOption(f"once= must be one of {', '.join(Once)}, not {once!r}") from None
    if rule is Once.EVER and effect is Effect.PURE:
        raise InvalidOption('a pure tool is not recorded, so it cannot have once="ever"')
    return rule


def _in_json(default: object) -> object:
    """Return a default as a recorded argument would be, so that the two can be compared."""
    try:
        return to_json(default)
    except Unkeepable:
        return default


def tool(
    *,
    effect: EffectClass,
    name: str | None = None,
    description: str | None = None,
    key_fields: Sequence[str] = (),
    template: str | None = None,
    once: OnceRule = Once.GROUP,
    volatile: Sequence[str] = (),
    exact: Sequence[str] = (),
    undo: Callable[..., Any] | None = None,
    reconcile: Callable[..., Any] | None = None,
    provider_key: str | None = None,
    idempotent_for: float | timedelta = IDEMPOTENT_SECONDS,
    not_done: tuple[type[BaseException], ...] = (),
    how_to_check: str | None = None,
    version: str = "1",
    wait_seconds: float | None = None,
    lease_seconds: float | None = None,
    parameters: Schema | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Declare a function as a tool. An `async def` runs on the event loop, a `def` in a thread.

    Args:
        effect: The effect class: pure, idempotent, compensatable or irreversible.
        name: The name of the tool. By default, the name of the function.
        description: The description for the model. By default, the docstring of the function.
        key_fields: The arguments that identify a call. Without `key_fields` and `template`, all arguments do.
        template: A template of the business key instead of `key_fields`, such as `"order:{order_id}"`.
        once: `"group"`: once for each turn group. `"ever"`: once for each business key, whatever the group; the entry
            never expires.
        volatile: Arguments that may differ between repetitions of the same call. Except in key fields, values that look
            like a UUID or a timestamp are volatile, too.
        exact: Arguments in which a UUID or a timestamp is not volatile.
        undo: Undoes the effect of a call; for compensatable tools only. Its parameters may be any arguments of the
            call, `result` (None if it is unknown) and `call`.
        reconcile: Finds out whether a call in doubt happened, and returns a verdict. Its parameters may be any
            arguments of the call, `call` and `entry`.
        provider_key: The parameter that receives the idempotency key for the provider: `CurrentClaim.key_for`. The key
            is the same in every attempt that may have reached the provider. A compensatable tool gets a new one after
            each undo. Callers do not see it.
        idempotent_for: How long a call is remembered: seconds or a timedelta. With once="ever", only its result is
            dropped after that time.
        not_done: Exceptions that prove that nothing happened, in addition to `errors.NotDone`.
        how_to_check: Advice for the model on how to find out whether a call happened.
        version: The version of the tool. A new version does not repeat calls of an earlier one.
        wait_seconds: How long a call waits for a running duplicate.
        lease_seconds: How long a silent holder keeps its claim.
        parameters: The JSON Schema of the arguments. By default, derived from the function.

    Returns:
        A decorator that returns the `Tool`.

    Raises:
        InvalidOption: An option is wrong. The decorator raises it, too.
    """
    for option, names in (("key_fields", key_fields), ("volatile", volatile), ("exact", exact)):
        if isinstance(names, str):
            raise InvalidOption(f"{option}= must be a list of argument names, got the string {names!r}")
    seconds = idempotent_for.total_seconds() if isinstance(idempotent_for, timedelta) else idempotent_for

    def declare(function: Callable[..., Any]) -> Tool:
        try:
            return Tool(
                name=name or function.__name__,
                function=function,
                effect=cast("Effect", effect),  # `Tool` converts a string, or refuses it
                description=inspect.getdoc(function) or "" if description is None else description,
                key_fields=tuple(key_fields),
                template=template,
                once=once,
                volatile=tuple(volatile),
                exact=tuple(exact),
                undo=undo,
                reconcile=reconcile,
                provider_key=provider_key,
                idempotent_for=seconds,
                not_done=not_done,
                how_to_check=how_to_check,
                version=version,
                wait_seconds=wait_seconds,
                lease_seconds=lease_seconds,
                parameters=parameters or {},
            )
        except InvalidKey as error:
            raise InvalidOption(str(error)) from error

    return declare
