"""Epoch gate of a turn: a superseded run cannot start an effect, and every effect is recorded before it starts."""

from __future__ import annotations

from typing import cast

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.errors import Superseded
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import time_text
from onceward.hub.turns.execution.recorder import Recorder
from onceward.hub.turns.model import transitions
from onceward.hub.turns.model.turn import Clock, Turn, order_of
from onceward.tools.call import Call
from onceward.tools.envelope import CallStatus, Envelope

_STARTED = RawStatement("""
    INSERT INTO turn_tools (turn_id, turn_group_id, epoch, tool, key, generation, arguments, effect, status,
                            created_at, updated_at)
    VALUES (:turn_id, :turn_group_id, :epoch, :tool, :key, :generation, :arguments, :effect, 'started', :now, :now)
    RETURNING seq
""")
_ENDED = RawStatement("""
    UPDATE turn_tools SET status = :status, receipt = :receipt, updated_at = :now WHERE seq = :seq
""")
# Calls that an earlier run started and did not finish recording. Their result is known now, or stays unknown.
_FOUND = RawStatement("""
    UPDATE turn_tools SET status = :status, receipt = :receipt, updated_at = :now
    WHERE turn_group_id = :turn_group_id AND key = :key AND generation = :generation
      AND status IN ('started', 'unknown')
""")

# The status in the row of a call, by the status in its envelope.
_STATUSES = {
    CallStatus.DONE: "done",
    CallStatus.REPLAYED: "done",
    CallStatus.UNKNOWN: "unknown",
    CallStatus.IN_PROGRESS: "unknown",
    CallStatus.REFUSED: "failed",
}


class TurnGate:
    """Gate between the tools of one run and their effects. Passing it is one transaction on the turn's row."""

    def __init__(self, database: Database, turn: Turn, recorder: Recorder, now: Clock) -> None:
        self._database = database
        self._turn = turn
        self._recorder = recorder
        self._now = now
        # The row of each call that passed the gate. A replayed call has none.
        self._fired: dict[str, int] = {}

    async def fire(self, call: Call) -> None:
        """Let the effect start, or raise `Superseded`: then nothing has happened, and nothing will."""
        writer = self._database.writer
        self._fired[call.key] = await writer.run(lambda tx: self._fire(tx, call), order_of(self._turn))

    def _fire(self, tx: Transaction, call: Call) -> int:
        turn, now = self._turn, time_text(self._now())
        if not transitions.fire(tx, turn.id, turn.epoch, irreversible=call.irreversible, now=now):
            raise Superseded(f"this run of the turn {turn.id} was superseded; {call.tool.name} was not called")
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
        return int(_STARTED.rows(tx, values)[0][0])

    async def done(self, call: Call, envelope: Envelope) -> None:
        """Record the result of a call, and append it to the stream.

        A superseded run no longer appends to the stream, but the result of its effect is still recorded.
        """
        seq = self._fired.pop(call.key, None)
        shown = compact(cast("Json", envelope.json()))

        def also(tx: Transaction) -> None:
            receipt = None if envelope.receipt is None else compact(cast("Json", envelope.receipt))
            values = {"status": _STATUSES[envelope.status], "receipt": receipt, "now": time_text(self._now())}
            if seq is not None:
                _ENDED.count(tx, {**values, "seq": seq})
            elif envelope.status in {CallStatus.REPLAYED, CallStatus.UNKNOWN}:
                same = {"turn_group_id": call.turn_group_id, "key": call.key, "generation": call.generation}
                _FOUND.count(tx, {**values, **same})

        await self._recorder.record("tool", shown, also)
