"""The sentence about the next retry, for every state."""

from __future__ import annotations

import dataclasses

import pytest

from onceward.core.claim import SECOND, Entry, Status
from onceward.core.outcome import NOTHING, Outcome
from onceward.hub.console.claims.retry import RetrySentence, retry_sentence

NOW = 1_000 * SECOND
HELD = Entry("n:s", "k", "fp", Status.IN_PROGRESS, 3, 2, "w", "h", True, NOW + 12 * SECOND, None, 0, claimed_at=0)


def after(**changes: object) -> RetrySentence:
    return retry_sentence(dataclasses.replace(HELD, **changes), "http:user:ada", NOW)  # type: ignore[arg-type]


def test_while_it_runs_a_retry_waits() -> None:
    found = after()

    assert (found.tone, found.gets) == ("wait", "gets 409 \u201cRequest is being processed\u201d with Retry-After")
    assert found.because == "attempt 2 is still running; its lease ends in 12 s unless it is renewed"


@pytest.mark.parametrize(
    ("changes", "tone", "gets"),
    [
        ({"lease_until": NOW}, "run", "runs again, as attempt 3"),
        ({"lease_until": NOW, "repeatable": False}, "stop", "in-doubt"),
        ({"status": Status.FAILED, "completed_at": 5}, "run", "runs again, as attempt 3"),
        ({"status": Status.FAILED}, "run", "runs again, as attempt 3"),
        ({"status": Status.IN_DOUBT}, "stop", "in-doubt"),
        ({"status": Status.COMPLETED, "outcome": Outcome(code=201, body=b"x")}, "replay", "stored 201 response"),
        ({"status": Status.COMPLETED, "outcome": NOTHING}, "stop", "outcome-not-kept"),
        ({"status": Status.COMPLETED, "expires_at": NOW - 1, "refuse_until": NOW + 1}, "stop", "expired"),
    ],
)
def test_each_state_has_its_sentence(changes: dict[str, object], tone: str, gets: str) -> None:
    found = after(**changes)

    assert found.tone == tone
    assert gets in found.gets
    assert found.because


def test_a_dead_holder_ends_the_wait() -> None:
    assert retry_sentence(HELD, "charges", NOW, proved_dead=True).tone == "run"


def test_outside_http_a_caller_gets_exceptions_and_values() -> None:
    held = dataclasses.replace(HELD, status=Status.COMPLETED, outcome=Outcome(body=b"1"))

    assert retry_sentence(held, "charges", NOW).gets == "gets the recorded result, and nothing runs"
    assert retry_sentence(dataclasses.replace(HELD, status=Status.IN_DOUBT), "charges", NOW).gets == "raises InDoubt"
