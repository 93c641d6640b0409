"""The ring of recent checks."""

from __future__ import annotations

from onceward.hub.console.check_ring import CheckRing


def test_the_newest_checks_of_an_operation_come_first_and_old_ones_are_dropped() -> None:
    ring = CheckRing(3)
    for status in ("one", "two", "three", "four"):
        ring.add("http:user:ada", "k", endpoint="POST /pay", user="ada", status=status, replayed=False)
    ring.add("http:user:grace", "k", endpoint="POST /pay", user="grace", status="five", replayed=True)

    assert [check.status for check in ring.of("http:user:ada", "k")] == ["four", "three"]
    assert [check.status for check in ring.of("http:user:ada", "k", limit=1)] == ["four"]
    assert ring.of("http:user:ada", "other") == []
