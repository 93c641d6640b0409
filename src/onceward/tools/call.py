"""One planned call of a tool: its key, its scope and its fingerprint.

Planning is pure. It refuses a call that cannot run, so that a missing argument never stops an effect halfway.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from onceward.core.claim import Entry
from onceward.core.fingerprint import Digest, fingerprint
from onceward.ledger.internals import key_for
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import Effect
from onceward.tools import keys
from onceward.tools.envelope import Envelope
from onceward.tools.fingerprint import call_fp
from onceward.tools.observer import Observer
from onceward.tools.tool import Once, Tool

# Runs the effect of one call in place of the tool's function. It gets the provider's key, if the tool takes one.
EffectFunction: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]

# The key under which the config of a framework's run has the caller of a turn. The underscores keep it out of LangGraph's
# checkpoints.
CALLER_KEY = "__onceward_caller"


@dataclass(frozen=True, slots=True)
class Call:
    """A planned call of a tool.

    `arguments` are the caller's. `generation` counts how often the call was undone. `provider_key` is the key for the
    provider in this attempt; `of_attempt` sets it before a function or a hook is called. `effect_fn`, if there is one, runs
    the effect in place of the tool's function.
    """

    tool: Tool
    arguments: dict[str, Any]
    key: str
    fingerprint: Digest
    principal: str
    tenant_id: str
    turn_group_id: str
    retain_seconds: float
    generation: int = 0
    provider_key: str = ""
    effect_fn: EffectFunction | None = None

    @property
    def effect(self) -> Effect:
        return self.tool.effect

    @property
    def irreversible(self) -> bool:
        return self.tool.effect is Effect.IRREVERSIBLE

    @property
    def ever(self) -> bool:
        """True if the call happens once, whatever its group."""
        return self.tool.once is Once.EVER

    @property
    def scope(self) -> str:
        """The ledger scope of the call. Every generation has its own scope, with the same key."""
        return self._scope(keys.EVER if self.ever else keys.TOOL)

    @property
    def undo_scope(self) -> str:
        """The ledger scope in which the undo of this generation is recorded."""
        return self._scope("ever_undo" if self.ever else "undo")

    def _scope(self, layer: str) -> str:
        numbered = f"{layer}.{self.generation}" if self.generation else layer
        return keys.scope_of(numbered, self.principal, self.tenant_id)

    def of_attempt(self, ledger: Ledger, entry: Entry, attempt: int) -> Call:
        """Return the call with the key for its provider: `key_for`, with the name of the tool as the provider.

        The fingerprint is the step: a call that did nothing may be repeated with other arguments.

        Args:
            ledger: The ledger that records the call.
            entry: The entry of the call.
            attempt: The number of the attempt, from 1.
        """
        return replace(
            self, provider_key=key_for(ledger, entry, self.effect, attempt, self.tool.name, self.fingerprint)
        )


class Gate(Protocol):
    """The check between a call and its effect, made by the turn that the call belongs to."""

    async def fire(self, call: Call) -> None:
        """Allow an effect that is about to begin. If this raises, nothing runs.

        Args:
            call: The planned call.

        Raises:
            Superseded: If the turn was superseded, or its attempt is over.
        """

    async def done(self, call: Call, envelope: Envelope) -> None:
        """Receive the result of a call that is not pure. A replayed call is reported without a `fire`.

        Args:
            call: The call.
            envelope: Its result.
        """


@dataclass(frozen=True, slots=True)
class TurnCaller:
    """The caller of tools that a framework runs inside a turn.

    Attributes:
        ledger: The ledger that records the calls.
        gate: Asked before each effect, and notified of the result.
        turn_group_id: The group of calls that share their effects.
        principal: The principal of the turn.
        tenant_id: The tenant of the turn.
        tools: The names of the tools whose effects the turn can undo.
        observer: Notified of each check of a key.
    """

    ledger: Ledger
    gate: Gate
    turn_group_id: str
    principal: str
    tenant_id: str
    tools: frozenset[str] = frozenset()
    observer: Observer | None = None


class NullGate:
    """A gate that allows every call, for calls outside of a turn."""

    async def fire(self, call: Call) -> None:
        """Allow the effect.

        Args:
            call: The planned call.
        """

    async def done(self, call: Call, envelope: Envelope) -> None:
        """Ignore the result.

        Args:
            call: The call.
            envelope: Its result.
        """


def plan(
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    principal: str,
    tenant_id: object,
    turn_group_id: object = None,
    idempotency_key: str | None = None,
    retain_seconds: float | None = None,
) -> Call:
    """Plan a call. Raises `InvalidInput` or `InvalidKey`.

    An idempotency key identifies the call without a business key and a group; the fingerprint then covers all arguments
    that are not volatile. A tool with once="ever" has one key for each business key: its calls need no group, and an
    idempotency key does not allow a second effect.
    """
    given = tool.normalized(arguments)
    explicit = tool.without_defaults(given)
    compared: Mapping[str, object]
    ever = tool.once is Once.EVER
    if idempotency_key is not None and not ever:
        group = ""
        key = keys.given_key(tool.name, idempotency_key)
        compared = {name: value for name, value in explicit.items() if name not in tool.volatile}
    else:
        group = "" if ever and turn_group_id is None else keys.group_text(turn_group_id)
        business_key = tool.business_key(given)
        key = keys.ever_key(tool.name, business_key) if ever else keys.tool_key(tool.name, business_key, group)
        if tool.pattern is None:
            compared = {name: value for name, value in explicit.items() if name not in tool.volatile}
        else:
            compared = call_fp(explicit, left_out={*tool.volatile, *tool.keyed_whole}, exact=tool.exact)
    return Call(
        tool=tool,
        arguments=given,
        key=key,
        fingerprint=Digest(fingerprint(compared)),
        principal=keys.id_text("principal", principal),
        tenant_id=keys.id_text("tenant_id", tenant_id),
        turn_group_id=group,
        retain_seconds=tool.idempotent_for if retain_seconds is None else retain_seconds,
    )
