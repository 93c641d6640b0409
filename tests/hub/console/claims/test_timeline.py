"""The timeline of an operation."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.hub.console.claims.timeline import timeline

CLAIM: dict[str, Any] = {
    "status": "in_progress", "attempt": 2, "created_at": "t0", "claimed_at": "t1", "lease_until": "t2",
    "completed_at": None, "expires_at": None, "refuse_until": None, "not_done_count": 1, "repeatable": False,
    "user_id": "ada", "endpoint": "POST /pay", "note": None, "recovery_point": {"intent": "pi_1"},
}  # fmt: skip


def test_a_running_operation_shows_who_claimed_it_and_when_its_lease_ends() -> None:
    steps = timeline(CLAIM, "process 17")

    assert [step.title for step in steps] == [
        "First asked for", "Claimed as attempt 2", "Recovery point recorded", "Running", "Lease ends",
    ]  # fmt: skip
    assert steps[0].detail == "by ada at POST /pay"
    assert "1 of the earlier ones certainly did nothing" in steps[1].detail
    assert steps[-1].at == "t2"


@pytest.mark.parametrize(
    ("status", "last"),
    [
        ("in_doubt", "In doubt"),
        ("failed", "Entry expires"),
        ("expired", "Key is free again"),
        ("completed", "Never expires"),
    ],
)
def test_each_status_has_its_end(status: str, last: str) -> None:
    assert timeline({**CLAIM, "status": status, "recovery_point": None})[-1].title == last


def test_a_settled_operation_expires() -> None:
    steps = timeline({**CLAIM, "status": "completed", "completed_at": "t3", "expires_at": "t4"})

    assert [(step.title, step.at) for step in steps[-2:]] == [("Settled", "t3"), ("Expires", "t4")]
