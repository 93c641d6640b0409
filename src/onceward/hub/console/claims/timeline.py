"""The timeline of one operation, from what its entry records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Boot id, pid namespace, pid and start time.
_HOLDER_PARTS = 4

StepMark = Literal["done", "now", "open", "bad"]


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A step: when, what, and a sentence of detail. A step without a time has not happened, or its time is not recorded."""

    at: str | None
    title: str
    detail: str = ""
    mark: StepMark = "done"


def timeline(claim: Mapping[str, Any], holder: str = "") -> list[TimelineStep]:
    """Return the steps of an operation in their order.

    Args:
        claim: The operation as the API shows it.
        holder: The process that has, or had, the claim.

    Returns:
        The steps.
    """
    attempt, status, by = claim["attempt"], claim["status"], _process(holder)
    who = claim["user_id"] or "an unnamed caller"
    where = f" at {claim['endpoint']}" if claim["endpoint"] else ""
    steps = [TimelineStep(claim["created_at"], "First asked for", f"by {who}{where}")]
    if attempt > 1:
        not_done = claim["not_done_count"]
        known = f"; {not_done} of the earlier ones certainly did nothing" if not_done else ""
        steps.append(TimelineStep(claim["claimed_at"], f"Claimed as attempt {attempt}", f"{by}{known}"))
    elif holder:
        steps.append(TimelineStep(claim["claimed_at"], "Claimed as attempt 1", by))
    if claim.get("recovery_point") is not None:
        steps.append(TimelineStep(None, "Recovery point recorded", "what the provider had returned by then; see below"))
    steps += _ends(claim, status)
    return steps


def _process(holder: str) -> str:
    """Return a holder for people: its process id. The other parts tell processes of several machines apart."""
    parts = holder.split("/")
    return f"by process {parts[2]}" if len(parts) == _HOLDER_PARTS else f"by {holder}"


def _ends(claim: Mapping[str, Any], status: str) -> list[TimelineStep]:
    note = claim["note"] or ""
    match status:
        case "in_progress":
            repeatable = "may be repeated" if claim["repeatable"] else "must not be repeated: it would go in doubt"
            return [
                TimelineStep(None, "Running", "the lease is renewed while it runs", "now"),
                TimelineStep(
                    claim["lease_until"], "Lease ends", f"unless it is renewed; then the effect {repeatable}", "open"
                ),
            ]
        case "in_doubt":
            return [TimelineStep(None, "In doubt", note or "its process ended without a result", "bad")]
        case "failed":
            return [
                TimelineStep(claim["completed_at"], "Failed", note or "the next request runs it again", "bad"),
                TimelineStep(claim["expires_at"], "Entry expires", "after that, the key reads as new", "open"),
            ]
        case "expired":
            return [
                TimelineStep(claim["completed_at"], "Settled", note),
                TimelineStep(claim["expires_at"], "Retention ended", "the result was dropped", "bad"),
                TimelineStep(claim["refuse_until"], "Key is free again", "until then a retry is refused", "open"),
            ]
        case _:
            steps = [TimelineStep(claim["completed_at"], "Settled", note)]
            if claim["expires_at"]:
                steps.append(TimelineStep(claim["expires_at"], "Expires", "after that, the key reads as new", "open"))
            else:
                steps.append(TimelineStep(None, "Never expires", "the effect happens once ever", "open"))
            return steps
