"""What is kept of a call that happened, and the envelopes that tell of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onceward.core.scalar import Unkeepable
from onceward.db.clock import now_text
from onceward.errors import described
from onceward.turns.call import Call
from onceward.turns.envelope import CallStatus, Envelope
from onceward.turns.plain import plain

# Of an exception that tells its life.
_DETAIL_LENGTH_MAX = 500

_ASK_AGAIN = "Call it again with the same arguments: that finds out whether it happened, and does not repeat it."
_ASK_A_PERSON = (
    "Calling it again with the same arguments repeats nothing and tells how it stands by then. A person who has looked"
    " can decide it: onceward claims resolve."
)
_WAIT = "Call it again with the same arguments to get its result."


def kept(call: Call, result: object, **facts: int | bool) -> dict[str, Any]:
    """What the ledger keeps of a call that happened: its result and the receipt, the same for everyone who asks."""
    tool = call.tool
    receipt: dict[str, Any] = {"tool": tool.name, "tool_version": tool.version, "key": call.key, "at": now_text()}
    if call.generation:
        receipt["generation"] = call.generation
    if tool.provider_key is not None:
        receipt["provider_key"] = call.provider_key
    try:
        shown = plain(result)
    except Exception as error:  # noqa: BLE001  # the result's own code may run here; that it happened is kept
        shown = None
        receipt["result_not_kept"] = words(error)
    return {"result": shown, "receipt": {**receipt, **facts}}


def opened(call: Call, value: Any, status: CallStatus) -> Envelope:
    """The envelope of what the ledger kept; also of a bare value that somebody gave who resolved it by hand."""
    if isinstance(value, dict) and value.keys() == {"result", "receipt"}:
        receipt = value["receipt"]
        if isinstance(receipt, dict) and receipt.get("key") == call.key:
            lost = receipt.get("result_not_kept")
            detail = f"it happened; its result could not be kept: {lost}" if lost else ""
            at = receipt.get("at")
            return replace(told(call, status, detail), result=value["result"], receipt=receipt, first_at=at)
    try:
        result = plain(value)
    except Unkeepable as error:
        return told(call, status, f"it happened; its result cannot be shown: {error}")
    receipt = {"tool": call.tool.name, "key": call.key, "resolved": True}
    return replace(told(call, status, ""), result=result, receipt=receipt)


def told(call: Call, status: CallStatus, detail: str, *, may_retry: bool = False, code: str = "") -> Envelope:
    """An envelope without a result, with what to do about it."""
    how = None
    if status is CallStatus.IN_PROGRESS:
        how = _WAIT
    elif status is CallStatus.UNKNOWN and not may_retry:
        ways = [call.tool.how_to_check, _ASK_AGAIN if call.tool.reconcile is not None else _ASK_A_PERSON]
        how = " ".join(way for way in ways if way)
    return Envelope(status, call.tool.name, call.key, may_retry=may_retry, how_to_check=how, detail=detail, code=code)


def words(error: BaseException) -> str:
    """What a model is told of an exception."""
    return described(error)[:_DETAIL_LENGTH_MAX]
