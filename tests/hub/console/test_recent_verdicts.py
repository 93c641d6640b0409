"""The last verdicts of providers."""

from __future__ import annotations

from onceward.hub.console.recent_verdicts import RecentVerdicts


def test_the_last_verdict_counts_and_old_operations_are_forgotten() -> None:
    verdicts = RecentVerdicts(2)
    for outcome in ("open", "committed"):
        verdicts.add("charges", "a", outcome, "the bank says so")
    verdicts.add("charges", "b", "open", "")
    found = verdicts.of("charges", "a")
    verdicts.add("charges", "c", "open", "")

    assert found is not None
    assert (found.outcome, found.detail) == ("committed", "the bank says so")
    assert verdicts.of("charges", "a") is None
