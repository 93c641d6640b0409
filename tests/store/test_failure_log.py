"""The reason of a failure in the log: once for each cause in ten seconds, and without secrets."""

from __future__ import annotations

import pytest

from onceward.errors import StoreMisconfigured, StoreUnavailable
from onceward.store.failure_log import CAUSES_MAX, QUIET_SECONDS, FailureLog, without_secrets


class FakeClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(fake_clock: FakeClock) -> FailureLog:
    return FailureLog(fake_clock)


def test_a_cause_is_logged_once_and_the_next_line_has_the_number_of_suppressed_ones(
    log: FailureLog, fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        log.report(StoreUnavailable(f"connection {number} to server failed: too many clients"))
    log.report(StoreUnavailable("something else"))
    fake_clock.now += QUIET_SECONDS
    log.report(StoreUnavailable("connection 77 to server failed: too many clients"))

    assert [(one.levelname, one.msg, one.cause, one.suppressed) for one in caplog.records] == [  # type: ignore[attr-defined]
        ("WARNING", "store_unavailable", "StoreUnavailable: connection 0 to server failed: too many clients", 0),
        ("WARNING", "store_unavailable", "StoreUnavailable: something else", 0),
        ("WARNING", "store_unavailable", "StoreUnavailable: connection 77 to server failed: too many clients", 4),
    ]
    assert caplog.records[-1].getMessage() == (
        "store_unavailable cause='StoreUnavailable: connection 77 to server failed: too many clients'"
        " code=store-unavailable retryable=True suppressed=4"
    )


def test_a_misconfiguration_has_its_own_event_name(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    log.report(StoreMisconfigured("no such bucket"))

    (line,) = caplog.records
    assert (line.msg, line.cause) == ("store_misconfigured", "StoreMisconfigured: no such bucket")  # type: ignore[attr-defined]
    assert (line.code, line.retryable) == ("store-misconfigured", False)  # type: ignore[attr-defined]


def test_causes_that_never_repeat_do_not_use_unlimited_memory(log: FailureLog) -> None:
    for number in range(3 * CAUSES_MAX):
        log.report(StoreUnavailable("x" * number))

    assert len(log._causes) == CAUSES_MAX


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:hush@h/d refused", "postgresql://ada:***@h/d refused"),
        ("connect to redis://:hush@h:6379", "connect to redis://:***@h:6379"),
        ("host=h password=hush dbname=d", "host=h password=*** dbname=d"),
        ('{"secret": "hush"}', '{"secret": ***'),
        ("X-Amz-Signature=hush&x=1", "X-Amz-Signature=***&x=1"),
        ('password authentication failed for user "ada"', 'password authentication failed for user "ada"'),
    ],
)
def test_secrets_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
