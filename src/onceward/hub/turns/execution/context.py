"""Context of a brain: the turn, its messages, and operations that are safe to repeat."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onceward.core.json_text import compact
from onceward.errors import InvalidOption, Superseded
from onceward.hub.turns.artifacts.artifacts import Artifacts, Explanation
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.gate import TurnGate
from onceward.hub.turns.execution.recorder import Recorder
from onceward.hub.turns.model.turn import Message, Turn
from onceward.ledger.ledger import Ledger
from onceward.tools.call import TurnCaller
from onceward.tools.envelope import Envelope
from onceward.tools.observer import Observer


class Context:
    """Context of one run of one turn, which the engine passes to the brain.

    After the run was superseded, `say` and calls of tools that would have an effect raise `errors.Superseded`.

    Attributes:
        turn: The turn.
        messages: The messages of the turn, in the order of arrival.
    """

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
        """The artifacts of this session; `artifacts.explain()` says which were reused, and why."""
        return self._make_artifacts()

    @property
    def explanations(self) -> list[Explanation]:
        """The explanations of all artifacts that this run has asked for."""
        return self.artifacts.explain() if "artifacts" in self.__dict__ else []

    @property
    def text(self) -> str:
        """The contents of all messages, joined by newlines."""
        return "\n".join(message.content for message in self.messages)

    @property
    def attempt(self) -> int:
        """The number of the attempt: 1, or more after a crash, an exception or an absorbed message."""
        return self.turn.attempts

    @property
    def versions(self) -> Mapping[str, object]:
        """The versions that the brain declared."""
        return self._brain.versions

    @property
    def caller(self) -> TurnCaller:
        """The caller for tools that a framework runs. Their calls pass the gate of this run, as with `call`."""
        toolbox = self._brain.toolbox
        return TurnCaller(
            ledger=self._ledger,
            gate=self._gate,
            turn_group_id=self.turn.turn_group_id,
            principal=self.turn.principal,
            tenant_id=self.turn.tenant_id,
            tools=frozenset() if toolbox is None else frozenset(one.name for one in toolbox),
            observer=self._observer,
        )

    async def call(self, tool: str, /, **arguments: Any) -> Envelope:
        """Call a tool. The same call of the same turn group gets the same result, however often the turn is restarted.

        Args:
            tool: The name of the tool.
            arguments: The tool's arguments.

        Returns:
            The envelope. A failure of the tool is in the envelope and is not raised.

        Raises:
            errors.Superseded: The run was superseded, and nothing was called.
            errors.InvalidOption: The brain has no toolbox.
            errors.StoreUnavailable: The ledger or the database did not respond.
        """
        if self._brain.toolbox is None:
            raise InvalidOption("this brain has no toolbox; pass one: Brain(…, toolbox=Toolbox([…]))")
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
        """Append a part of the response to the turn's stream. It is stored before clients get it.

        Args:
            delta: The text to append.

        Raises:
            errors.Superseded: The run was superseded, and nothing was appended.
            errors.StoreUnavailable: The database did not respond.
        """
        if not await self._recorder.record("delta", compact({"text": delta})):
            raise Superseded(f"this run of the turn {self.turn.id} was superseded")

    async def artifact(
        self, name: str, compute: Callable[[], Any], *, revalidate: Callable[[Any], Any] | None = None
    ) -> Any:
        """Return an artifact: a stored value if the brain's `reuse` allows it, else the result of `compute`.

        Args:
            name: The artifact's name.
            compute: Computes the value; `def` (it runs in a thread) or `async def`.
            revalidate: Called with a stored value whose `reuse` has `requires_revalidate`; returns whether it is still
                valid. Takes precedence over the `revalidate` of the declaration.

        Returns:
            The value.

        Raises:
            errors.InvalidOption: The brain's `reuse` is not valid.
            errors.StoreUnavailable: The database did not respond.
            Exception: Any exception of `compute` or `revalidate`.
        """
        return await self.artifacts.get(name, compute, revalidate=revalidate)
