"""The stored record of a call that happened, and the envelopes that report it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from onceward.core.scalar import Unkeepable
from onceward.core.timestamp import to_text
from onceward.errors import (
    Busy,
    InvalidInput,
    InvalidKey,
    InvalidOption,
    KeyReused,
    NotDurable,
    NotFound,
    OncewardError,
    described,
)
from onceward.tools.call import Call
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.json_result import to_json

# The longest error text that a model gets.
_DETAIL_LENGTH_MAX = 500

_ASK_AGAIN = "Call it again with the same arguments: that finds out whether it happened, and does not repeat it."
_ASK_A_PERSON = (
    "Calling it again with the same arguments repeats nothing and returns its current status. A person who has checked"
    " whether it happened can decide it: onceward claims resolve."
)
_WAIT = "Call it again with the same arguments to get its result."
_SAME_AGAIN = "Call it again with the same arguments: that does not repeat the effect."
_CHANGE_IT = "Nothing happened. Correct the call; the detail explains what is wrong."
_TELL_OPERATOR = "Calling it again does not help. Tell the person who operates this system."
# The start of notes that the ledger adds to exceptions.
_NOTE = "onceward: "
# Errors that are raised before anything runs.
_NOTHING_RAN = (NotFound, InvalidInput, InvalidKey, InvalidOption, KeyReused, NotDurable)


def record_of(call: Call, result: object, **facts: int | bool) -> dict[str, Any]:
    """Return the value that the ledger stores for a call that happened: its result and the receipt."""
    tool = call.tool
    receipt: dict[str, Any] = {
        "tool": tool.name,
        "tool_version": tool.version,
        "key": call.key,
        "at": to_text(time.time_ns() // 1000),
    }
    if call.generation:
        receipt["generation"] = call.generation
    if tool.provider_key is not None:
        receipt["provider_key"] = call.provider_key
    try:
        shown = to_json(result)
    except Exception as error:  # noqa: BLE001  # code of the result may run here; record that the call happened
        shown = None
        receipt["result_not_kept"] = error_text(error)
    return {"result": shown, "receipt": {**receipt, **facts}}


def envelope_of(call: Call, value: Any, status: CallStatus) -> Envelope:
    """Return the envelope of a stored value, or of the bare value with which an operator resolved the claim."""
    if isinstance(value, dict) and value.keys() == {"result", "receipt"}:
        receipt = value["receipt"]
        if isinstance(receipt, dict) and receipt.get("key") == call.key:
            lost = receipt.get("result_not_kept")
            detail = f"it happened, but its result could not be stored: {lost}" if lost else ""
            at = receipt.get("at")
            return replace(status_envelope(call, status, detail), result=value["result"], receipt=receipt, first_at=at)
    try:
        result = to_json(value)
    except Unkeepable as error:
        return status_envelope(call, status, f"it happened, but its result cannot be shown: {error}")
    receipt = {"tool": call.tool.name, "key": call.key, "resolved": True}
    return replace(status_envelope(call, status, ""), result=result, receipt=receipt)


def status_envelope(
    call: Call, status: CallStatus, detail: str, *, may_retry: bool = False, code: str = ""
) -> Envelope:
    """Return an envelope without a result, with advice on how to proceed."""
    how = None
    if status is CallStatus.IN_PROGRESS:
        how = _WAIT
    elif status is CallStatus.UNKNOWN and not may_retry:
        ways = [call.tool.how_to_check, _ASK_AGAIN if call.tool.reconcile is not None else _ASK_A_PERSON]
        how = " ".join(way for way in ways if way)
    return Envelope(status, call.tool.name, call.key, may_retry=may_retry, how_to_check=how, detail=detail, code=code)


def error_envelope(name: str, error: OncewardError) -> Envelope:
    """Return an error of Onceward as an envelope, so that the model can read it.

    If the store is unavailable, the status is `unknown`: an earlier call may have happened, and even this one, if the
    store failed after the effect.
    """
    if isinstance(error, Busy):
        status, how = CallStatus.IN_PROGRESS, _SAME_AGAIN
    elif isinstance(error, _NOTHING_RAN):
        status, how = CallStatus.REFUSED, _CHANGE_IT
    else:
        status, how = CallStatus.UNKNOWN, _SAME_AGAIN if error.retryable else _TELL_OPERATOR
    notes = [note.removeprefix(_NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
    detail = "; ".join([str(error) or error.code, *notes])
    return Envelope(status, name, may_retry=error.retryable, how_to_check=how, detail=detail, code=error.code)


def error_text(error: BaseException) -> str:
    """Return the text of an exception for a model."""
    return described(error)[:_DETAIL_LENGTH_MAX]
