"""What a brain is given: the turn, its messages, and the ways to act that are safe to repeat."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onceward.core.text import compact
from onceward.errors import InvalidOption, Superseded
from onceward.ledger import Ledger
from onceward.turns.artifacts import Artifacts
from onceward.turns.brain import Brain
from onceward.turns.envelope import Envelope
from onceward.turns.gate import TurnGate
from onceward.turns.observe import Observer
from onceward.turns.recorder import Recorder
from onceward.turns.turn import Message, Turn


class Context:
    """Belongs to one run of one turn. When the run is superseded, everything here raises `errors.Superseded`."""

    def __init__(
        self,
        turn: Turn,
        messages: Sequence[Message],
        brain: Brain,
        ledger: Ledger,
        *,
        gate: TurnGate,
        recorder: Recorder,
        artifacts: Callable[[], Artifacts],
        observer: Observer | None = None,
    ) -> None:
        self.turn = turn
        self.messages = tuple(messages)
        self._brain = brain
        self._ledger = ledger
        self._gate = gate
        self._recorder = recorder
        self._observer = observer
        self._make_artifacts = artifacts

    @functools.cached_property
    def artifacts(self) -> Artifacts:
        """What was computed in this session; `artifacts.explain()` says what was used again, and why."""
        return self._make_artifacts()

    @property
    def text(self) -> str:
        """What the user said, all of it, a line for each message."""
        return "\n".join(message.content for message in self.messages)

    @property
    def attempt(self) -> int:
        """1 for the first run of the turn; more after a crash, an exception or an absorbed message."""
        return self.turn.attempts

    @property
    def versions(self) -> Mapping[str, object]:
        """The versions that the brain depends on."""
        return self._brain.versions

    async def call(self, tool: str, /, **arguments: Any) -> Envelope:
        """Call a tool. The same call of the same group gets the same result, however often the turn begins anew."""
        if self._brain.toolbox is None:
            raise InvalidOption("this brain has no toolbox to call tools from")
        return await self._brain.toolbox.call(
            tool,
            arguments,
            ledger=self._ledger,
            gate=self._gate,
            tenant_id=self.turn.tenant_id,
            principal=self.turn.principal,
            turn_group_id=self.turn.turn_group_id,
            observer=self._observer,
        )

    async def say(self, delta: str) -> None:
        """Say a part of the answer to whoever follows the stream. It is recorded before it is sent."""
        if not await self._recorder.record("delta", compact({"text": delta})):
            raise Superseded(f"the turn {self.turn.id} goes on without this run")

    async def artifact(
        self, name: str, compute: Callable[[], Any], *, revalidate: Callable[[Any], Any] | None = None
    ) -> Any:
        """What `compute` gives, or what it gave before where the brain's `reuse` declares that it may be used again."""
        return await self.artifacts.get(name, compute, revalidate=revalidate)
