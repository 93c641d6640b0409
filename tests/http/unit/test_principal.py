"""Whose key it is: two who are not the same never share a scope."""

from __future__ import annotations

import asyncio
import hashlib
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.authentication import SimpleUser, UnauthenticatedUser

from onceward.core.claim import Claim
from onceward.errors import InvalidOption
from onceward.http.principal import ANONYMOUS, CREDENTIAL_HEADERS, Principal, named, of_credentials, of_user
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore

ANN = UUID("5f0c1a39-0000-4000-8000-000000000001")

names = st.text(min_size=1, max_size=200)
credentials = st.lists(st.tuples(st.sampled_from(CREDENTIAL_HEADERS), st.binary(max_size=12)), min_size=1, max_size=4)


# Whoever has a name.


def test_a_name_is_readable_in_the_scope() -> None:
    assert named("ann") == Principal("http:user:ann", "ann")
    assert named(5) == Principal("http:user:5", "5")
    assert named(ANN) == Principal(f"http:user:{ANN}", str(ANN))
    assert not named("ann").fleeting


def test_nobody_is_anonymous_but_a_user_of_that_name_is_somebody() -> None:
    assert named(None) == ANONYMOUS
    assert named("anonymous") != ANONYMOUS
    assert of_user("anonymous") == named("anonymous")


@pytest.mark.parametrize("name", ["", b"ann", True, False, 1.5, [], {}, object()])
def test_what_names_nobody_is_refused(name: object) -> None:
    with pytest.raises(InvalidOption, match="principal= must give a text"):
        named(name)


@given(names, names)
@example("a\x00b", "ab")
@example("\x00", "ab")
@example("sha256:" + hashlib.sha256(b"x" * 161).hexdigest(), "x" * 161)
@example("é" * 80, "é" * 81)
@example("a", "a ")
def test_two_names_never_share_a_scope(one: str, other: str) -> None:
    assert (named(one).scope == named(other).scope) == (one == other)


@given(names)
@example("\ud800")
@example("\x00")
@example(" ann ")
@example("é" * 80)
@example("line\nbreak")
@example("/slashes/and:colons")
def test_the_ledger_takes_every_name(name: str) -> None:
    with Ledger(MemoryStore(), namespace="n" * 64) as ledger:
        principal = named(name)
        found = asyncio.run(
            ledger.begin(principal.scope, "k", repeatable=True, user_id=principal.name, endpoint="POST /")
        )

    assert isinstance(found, Claim)
    found.entry.scope.encode()
    found.entry.user_id.encode()


# A user object.


class DjangoUser:
    """As Django's users are: the primary key identifies, the name may change."""

    is_authenticated = True
    pk = 7
    id = 7
    username = "ann"


class Unfinished:
    """As Starlette's base user: what a subclass does not say raises."""

    is_authenticated = True

    @property
    def identity(self) -> str:
        raise NotImplementedError

    @property
    def display_name(self) -> str:
        return "ann"


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("ann", "ann"),
        (0, "0"),
        (7, "7"),
        (ANN, str(ANN)),
        (SimpleUser("ann"), "ann"),
        (Unfinished(), "ann"),
        (DjangoUser(), "7"),
        (SimpleNamespace(id=ANN), str(ANN)),
        (SimpleNamespace(user_id=3, name="ann"), "3"),
        (SimpleNamespace(identity="ann@example.com", id=3), "ann@example.com"),
        ({"sub": "auth0|1", "name": "ann"}, "auth0|1"),
        ({"id": 0}, "0"),
        ({"id": None, "email": "ann@example.com"}, "ann@example.com"),
        ({"id": "", "username": "ann"}, "ann"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_user_is_known_by_what_identifies_it(user: object, name: str) -> None:
    assert of_user(user) == named(name)


@pytest.mark.parametrize(
    "user",
    [
        None,
        "",
        True,
        UnauthenticatedUser(),
        SimpleNamespace(is_authenticated=False, id=5),
        AnonymousUser(),
        {},
        {"roles": ["admin"]},
        SimpleNamespace(),
        object(),
        1.5,
    ],
    ids=lambda value: type(value).__name__ if type(value) is object else repr(value)[:30],
)
def test_what_identifies_nobody_is_no_user(user: object) -> None:
    assert of_user(user) is None


def test_an_address_identifies_better_than_a_name_that_two_may_have() -> None:
    ann = SimpleNamespace(name="Ann", display_name="Ann", email="ann@example.com")
    namesake = SimpleNamespace(name="Ann", display_name="Ann", email="ann@example.org")

    assert of_user(ann) != of_user(namesake)


# Credentials.


@given(credentials, st.randoms(use_true_random=False))
def test_the_order_of_credential_headers_does_not_count(lines: list[tuple[str, bytes]], random: st.DrawFn) -> None:
    shuffled = list(lines)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert of_credentials(shuffled) == of_credentials(lines)


@given(credentials, credentials)
@example([("authorization", b"ab")], [("authorization", b"a"), ("authorization", b"b")])
@example([("cookie", b"a")], [("x-api-key", b"a")])
@example([("cookie", b"1;cookie=1:2")], [("cookie", b"1"), ("cookie", b"2")])
def test_other_credentials_are_somebody_else(one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]) -> None:
    assert (of_credentials(one) == of_credentials(other)) == (sorted(one) == sorted(other))


def test_without_credentials_everybody_is_anonymous() -> None:
    assert of_credentials([]) == ANONYMOUS
    assert of_credentials([("authorization", b"")]) != ANONYMOUS


def test_credentials_are_fleeting_and_never_shown() -> None:
    principal = of_credentials([("authorization", b"Bearer secret")])

    assert principal.fleeting
    assert "secret" not in principal.scope + principal.name


def test_the_kinds_never_meet() -> None:
    digest = of_credentials([("cookie", b"a=1")])

    for name in (digest.name, digest.scope, ANONYMOUS.scope, "credentials:1", "anonymous"):
        assert named(name).scope not in {digest.scope, ANONYMOUS.scope}
