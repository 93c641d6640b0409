"""Sets a brain to work on a turn: what superseded runs did is taken back first, then it is given its context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onceward.blobs import BlobStore
from onceward.core.canonical import Json
from onceward.db.engine import Database
from onceward.errors import InDoubt, InvalidOption
from onceward.ledger import Ledger
from onceward.turns.artifacts import Artifacts
from onceward.turns.brain import Brain
from onceward.turns.context import Context
from onceward.turns.envelope import CallStatus
from onceward.turns.fingerprint import counts, dep_fp, input_fp
from onceward.turns.gate import TurnGate
from onceward.turns.observe import Observer
from onceward.turns.recorder import Recorder
from onceward.turns.rows import Rows, Seen
from onceward.turns.threads import in_thread
from onceward.turns.turn import Clock


class Mind:
    """One brain, with what it may reach. `told` is called with the id of a turn that has said something."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        brain: Brain,
        rows: Rows,
        *,
        observer: Observer | None,
        blobs: BlobStore | None,
        now: Clock,
        told: Callable[[str], None],
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._brain = brain
        self._rows = rows
        self._observer = observer
        self._blobs = blobs
        self._now = now
        self._told = told

    async def undo(self, seen: Seen) -> None:
        """Take back what superseded runs of the group did, as far as it can be taken back."""
        turn, toolbox = seen.turn, self._brain.toolbox
        for call in seen.to_undo:
            if toolbox is None:
                raise InvalidOption(f"the brain has no toolbox any more to take back what {call.tool} did")
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
                raise InDoubt(f"{call.tool} could not be taken back: {envelope.detail}")
            await in_thread(self._rows.undone, call, did=envelope.ok)

    def think(self, seen: Seen) -> asyncio.Task[Json]:
        """Begin to work on the turn. Whoever cancels the task is heard by the brain, if it listens."""
        turn = seen.turn
        recorder = Recorder(self._database, turn, lambda: self._told(turn.id))
        context = Context(
            turn,
            seen.messages,
            self._brain,
            self._ledger,
            gate=TurnGate(self._database, turn, recorder, self._now),
            recorder=recorder,
            observer=self._observer,
            artifacts=lambda: self._artifacts(seen),
        )
        return asyncio.create_task(self._brain.answer(context), name=f"brain of {turn.id}")

    def _artifacts(self, seen: Seen) -> Artifacts:
        turn, brain = seen.turn, self._brain
        versions = dict(brain.versions)
        if brain.toolbox is not None:
            versions.setdefault("tool_registry_version", brain.toolbox.registry_version)
        names = brain.meaningful_metadata
        metadata = [one.metadata for one in seen.messages]
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
                [one.content for one in seen.messages],
                metadata,
                meaningful_metadata=names,
            ),
            metadata_keys={key for one in metadata for key in one if counts(key, names)},
            dep_fp=dep_fp(versions),
            reuse=brain.reuse,
            blobs=self._blobs,
            now=self._now,
        )
