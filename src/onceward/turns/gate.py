"""The gate of a turn: no effect begins for a run that is superseded, and every effect that begins is on record first."""

from __future__ import annotations

from typing import cast

from sqlalchemy import text

from onceward.core.canonical import Json
from onceward.core.text import compact
from onceward.db.clock import time_text
from onceward.db.engine import Database, Transaction
from onceward.errors import Superseded
from onceward.turns import moves
from onceward.turns.call import Call
from onceward.turns.envelope import CallStatus, Envelope
from onceward.turns.recorder import Recorder
from onceward.turns.threads import in_thread
from onceward.turns.turn import Clock, Turn

_STARTED = text("""
    INSERT INTO turn_tools (turn_id, turn_group_id, epoch, tool, key, generation, arguments, effect, status,
                            created_at, updated_at)
    VALUES (:turn_id, :turn_group_id, :epoch, :tool, :key, :generation, :arguments, :effect, 'started', :now, :now)
    RETURNING seq
""")
_ENDED = text("""
    UPDATE turn_tools SET status = :status, receipt = :receipt, updated_at = :now WHERE seq = :seq
""")
# What an earlier run had begun and could not finish recording: it is known now, or nobody knows.
_FOUND = text("""
    UPDATE turn_tools SET status = :status, receipt = :receipt, updated_at = :now
    WHERE turn_group_id = :turn_group_id AND key = :key AND generation = :generation
      AND status IN ('started', 'unknown')
""")

# What the row of a call says by what its caller is told.
_STATUSES = {
    CallStatus.DONE: "done",
    CallStatus.REPLAYED: "done",
    CallStatus.UNKNOWN: "unknown",
    CallStatus.IN_PROGRESS: "unknown",
    CallStatus.REFUSED: "failed",
}


class TurnGate:
    """Between the tools of one run and their effects. Each passage is one transaction on the turn's row."""

    def __init__(self, database: Database, turn: Turn, recorder: Recorder, now: Clock) -> None:
        self._database = database
        self._turn = turn
        self._recorder = recorder
        self._now = now
        # Which row each call that was let through has; a call that is replayed has none.
        self._fired: dict[str, int] = {}

    async def fire(self, call: Call) -> None:
        """Let the effect begin, or raise `Superseded`: then nothing happened and nothing will."""
        self._fired[call.key] = await in_thread(self._fire, call)

    def _fire(self, call: Call) -> int:
        turn, now = self._turn, time_text(self._now())
        with self._database.write() as tx:
            if not moves.fire(tx, turn.id, turn.epoch, irreversible=call.irreversible, now=now):
                raise Superseded(f"the turn {turn.id} goes on without this run; {call.tool.name} was not called")
            values = {
                "turn_id": turn.id,
                "turn_group_id": turn.turn_group_id,
                "epoch": turn.epoch,
                "tool": call.tool.name,
                "key": call.key,
                "generation": call.generation,
                "arguments": compact(cast("Json", call.arguments)),
                "effect": call.effect.value,
                "now": now,
            }
            return int(tx.execute(_STARTED, values).scalar_one())

    async def done(self, call: Call, envelope: Envelope) -> None:
        """Record how the call ended, and show it in the stream. A run that is superseded shows nothing any more, but
        what its effect did stays on record.
        """
        seq = self._fired.pop(call.key, None)
        shown = compact(cast("Json", envelope.json()))

        def also(tx: Transaction) -> None:
            receipt = None if envelope.receipt is None else compact(cast("Json", envelope.receipt))
            values = {"status": _STATUSES[envelope.status], "receipt": receipt, "now": time_text(self._now())}
            if seq is not None:
                tx.execute(_ENDED, {**values, "seq": seq})
            elif envelope.status in {CallStatus.REPLAYED, CallStatus.UNKNOWN}:
                same = {"turn_group_id": call.turn_group_id, "key": call.key, "generation": call.generation}
                tx.execute(_FOUND, {**values, **same})

        await self._recorder.record("tool", shown, also)
