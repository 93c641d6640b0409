"""Principals: the key of one user never reveals the response of another."""

from __future__ import annotations

from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import (
    ASGI_AND_WSGI,
    EVERY,
    StartServer,
    few,
    for_each,
    on_both_sides,
    on_the_diagonal,
)
from tests.http.behaviour.demo_server import DemoServer, assert_problem, is_replay, new_name

NEW_TOKEN = {"Authorization": "Bearer ada-new-token"}


@on_both_sides
def test_with_the_default_digest_a_refreshed_token_runs_the_request_again(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    first = server.trial(name, key)
    refreshed = server.trial(name, key, headers=NEW_TOKEN)

    assert first.json()["token"] != refreshed.json()["token"]
    assert server.runs(name) == 2


@for_each(ASGI_AND_WSGI, few("memory", of=ONE_OF_EACH_KIND))
def test_the_log_says_once_that_the_default_digest_changes_with_the_token(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store)

    for _ in range(3):
        server.trial(new_name(), new_name())
        server.trial(new_name(), new_name(), headers=NEW_TOKEN)

    log = server.wait_for_log("idempotency_principal_fleeting")
    assert log.count("idempotency_principal_fleeting") == 1


@for_each(EVERY, few("sqlite", of=ONE_OF_EACH_KIND))
def test_with_a_principal_a_refreshed_token_gets_the_replay(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store, principal="user")
    name, key = new_name(), new_name()

    first = server.trial(name, key)
    refreshed = server.trial(name, key, headers=NEW_TOKEN)
    bob = server.trial(name, key, user="bob")

    assert refreshed.content == first.content
    assert is_replay(refreshed)
    assert bob.json()["token"] != first.json()["token"]
    assert server.runs(name) == 2


@for_each(few("starlette", of=EVERY), few("sqlite", of=ONE_OF_EACH_KIND))
def test_with_outer_authentication_a_refreshed_token_gets_the_replay(
    start_server: StartServer, framework: str, store: str
) -> None:
    server = start_server(framework, store, authenticated=True)
    name, key = new_name(), new_name()

    first = server.trial(name, key)
    refreshed = server.trial(name, key, headers=NEW_TOKEN)

    assert refreshed.content == first.content
    assert is_replay(refreshed)
    assert server.runs(name) == 1


@for_each(few("starlette", of=EVERY), few("sqlite", of=ONE_OF_EACH_KIND))
def test_a_revoked_token_gets_401_and_never_a_replay(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, authenticated=True)
    name, key = new_name(), new_name()
    server.trial(name, key)

    server.world.revoke("ada-token")

    assert server.trial(name, key).status_code == 401


@on_the_diagonal
def test_the_second_of_two_cookie_users_with_one_key_is_refused(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    ada = server.trial(name, key, user="", headers={"Cookie": "session=ada-token"})
    bob = server.trial(name, key, user="", headers={"Cookie": "session=bob-token"})
    again = server.trial(name, key, user="", headers={"Cookie": "session=ada-token"})

    assert_problem(bob, 409, "principal-changed")
    assert ada.json()["token"] not in bob.text
    assert again.content == ada.content
    assert server.runs(name) == 1


@on_both_sides
def test_an_api_key_is_a_credential_like_the_others(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    answers = [server.trial(name, key, user="", headers={"X-API-Key": secret}) for secret in ("one", "two", "one")]

    assert answers[0].json()["token"] != answers[1].json()["token"]
    assert answers[2].content == answers[0].content


@on_the_diagonal
def test_all_callers_without_credentials_are_one_principal(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    answers = [server.trial(name, key, user="") for _ in range(2)]

    assert answers[0].content == answers[1].content
    assert server.runs(name) == 1
