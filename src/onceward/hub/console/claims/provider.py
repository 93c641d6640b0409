"""Ask the provider: run the reconcile hook of a tool whose call is in doubt. The tool itself never runs.

The hub knows the hooks of its brain's tools. The arguments of the call are in the turn that made it.
"""

from __future__ import annotations

from dataclasses import dataclass

from onceward.errors import NotFound
from onceward.hub.console.console import Console
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.model.history import calls_with_key
from onceward.hub.turns.model.turn import ToolCall, Turn, find_turn
from onceward.tools.envelope import CallStatus
from onceward.tools.tool import Tool

_GROUP = ":turn_group:"
_TOOLS = ("tool", "ever")


@dataclass(frozen=True, slots=True)
class ProviderVerdict:
    """The answer of a reconcile hook.

    Attributes:
        outcome: `committed`, `not_committed` or `open`.
        detail: The sentence of the hook or the tool about it.
    """

    outcome: str
    detail: str


def reconciled_tool(console: Console, scope: str, key: str) -> Tool | None:
    """Return the tool of an operation if it has a reconcile hook that the hub can run."""
    layer = scope.partition(":")[0].partition(".")[0]
    if console.hub is None or layer not in _TOOLS or _GROUP not in key:
        return None
    toolbox = console.hub.turns.brain.toolbox
    # A tool's name may contain a colon.
    tools = () if toolbox is None else toolbox
    return next((one for one in tools if key.startswith(f"{one.name}:") and one.reconcile is not None), None)


async def ask_provider(console: Console, scope: str, key: str) -> ProviderVerdict:
    """Run the reconcile hook for a call in doubt. A final answer is recorded by the ledger.

    Args:
        console: The console of a hub.
        scope: The scope of the operation.
        key: Its key.

    Returns:
        The answer.

    Raises:
        NotFound: The operation has no reconcile hook, or no turn has recorded its arguments.
        StoreUnavailable: The ledger or the database did not respond.
    """
    tool = reconciled_tool(console, scope, key)
    hub = console.hub
    if tool is None or hub is None or hub.turns.brain.toolbox is None:
        raise NotFound("this operation has no reconcile hook that the hub can run; decide it yourself")

    def read() -> tuple[ToolCall, Turn] | None:
        with hub.database.read() as tx:
            for call in calls_with_key(tx, key.rpartition(_GROUP)[2], key):
                turn = find_turn(tx, call.turn_id)
                if turn is not None:
                    return call, turn
        return None

    found = await in_thread(read)
    if found is None:
        raise NotFound("no turn has recorded the arguments of this call; decide it yourself")
    call, turn = found
    envelope = await hub.turns.brain.toolbox.check(
        tool.name,
        call.arguments,
        ledger=console.ledger,
        turn_group_id=turn.turn_group_id,
        principal=turn.principal,
        tenant_id=turn.tenant_id,
    )
    if envelope.status in (CallStatus.DONE, CallStatus.REPLAYED):
        return ProviderVerdict("committed", envelope.detail or "")
    outcome = "not_committed" if envelope.status is CallStatus.REFUSED else "open"
    return ProviderVerdict(outcome, envelope.detail or "")
