"""The outcome that counts after a claim was taken over: not one's own, but that of whoever has the claim now."""

from __future__ import annotations

from onceward.core.claim import Entry, Status
from onceward.errors import StoreUnavailable
from onceward.http import problem
from onceward.http.guard import Asked, Guard
from onceward.http.problem import Answer

# How long a worker that lost its claim waits for the one who has it.
WINNER_SECONDS = 10.0


async def outcome_of_winner(guard: Guard, asked: Asked) -> Entry | Answer:
    """The settled entry to replay, or what to say when there is none."""
    try:
        entry = await _last_seen(guard, asked)
    except StoreUnavailable:
        return problem.unavailable()
    if entry is None:
        return problem.busy()
    if asked.is_changed_from(entry.fingerprint):
        return problem.principal_changed()
    if not asked.is_served_by(entry.fingerprint):
        return problem.mismatch()
    match entry.status:
        case Status.COMPLETED:
            return entry
        case Status.IN_DOUBT:
            return problem.in_doubt()
        case Status.IN_PROGRESS | Status.FAILED:
            return problem.busy()


async def _last_seen(guard: Guard, asked: Asked) -> Entry | None:
    """What is there when whoever has the claim is through with it, or has been waited for long enough."""
    ledger = guard.ledger
    deadline = ledger.line.monotonic() + WINNER_SECONDS
    entry = await ledger.read(asked.principal.scope, asked.key)
    while entry is not None and asked.is_served_by(entry.fingerprint) and entry.status is Status.IN_PROGRESS:
        remaining = deadline - ledger.line.monotonic()
        if remaining <= 0:
            break
        seen = await ledger.wait(entry, remaining)
        entry = seen.entry
        if entry is not None and entry.status is Status.IN_PROGRESS:
            break  # abandoned by its holder, too: the client's retry takes it over
    return entry
