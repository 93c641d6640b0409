"""Brain runner: undo the effects of superseded runs, then start the brain with its context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onceward.core.canonical import Json
from onceward.errors import InDoubt, InvalidOption
from onceward.hub.blobs import BlobStore
from onceward.hub.db.engine import Database
from onceward.hub.turns.artifacts.artifacts import Artifacts
from onceward.hub.turns.artifacts.explained import store_explanations
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.context import Context
from onceward.hub.turns.execution.gate import TurnGate
from onceward.hub.turns.execution.recorder import Recorder
from onceward.hub.turns.execution.repository import LoadedTurn, TurnRepository
from onceward.hub.turns.model.turn import Clock, order_of
from onceward.ledger.ledger import Ledger
from onceward.tools.envelope import CallStatus
from onceward.tools.fingerprint import dep_fp, input_fp, is_meaningful
from onceward.tools.observer import Observer


class BrainRunner:
    """Runs one brain on turns. `notify` is called with the id of a turn whose stream has a new chunk."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        brain: Brain,
        repository: TurnRepository,
        *,
        observer: Observer | None,
        blobs: BlobStore | None,
        now: Clock,
        notify: Callable[[str], None],
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._brain = brain
        self._repository = repository
        self._observer = observer
        self._blobs = blobs
        self._now = now
        self._notify = notify

    async def undo(self, loaded: LoadedTurn) -> None:
        """Undo the compensatable effects of superseded runs of the turn's group."""
        turn, toolbox = loaded.turn, self._brain.toolbox
        for call in loaded.to_undo:
            if toolbox is None:
                raise InvalidOption(f"cannot undo {call.tool}: the brain no longer has a toolbox")
            envelope = await toolbox.undo(
                call.tool,
                call.arguments,
                ledger=self._ledger,
                generation=call.generation,
                principal=turn.principal,
                tenant_id=turn.tenant_id,
                turn_group_id=turn.turn_group_id,
            )
            if not envelope.ok and envelope.status is not CallStatus.REFUSED:
                raise InDoubt(f"{call.tool} could not be undone: {envelope.detail}")
            await self._repository.mark_undone(turn, call, did=envelope.ok)

    def start(self, loaded: LoadedTurn) -> asyncio.Task[Json]:
        """Start the brain on the turn. Cancelling the task cancels the brain, unless the brain suppresses it."""
        turn = loaded.turn
        recorder = Recorder(self._database, turn, lambda: self._notify(turn.id))
        context = Context(
            turn,
            loaded.messages,
            self._brain,
            self._ledger,
            gate=TurnGate(self._database, turn, recorder, self._now),
            recorder=recorder,
            observer=self._observer,
            artifacts=lambda: self._make_artifacts(loaded),
        )
        return asyncio.create_task(self._answer(context), name=f"brain of {turn.id}")

    async def _answer(self, context: Context) -> Json:
        try:
            response = await self._brain.answer(context)
        except Exception:
            await self._store_explanations(context)
            raise
        await self._store_explanations(context)
        return response

    async def _store_explanations(self, context: Context) -> None:
        turn, explanations = context.turn, context.explanations
        if explanations:
            await self._database.writer.run(lambda tx: store_explanations(tx, turn, explanations), order_of(turn))

    def _make_artifacts(self, loaded: LoadedTurn) -> Artifacts:
        turn, brain = loaded.turn, self._brain
        versions = dict(brain.versions)
        if brain.toolbox is not None:
            versions.setdefault("tool_registry_version", brain.toolbox.registry_version)
        names = brain.meaningful_metadata
        metadata = [one.metadata for one in loaded.messages]
        return Artifacts(
            self._database,
            principal=turn.principal,
            tenant_id=turn.tenant_id,
            session_key=turn.session_key,
            input_fp=input_fp(
                turn.tenant_id,
                turn.agent_id,
                turn.session_key,
                turn.channel,
                [one.content for one in loaded.messages],
                metadata,
                meaningful_metadata=names,
            ),
            metadata_keys={key for one in metadata for key in one if is_meaningful(key, names)},
            dep_fp=dep_fp(versions),
            reuse=brain.reuse,
            blobs=self._blobs,
            now=self._now,
        )
