"""Principals: two different callers never share a scope."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.authentication import SimpleUser, UnauthenticatedUser

from onceward.core.claim import Claim
from onceward.core.fingerprint import Digest
from onceward.errors import InvalidOption
from onceward.http.keyed.principal import (
    ANONYMOUS,
    CREDENTIAL_HEADERS,
    KeyPrincipal,
    cookies_in,
    named,
    of_request,
    of_user,
    with_cookies,
)
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore

ANN = UUID("5f0c1a39-0000-4000-8000-000000000001")

names = st.text(min_size=1, max_size=200)


# Named principals.


def test_a_name_is_readable_in_the_scope() -> None:
    assert named("ann") == KeyPrincipal("http:user:ann", "ann")
    assert named(5) == KeyPrincipal("http:user:5", "5")
    assert named(ANN) == KeyPrincipal(f"http:user:{ANN}", str(ANN))
    assert not named("ann").fleeting


def test_none_is_anonymous_and_a_user_named_anonymous_is_not() -> None:
    assert named(None) == ANONYMOUS
    assert named("anonymous") != ANONYMOUS
    assert of_user("anonymous") == named("anonymous")


@pytest.mark.parametrize("name", ["", b"ann", True, False, 1.5, [], {}, object()])
def test_an_invalid_principal_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidOption, match="principal= must return the name of the caller as a string"):
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
def test_the_ledger_accepts_every_principal_name(name: str) -> None:
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
    """A user like Django's: the primary key identifies it, and the name may change."""

    is_authenticated = True
    pk = 7
    id = 7
    username = "ann"


class Unfinished:
    """A user like Starlette's base user: attributes that a subclass does not define raise."""

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
def test_a_user_is_named_by_its_identifying_attribute(user: object, name: str) -> None:
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
def test_an_object_without_an_identifying_attribute_is_not_a_user(user: object) -> None:
    assert of_user(user) is None


def test_an_address_is_preferred_to_a_name_that_two_users_may_share() -> None:
    ann = SimpleNamespace(name="Ann", display_name="Ann", email="ann@example.com")
    namesake = SimpleNamespace(name="Ann", display_name="Ann", email="ann@example.org")

    assert of_user(ann) != of_user(namesake)


# Credentials.


def test_an_authorization_header_alone_is_the_principal() -> None:
    bearer = ("authorization", b"Bearer secret")
    principal = of_request([bearer])

    assert principal.fleeting
    assert principal.cookies is None
    assert "secret" not in principal.scope + principal.name
    for line in (("cookie", b"a=1"), ("cookie", b"sid=1"), ("x-api-key", b"k"), ("proxy-authorization", b"Basic x")):
        assert of_request([line, bearer], [b"sid"]) == principal
    assert of_request([("authorization", b"Bearer other")]) != principal
    assert of_request([("authorization", b"a-bare-token")]).cookies is None


@pytest.mark.parametrize("value", [b"Basic c2l0ZTpwYXNz", b"basic c2l0ZTpwYXNz", b"BASIC", b"Bearer", b"Bearer  "])
def test_a_shareable_authorization_is_a_scope_in_which_cookies_count(value: bytes) -> None:
    plain = of_request([("authorization", value)])
    with_cookie = of_request([("authorization", value), ("cookie", b"a=1")])

    assert plain.cookies == ""
    assert with_cookie.scope == plain.scope
    assert with_cookie.scope != ANONYMOUS.scope
    assert with_cookie.cookies
    assert of_request([("authorization", value), ("authorization", b"Bearer x")]).cookies == ""


@pytest.mark.parametrize("name", CREDENTIAL_HEADERS)
@pytest.mark.parametrize("value", [b"", b"  "])
def test_an_empty_header_is_not_a_credential(name: str, value: bytes) -> None:
    assert of_request([(name, value)]) == of_request([])
    assert of_request([(name, value), ("cookie", b"a=1")]) == of_request([("cookie", b"a=1")])


def test_without_credentials_the_caller_is_anonymous_and_cookies_count() -> None:
    assert of_request([]) == replace(ANONYMOUS, cookies="")
    assert of_request([("cookie", b"a=1")]).scope == ANONYMOUS.scope


@given(st.lists(st.tuples(st.sampled_from(["proxy-authorization", "x-api-key"]), st.binary(max_size=9)), max_size=4))
def test_other_credentials_are_another_principal(lines: list[tuple[str, bytes]]) -> None:
    sent = sorted(line for line in lines if line[1].strip())
    scopes = {of_request(lines).scope, of_request(lines[::-1]).scope, of_request(sent).scope}

    assert len(scopes) == 1
    assert of_request([*lines, ("x-api-key", b"one more")]).scope not in scopes
    assert (scopes == {ANONYMOUS.scope}) == (not sent)


@pytest.mark.parametrize(
    "lines",
    [
        [b"b=2; a=1"],
        [b"a=1;b=2"],
        [b"a=1", b"b=2"],
        [b"b=2", b"a=1"],
        [b" a=1 ;; b = 2 ; "],
        [b"a=1; b=2; a=1"],
        [b"", b"a=1; b=2"],
    ],
)
def test_the_same_cookies_in_another_order_or_on_several_lines_are_the_same(lines: list[bytes]) -> None:
    assert of_request([("cookie", line) for line in lines]) == of_request([("cookie", b"a=1; b=2")])


@given(st.permutations([b"%d=%d" % (number, number) for number in range(12)]))
def test_any_order_of_many_cookies_is_the_same(cookies: list[bytes]) -> None:
    assert of_request([("cookie", b"; ".join(cookies))]) == of_request([("cookie", b"; ".join(sorted(cookies)))])


@pytest.mark.parametrize("line", [b"a=1", b"a=1; b=3", b"a=2; b=1", b"a=1; b=2; c=3", b"a=1; b=2; a=2", b"a=1=b; 2"])
def test_different_cookies_are_told_apart(line: bytes) -> None:
    one, other = of_request([("cookie", b"a=1; b=2")]), of_request([("cookie", line)])

    assert one.scope == other.scope
    assert one.cookies != other.cookies


def test_session_cookies_are_a_separate_scope_in_which_other_cookies_do_not_count() -> None:
    def of(cookies: bytes, *lines: tuple[str, bytes]) -> KeyPrincipal:
        return of_request([("cookie", cookies), *lines], [b"sid", b"tenant"])

    ann = of(b"sid=ann")

    assert ann.scope.startswith("http:session:")
    assert "ann" not in ann.scope
    assert ann.cookies is None
    assert of(b"lb=2; sid=ann") == ann
    assert of(b"sid=ann", ("x-api-key", b"k"), ("authorization", b"Basic x")) == ann
    assert of(b"sid=bob") != ann
    assert of(b"sid=ann; tenant=1") != ann
    assert of(b"tenant=1; sid=ann") == of(b"sid=ann; tenant=1")
    assert of(b"tenant=ann") != ann


@pytest.mark.parametrize("cookies", [b"lb=1", b"sid=; lb=1", b"SID=ann", b"sid"])
def test_without_the_session_cookies_all_cookies_count(cookies: bytes) -> None:
    assert of_request([("cookie", cookies)], [b"sid"]) == of_request([("cookie", cookies)])


def test_the_cookie_part_of_a_fingerprint_can_be_read_back() -> None:
    fingerprint = Digest("a" * 64)
    cookies = of_request([("cookie", b"a=1")]).cookies

    assert cookies_in(with_cookies(fingerprint, cookies)) == cookies
    assert with_cookies(fingerprint, "") == with_cookies(fingerprint, None) == fingerprint
    assert cookies_in(fingerprint) == ""


def test_the_kinds_of_principals_never_share_a_scope() -> None:
    digest = of_request([("authorization", b"Bearer a")])

    for name in (digest.name, digest.scope, ANONYMOUS.scope, "credentials:1", "session:1", "anonymous"):
        assert named(name).scope not in {digest.scope, ANONYMOUS.scope}
