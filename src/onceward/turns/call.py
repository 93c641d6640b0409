"""One call of a tool, planned: its key, its scope, and what says that it is the same call again.

Planning is pure and refuses what cannot be run, so that nothing is half done for a missing argument.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from onceward.core.fingerprint import Digest, fingerprint
from onceward.terms import Effect
from onceward.turns import keys
from onceward.turns.envelope import Envelope
from onceward.turns.fingerprint import call_fp
from onceward.turns.tool import Tool

# What providers take as an idempotency key.
_PROVIDER_KEY_LENGTH_MAX = 255


@dataclass(frozen=True, slots=True)
class Call:
    """`generation` counts how often what was done under this key has been taken back again.

    `arguments` are those of the caller. `provider_key` is what the provider gets of this attempt; it is set where
    something is run or asked.
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

    @property
    def effect(self) -> Effect:
        return self.tool.effect

    @property
    def irreversible(self) -> bool:
        return self.tool.effect is Effect.IRREVERSIBLE

    @property
    def scope(self) -> str:
        """The ledger scope of the call. Every generation has its own, under the same key."""
        return self._scope(keys.TOOL)

    @property
    def undo_scope(self) -> str:
        """Where it is recorded that this generation was taken back."""
        return self._scope("undo")

    def _scope(self, layer: str) -> str:
        numbered = f"{layer}.{self.generation}" if self.generation else layer
        return keys.scope_of(numbered, self.principal, self.tenant_id)

    def of_attempt(self, namespace: str, attempt: int) -> Call:
        """The call with the key that its provider gets.

        It is our key, and behind it what tells scopes and arguments apart: others may have a turn group of the same
        name, and a call that did nothing may be corrected. What was undone must not be answered with its old result,
        so that a compensatable tool has a key for each attempt.
        """
        mark = f"{namespace}:{self.scope}\0{self.fingerprint}"
        if self.effect is Effect.COMPENSATABLE:
            mark += f"\0{attempt}"
        digest = hashlib.sha256(mark.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        text = f"{self.key}:{digest}"
        if len(text) > _PROVIDER_KEY_LENGTH_MAX or not text.isascii():
            text = f"{self.tool.name}:{hashlib.sha256(text.encode()).hexdigest()}"
        return replace(self, provider_key=text)


class Gate(Protocol):
    """What stands between a call and its effect: the turn that makes it."""

    async def fire(self, call: Call) -> None:
        """The effect is about to begin. Raises `errors.Superseded` when it must not; whatever it raises, nothing ran."""

    async def done(self, call: Call, envelope: Envelope) -> None:
        """What became of a call that is not pure: also of one that was replayed, and then nothing was fired."""


class NullGate:
    """Lets everything pass: for calls that belong to no turn."""

    async def fire(self, call: Call) -> None: ...

    async def done(self, call: Call, envelope: Envelope) -> None: ...


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
    """The call that these arguments make; `InvalidInput` or `InvalidKey` when they make none.

    An idempotency key is the whole key, and then all arguments that are not volatile make the fingerprint.
    """
    given = tool.given(arguments)
    said = tool.said(given)
    same: Mapping[str, object]
    if idempotency_key is not None:
        group = ""
        key = keys.given_key(tool.name, idempotency_key)
        same = {name: value for name, value in said.items() if name not in tool.volatile}
    else:
        group = keys.group_text(turn_group_id)
        key = keys.tool_key(tool.name, tool.business_key(given), group)
        if tool.pattern is None:
            same = {name: value for name, value in said.items() if name not in tool.volatile}
        else:
            same = call_fp(said, left_out={*tool.volatile, *tool.keyed_whole}, exact=tool.exact)
    return Call(
        tool=tool,
        arguments=given,
        key=key,
        fingerprint=Digest(fingerprint(same)),
        principal=keys.id_text("principal", principal),
        tenant_id=keys.id_text("tenant_id", tenant_id),
        turn_group_id=group,
        retain_seconds=tool.idempotent_for if retain_seconds is None else retain_seconds,
    )
