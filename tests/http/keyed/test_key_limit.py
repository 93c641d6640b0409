"""The limit of new keys per principal and minute."""

from __future__ import annotations

import pytest

from onceward.http.keyed import key_limit
from onceward.http.keyed.key_limit import KeyLimit, counted_as
from onceward.http.keyed.principal import ANONYMOUS, named, of_request


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_principal_may_send_its_number_of_new_keys_in_each_minute() -> None:
    clock = Clock()
    limit = KeyLimit(clock)

    assert [limit.take("ann", 2) for _ in range(3)] == [0, 0, 60]
    assert limit.take("bob", 2) == 0
    clock.now += 45.5
    assert limit.take("ann", 2) == 15
    clock.now += 14.5
    assert limit.take("ann", 2) == 0


def test_a_key_that_was_not_new_is_given_back() -> None:
    limit = KeyLimit(Clock())

    limit.take("ann", 1)
    limit.give_back("ann", 1)

    assert limit.take("ann", 1) == 0
    assert limit.take("ann", 1) > 0


def test_principals_without_new_keys_leave_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_limit, "_SWEEP_KEYS", 10)
    clock = Clock()
    limit = KeyLimit(clock)
    for number in range(9):
        limit.take(f"user {number}", 5)

    clock.now += 61
    for number in range(11):
        limit.take(f"new user {number}", 5)

    assert all(name.startswith("new") for name, _ in limit._times)


def test_anonymous_callers_and_sessions_count_by_address_and_users_by_name() -> None:
    session = of_request([("cookie", b"sid=1")], {b"sid"})
    bearer = of_request([("authorization", b"Bearer x")])

    assert counted_as(ANONYMOUS, "10.0.0.1", by_address=False) == "address:10.0.0.1"
    assert counted_as(session, "10.0.0.1", by_address=False) == "address:10.0.0.1"
    assert counted_as(named("ann"), "10.0.0.1", by_address=False) == "http:user:ann"
    assert counted_as(bearer, "10.0.0.1", by_address=False) == bearer.scope
    assert counted_as(named("ann"), "10.0.0.1", by_address=True) == "address:10.0.0.1"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_all_addresses_of_one_customer_count_together(address: str, network: str) -> None:
    assert counted_as(ANONYMOUS, address, by_address=False) == f"address:{network}"
