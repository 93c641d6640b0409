"""Turns: the newest ones, and one turn with its conversation, the turns that replaced it, and its tool calls."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from onceward.core.claim import Ref, wire_status
from onceward.errors import NotFound
from onceward.hub.claims.claims import show_claim
from onceward.hub.console.rendering import url
from onceward.hub.console.visit import Visit
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.artifacts.explained import StoredExplanation, explanations_of
from onceward.hub.turns.model.history import newest_turns, turns_of_group
from onceward.hub.turns.model.turn import UNFINISHED, Message, State, ToolCall, Turn, find_turn, messages_of, tools_of
from onceward.ledger.internals import dispatcher_of
from onceward.tools.keys import BEAT, TOOL, beat_key, scope_of

_LIMIT = 50
# Calls whose result is read from the ledger; a page has a link to each of the others.
_RESULTS_READ = 20


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn of the list, with its messages."""

    turn: Turn
    messages: list[Message]

    @property
    def first_message(self) -> str:
        return self.messages[0].content if self.messages else ""


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call, the address of its operation, and its recorded result, if there is one."""

    call: ToolCall
    operation: str
    recorded: Any = None


@dataclass(frozen=True, slots=True)
class BeatView:
    """The beat of a turn in the ledger. `status` is empty if the ledger does not have it any more."""

    scope: str
    key: str
    status: str


async def show(visit: Visit) -> Response:
    """Show the newest turns: all for an admin, and otherwise those of the visitor's own principal."""
    hub = visit.hub
    principal = None if _sees_all(visit) else visit.visitor.principal.name

    def read() -> tuple[list[TurnRow], str | None]:
        with hub.database.read() as tx:
            page = newest_turns(tx, _LIMIT, visit.query("after"), principal)
            return [TurnRow(one, messages_of(tx, one)) for one in page.items], page.next_after

    rows, after = await in_thread(read)
    return await visit.page(
        "turns.html", rows=rows, after=after, principal=principal, is_later=bool(visit.query("after"))
    )


async def show_one(visit: Visit) -> Response:
    """Show one turn."""
    hub, turn_id = visit.hub, visit.request.path_params["turn_id"]

    def read() -> tuple[Turn, list[Message], list[ToolCall], list[Turn], list[StoredExplanation]]:
        with hub.database.read() as tx:
            turn = find_turn(tx, turn_id)
            if turn is None or (turn.principal != visit.visitor.principal.name and not _sees_all(visit)):
                raise NotFound(f"turn {turn_id!r} does not exist")
            group_turns, artifacts = turns_of_group(tx, turn), explanations_of(tx, turn)
            return turn, messages_of(tx, turn), tools_of(tx, turn), group_turns, artifacts

    turn, messages, calls, group_turns, artifacts = await in_thread(read)
    last = group_turns[-1]
    return await visit.page(
        "turn.html",
        turn=turn,
        messages=messages,
        calls=[await _call_view(visit, turn, one, is_read=number < _RESULTS_READ) for number, one in enumerate(calls)],
        group_turns=group_turns,
        artifacts=artifacts,
        beat=await _beat_view(visit, turn, messages),
        answered=last if turn.state is State.SUPERSEDED else None,
        is_unfinished=turn.state in UNFINISHED,
        beats=url("operations", q=f"scope:{scope_of(BEAT, turn.principal, turn.tenant_id)}"),
    )


async def _beat_view(visit: Visit, turn: Turn, messages: list[Message]) -> BeatView | None:
    """Return the beat of the turn's messages; None if they moved to another turn."""
    if not messages:
        return None
    scope = scope_of(BEAT, turn.principal, turn.tenant_id)
    key = beat_key(turn.tenant_id, turn.session_key, [one.message_id for one in messages])
    ledger = visit.console.ledger
    reading = await dispatcher_of(ledger).read([Ref(f"{ledger.namespace}:{scope}", key)])
    entry, now = reading.entries[0], reading.now
    return BeatView(scope, key, "" if entry is None or entry.absent(now) else wire_status(entry, now))


async def _call_view(visit: Visit, turn: Turn, call: ToolCall, *, is_read: bool) -> CallView:
    layer = f"{TOOL}.{call.generation}" if call.generation else TOOL
    scope = scope_of(layer, turn.principal, turn.tenant_id)
    recorded = None
    if is_read:
        with contextlib.suppress(NotFound):
            claim = await show_claim(visit.console.ledger, visit.console.codec, scope, call.key)
            recorded = (claim["outcome"] or {}).get("value")
    return CallView(call, url("operation", scope=scope, key=call.key), recorded)


def _sees_all(visit: Visit) -> bool:
    """Return whether the visitor may see the turns of all principals. The API shows everybody their own."""
    return visit.visitor.may("", "admin")
