"""Whose key it is: one user's key never reveals another's response."""

from __future__ import annotations

from tests.backends import FOUR
from tests.http.behaviour.conftest import ASGI_AND_WSGI, EVERY, Serve, few, for_each, on_both_sides, on_the_diagonal
from tests.http.serving import Serving, assert_problem, is_replay, new_name

NEW_TOKEN = {"Authorization": "Bearer ada-new-token"}


@on_both_sides
def test_a_refreshed_token_runs_again_with_the_default_digest(serving: Serving) -> None:
    name, key = new_name(), new_name()

    first = serving.trial(name, key)
    refreshed = serving.trial(name, key, headers=NEW_TOKEN)

    assert first.json()["token"] != refreshed.json()["token"]
    assert serving.runs(name) == 2


@for_each(ASGI_AND_WSGI, few("memory", of=FOUR))
def test_that_the_default_digest_changes_with_the_token_is_logged_once(
    serve: Serve, framework: str, store: str
) -> None:
    serving = serve(framework, store)

    for _ in range(3):
        serving.trial(new_name(), new_name())
        serving.trial(new_name(), new_name(), headers=NEW_TOKEN)

    log = serving.wait_for_log("principal=")
    assert log.count("principal=") == 1


@for_each(EVERY, few("sqlite", of=FOUR))
def test_a_refreshed_token_is_replayed_with_a_principal(serve: Serve, framework: str, store: str) -> None:
    serving = serve(framework, store, principal="user")
    name, key = new_name(), new_name()

    first = serving.trial(name, key)
    refreshed = serving.trial(name, key, headers=NEW_TOKEN)
    bob = serving.trial(name, key, user="bob")

    assert refreshed.content == first.content
    assert is_replay(refreshed)
    assert bob.json()["token"] != first.json()["token"]
    assert serving.runs(name) == 2


@for_each(few("starlette", of=EVERY), few("sqlite", of=FOUR))
def test_a_refreshed_token_is_replayed_when_authentication_stands_outside(
    serve: Serve, framework: str, store: str
) -> None:
    serving = serve(framework, store, authenticated=True)
    name, key = new_name(), new_name()

    first = serving.trial(name, key)
    refreshed = serving.trial(name, key, headers=NEW_TOKEN)

    assert refreshed.content == first.content
    assert is_replay(refreshed)
    assert serving.runs(name) == 1


@for_each(few("starlette", of=EVERY), few("sqlite", of=FOUR))
def test_a_revoked_token_gets_401_and_never_a_replay(serve: Serve, framework: str, store: str) -> None:
    serving = serve(framework, store, authenticated=True)
    name, key = new_name(), new_name()
    serving.trial(name, key)

    serving.world.revoke("ada-token")

    assert serving.trial(name, key).status_code == 401


@on_the_diagonal
def test_of_two_cookie_users_with_one_key_the_second_is_refused(serving: Serving) -> None:
    name, key = new_name(), new_name()

    ada = serving.trial(name, key, user="", headers={"Cookie": "session=ada-token"})
    bob = serving.trial(name, key, user="", headers={"Cookie": "session=bob-token"})
    again = serving.trial(name, key, user="", headers={"Cookie": "session=ada-token"})

    assert_problem(bob, 409, "principal-changed")
    assert ada.json()["token"] not in bob.text
    assert again.content == ada.content
    assert serving.runs(name) == 1


@on_both_sides
def test_an_api_key_is_a_credential_like_the_others(serving: Serving) -> None:
    name, key = new_name(), new_name()

    answers = [serving.trial(name, key, user="", headers={"X-API-Key": secret}) for secret in ("one", "two", "one")]

    assert answers[0].json()["token"] != answers[1].json()["token"]
    assert answers[2].content == answers[0].content


@on_the_diagonal
def test_everybody_without_credentials_is_one_principal(serving: Serving) -> None:
    name, key = new_name(), new_name()

    answers = [serving.trial(name, key, user="") for _ in range(2)]

    assert answers[0].content == answers[1].content
    assert serving.runs(name) == 1
