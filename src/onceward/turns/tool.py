"""The declaration of a tool: a function, what repeating it would do, and what says that two calls are the same.

    @tool(effect="irreversible", template="order:{order_id}", provider_key="idempotency_key")
    async def refund(order_id: str, amount: int, idempotency_key: str) -> dict[str, str]: ...

A declared tool is no function any more: it is called through a toolbox, which is what makes calling it safe.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from onceward.core.canonical import Json
from onceward.core.key import parse
from onceward.core.text import written
from onceward.errors import InvalidInput, InvalidKey, InvalidOption
from onceward.terms import RETAIN_SECONDS_MAX, Effect, EffectClass, Terms, check_seconds
from onceward.turns.invoke import check_hook
from onceward.turns.keys import business_key, key_template
from onceward.turns.schema import Schema, problem, schema_of

# How long a call is remembered: longer than any conversation goes on about one thing.
IDEMPOTENT_SECONDS = 24 * 3600.0
# They are recorded with every call that is not pure; what is larger belongs among the blobs, and its id here.
ARGUMENTS_BYTES_MAX = 1024 * 1024
# What a key, a schema and the protocols of models have room for.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Where the name of an argument ends in a field of a template, such as `{order[id]}`.
_ARGUMENT = re.compile(r"[.\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What `tool(…)` makes.

    effect          pure | idempotent | compensatable | irreversible; required
    key_fields      the arguments that say what a call is about; or `template`, such as `"order:{order_id}"`. Without
                    either, all arguments are
    volatile        arguments that are drawn anew for each call and do not make it another one. Beside key fields, what
                    looks like a uuid or a moment in time is taken for volatile as well, except in those of `exact`
    undo            compensatable only: takes back what a call did. Takes by name any of the call's arguments, `result`
                    (None when it is not known) and `call`
    reconcile       asked when nobody knows whether a call happened; takes any of the call's arguments, `call` and
                    `entry`, and answers with a verdict
    provider_key    the argument in which our key is handed to the provider, the same in every attempt; callers do not
                    see it. A compensatable tool gets a new one after each undo
    idempotent_for  for how long (seconds, or a timedelta) a call is remembered
    not_done        exceptions that prove that nothing happened, beside `errors.NotDone`
    how_to_check    what a model can do to find out whether a call happened
    version         of the tool; another version does not run what an earlier one has done
    """

    name: str
    function: Callable[..., Any]
    effect: Effect
    description: str = ""
    key_fields: tuple[str, ...] = ()
    template: str | None = None
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
    # Worked out once: the template of the business key (None when all arguments make it), the arguments that it names,
    # those of them whose whole value is in the key, and what the function takes when it is not told.
    pattern: str | None = field(init=False, repr=False)
    keyed: tuple[str, ...] = field(init=False, repr=False)
    keyed_whole: frozenset[str] = field(init=False, repr=False)
    defaults: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidOption(f"a tool's name is 1 to 64 of A-Z a-z 0-9 _ . -, not {self.name!r}")
        # The terms of the ledger check what they have in common with a tool.
        terms = Terms(
            effect=self.effect,
            undo=self.undo,
            reconcile=self.reconcile,
            not_done=self.not_done,
            wait_seconds=self.wait_seconds,
            lease_seconds=self.lease_seconds,
        )
        object.__setattr__(self, "effect", terms.effect)
        check_seconds("idempotent_for", self.idempotent_for, RETAIN_SECONDS_MAX)
        function = self.function
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidOption(f"{self.name} is a generator: it has no one result to keep")
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
            ("defaults", {one.name: one.default for one in known.values() if one.default is not one.empty}),
        ):
            object.__setattr__(self, attribute, value)
        self._check_names(known)
        names = {*cast("Schema", self.parameters.get("properties", {})), *hidden, "call"}
        if self.undo is not None:
            check_hook("undo", self.undo, {*names, "result"}, others=0)
        if self.reconcile is not None:
            check_hook("reconcile", self.reconcile, {*names, "entry"}, others=1)

    def given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they come back from where they are recorded; `InvalidInput` when the tool does not take them.

        JSON has one kind of number: 5.0 is a whole one, and a function that takes an int gets one.
        """
        try:
            text = written(dict(arguments))
            size = len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"the arguments have no JSON form: {error}") from error
        if size > ARGUMENTS_BYTES_MAX:
            raise InvalidInput(f"the arguments are limited to {ARGUMENTS_BYTES_MAX} bytes")
        given: dict[str, Any] = json.loads(text)
        properties = cast("dict[str, dict[str, Json]]", self.parameters.get("properties", {}))
        for name, value in given.items():
            whole = properties.get(name, {}).get("type") == "integer"
            if whole and isinstance(value, float) and value.is_integer():
                given[name] = int(value)
        wrong = problem(self.parameters, given)
        if wrong is not None:
            raise InvalidInput(wrong)
        return given

    def said(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that say something: not a default that is spelled out, or that a new version brought."""
        return {name: value for name, value in given.items() if not self._is_default(name, value)}

    def business_key(self, given: Mapping[str, Any]) -> str:
        """What a call with these arguments is about."""
        if self.pattern is None:
            same = {name: value for name, value in self.said(given).items() if name not in self.volatile}
            return business_key(self.name, same, None)
        return business_key(self.name, {**self.defaults, **given}, self.pattern)

    def _is_default(self, name: str, value: object) -> bool:
        if name not in self.defaults:
            return False
        default = self.defaults[name]
        return type(value) is type(default) and bool(value == default)

    def _check_names(self, known: Mapping[str, inspect.Parameter]) -> None:
        if self.provider_key is not None and self.provider_key not in known:
            raise InvalidOption(f"provider_key= names {self.provider_key!r}, which {self.name} does not take")
        open_ended = any(one.kind is one.VAR_KEYWORD for one in known.values())
        for option, names in (("its key", self.keyed), ("volatile=", self.volatile), ("exact=", self.exact)):
            for name in names:
                if name == self.provider_key or (name not in known and not open_ended):
                    raise InvalidOption(f"{option} names {name!r}, which is no argument of a call of {self.name}")
        both = ({*self.volatile} & {*self.keyed}) | ({*self.volatile} & {*self.exact})
        if both:
            raise InvalidOption(f"{min(both)!r} of {self.name} cannot be volatile and tell calls apart at once")


def tool(
    *,
    effect: EffectClass,
    name: str | None = None,
    description: str | None = None,
    key_fields: Sequence[str] = (),
    template: str | None = None,
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
    """Declare a function as a tool; see `Tool` for the options. `def` and `async def`; a `def` runs in a thread."""
    for option, names in (("key_fields", key_fields), ("volatile", volatile), ("exact", exact)):
        if isinstance(names, str):
            raise InvalidOption(f"{option}= is a list of argument names, not the text {names!r}")
    seconds = idempotent_for.total_seconds() if isinstance(idempotent_for, timedelta) else idempotent_for

    def declare(function: Callable[..., Any]) -> Tool:
        try:
            return Tool(
                name=name or function.__name__,
                function=function,
                effect=cast("Effect", effect),  # which the tool makes of it, or refuses
                description=inspect.getdoc(function) or "" if description is None else description,
                key_fields=tuple(key_fields),
                template=template,
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
