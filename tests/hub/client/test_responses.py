"""Refusals of the hub become exceptions of one hierarchy; invalid requests are not sent."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.hub.client.conftest import RunWithHub
from tests.servers.scripted_http import ScriptedResponse, bind, scripted, url_of

from onceward import errors
from onceward.http import problem
from onceward.hub.client import Hub, Readiness
from onceward.hub.client.responses import error_of
from onceward.hub.db.engine import open_database
from onceward.hub.security import tokens

Use = Callable[[Hub], Awaitable[Any]]

UNKNOWN_TOKEN = f"ow_{'0' * 12}_{'x' * 43}"

BAD_INPUT: dict[str, tuple[Use, type[errors.OncewardError]]] = {
    "a blank title": (lambda hub: hub.create_topic(" "), errors.InvalidInput),
    "a title of another type": (lambda hub: hub.create_topic(1), errors.InvalidInput),  # type: ignore[arg-type]
    "no such topic": (lambda hub: hub.post_message("top_none", "ada", "x"), errors.NotFound),
    "nothing to change": (lambda hub: hub.update_attachment("top_none", "a", {}, dedupe_key="x"), errors.NotFound),
    "too long": (lambda hub: hub.create_topic("x" * 2_000_000), errors.TooLarge),
    "not a number of JSON": (lambda hub: hub.attach("top_none", "a", {"x": math.nan}), errors.InvalidInput),
    "not text": (lambda hub: hub.create_topic("\ud800"), errors.InvalidInput),
    "not JSON": (lambda hub: hub.attach("top_none", "a", {"x": {1}}), errors.InvalidInput),
    "a limit below 1": (lambda hub: hub.topics(limit=0), errors.InvalidInput),
    "a cursor below 0": (lambda hub: hub.events(-1), errors.InvalidInput),
    "a cursor beyond the end": (lambda hub: hub.events(10**12), errors.InvalidInput),
    "a name that is not text": (lambda hub: hub.events(topic_id="\ud800"), errors.InvalidInput),
    "an empty key": (lambda hub: hub.create_topic("x", idempotency_key=""), errors.InvalidKey),
    "a key with a line end": (lambda hub: hub.create_topic("x", idempotency_key="a\nb"), errors.InvalidKey),
    "a key that is not ASCII": (lambda hub: hub.create_topic("x", idempotency_key="ü"), errors.InvalidKey),
}


@pytest.mark.parametrize(("use", "kind"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_refused_by_its_name(
    use: Use, kind: type[errors.OncewardError], url: str, run_with_hub: RunWithHub
) -> None:
    with pytest.raises(kind) as raised:
        run_with_hub(url, use)

    assert type(raised.value) is kind


def test_a_refusal_says_which_fields_are_wrong(url: str, run_with_hub: RunWithHub) -> None:
    with pytest.raises(errors.InvalidInput) as raised:
        run_with_hub(url, lambda hub: hub.create_topic(" "))

    assert [name for name, _ in raised.value.fields] == ["title"]
    assert "title" in str(raised.value)


def test_a_token_that_is_not_known_is_refused(url: str, run_with_hub: RunWithHub) -> None:
    with pytest.raises(errors.Unauthorized, match="unknown or revoked"):
        run_with_hub(url, lambda hub: hub.topics(), UNKNOWN_TOKEN)
    with pytest.raises(errors.Unauthorized):
        run_with_hub(url, lambda hub: anext(hub.follow()), UNKNOWN_TOKEN)


@pytest.fixture
def reader_token(url: str, data_dir: Path) -> Iterator[str]:  # noqa: ARG001  # the hub has made the tables
    """A token that may only read; the hub needs one until it is opened again."""
    with closing(open_database(f"sqlite:///{data_dir}/hub.db")) as database:
        with database.write() as tx:
            token, text = tokens.create(tx, "reader", ["read"])
        yield text
        with database.write() as tx:
            tokens.revoke(tx, token.token_id)
            tokens.open_local(tx)


def test_a_token_is_limited_to_its_scopes(url: str, reader_token: str, run_with_hub: RunWithHub) -> None:
    assert len(run_with_hub(url, lambda hub: hub.topics(limit=1), reader_token)) <= 1
    with pytest.raises(errors.Forbidden, match="the scope write"):
        run_with_hub(url, lambda hub: hub.create_topic("x"), reader_token)


@pytest.mark.usefixtures("reader_token")
def test_a_hub_with_tokens_needs_one(url: str, run_with_hub: RunWithHub) -> None:
    with pytest.raises(errors.Unauthorized, match="requires a token"):
        run_with_hub(url, lambda hub: hub.topics())
    assert run_with_hub(url, lambda hub: hub.healthz())


def test_an_unreachable_hub_is_reported_with_the_key_to_continue_with(run_with_hub: RunWithHub) -> None:
    with closing(bind()) as nobody:
        with pytest.raises(errors.HubUnavailable, match="is a hub running there") as raised:
            run_with_hub(
                url_of(nobody), lambda hub: hub.create_topic("x", idempotency_key="mine"), deadline_seconds=0.05
            )
        with pytest.raises(errors.HubUnavailable):
            run_with_hub(url_of(nobody), lambda hub: anext(hub.follow()), deadline_seconds=0.05)

        assert raised.value.key == "mine"
        assert not run_with_hub(url_of(nobody), lambda hub: hub.healthz())
        assert run_with_hub(url_of(nobody), lambda hub: hub.readyz()) == Readiness(
            ready=False, checks={"hub": "no answer"}
        )


def test_the_error_has_the_key_that_the_client_generated(run_with_hub: RunWithHub) -> None:
    with scripted(*[ScriptedResponse(503)] * 50) as server:
        with pytest.raises(errors.HubUnavailable) as raised:
            run_with_hub(server.url, lambda hub: hub.create_topic("x"), deadline_seconds=1)

        assert {raised.value.key} == set(server.keys)
        assert raised.value.key


def test_a_probe_is_sent_once(run_with_hub: RunWithHub) -> None:
    body = b'{"status":"unavailable","checks":{"database":"no answer"}}'
    with scripted(ScriptedResponse(503, {"Content-Type": "application/json", "Retry-After": "9"}, body)) as server:
        assert run_with_hub(server.url, lambda hub: hub.readyz()) == Readiness(
            ready=False, checks={"database": "no answer"}
        )
        assert len(server.seen) == 1


PROBLEMS: dict[str, tuple[problem.Response, type[errors.OncewardError]]] = {
    "invalid": (problem.problem(400, "no", errors=(("a", "b"),)), errors.InvalidInput),
    "unauthorized": (problem.problem(401, "no"), errors.Unauthorized),
    "forbidden": (problem.problem(403, "no"), errors.Forbidden),
    "not found": (problem.problem(404, "no"), errors.NotFound),
    "busy": (problem.busy(), errors.Busy),
    "in doubt": (problem.in_doubt(), errors.InDoubt),
    "not kept": (problem.not_kept(), errors.OutcomeNotKept),
    "too large": (problem.too_large(1), errors.TooLarge),
    "key reused": (problem.mismatch(), errors.KeyReused),
    "unavailable": (problem.unavailable(), errors.HubUnavailable),
    "internal": (problem.problem(500, "no"), errors.UnexpectedAnswer),
    "method": (problem.problem(405, "no"), errors.UnexpectedAnswer),
    "not a problem": (problem.Response(404, (), b"<html>"), errors.UnexpectedAnswer),
    "a problem in name": (
        problem.Response(409, ((b"content-type", b"application/problem+json"),), b"[1"),
        errors.Busy,
    ),
    "elsewhere": (problem.Response(307, ((b"location", b"/login"),), b""), errors.UnexpectedAnswer),
}


@pytest.mark.parametrize(("answer", "kind"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_every_problem_has_its_exception(answer: problem.Response, kind: type[errors.OncewardError]) -> None:
    request = httpx.Request("POST", "http://hub/api/v1/topics")
    response = httpx.Response(
        answer.status, headers=list(answer.headers), stream=httpx.ByteStream(answer.body), request=request
    )
    response.read()

    error = error_of(response)

    assert type(error) is kind
    match error:
        case errors.InvalidInput():
            assert error.fields == (("a", "b"),)
        case errors.Busy():
            assert error.retry_after_seconds == 1.0
        case errors.UnexpectedAnswer():
            assert error.status == answer.status
        case _:
            assert str(error)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"topics":[{}]}', b'{"topics":[1]}', b"null"])
def test_a_response_that_is_not_from_a_hub_is_unexpected(body: bytes, run_with_hub: RunWithHub) -> None:
    with scripted(ScriptedResponse(200, {"Content-Type": "application/json"}, body)) as server:
        with pytest.raises(errors.UnexpectedAnswer) as raised:
            run_with_hub(server.url, lambda hub: hub.topics())

        assert raised.value.status == 200


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "no scheme": {"url": "127.0.0.1:8787"},
    "another scheme": {"url": "ftp://hub"},
    "no host": {"url": "http://"},
    "a bad port": {"url": "http://hub:port"},
    "credentials": {"url": "http://user:secret@hub"},
    "a query": {"url": "http://hub/?token=secret"},
    "a token with its line end": {"url": "http://hub", "token": "secret\n"},
    "an empty token": {"url": "http://hub", "token": ""},
    "no time": {"url": "http://hub", "deadline_seconds": 0},
    "a silence of no time": {"url": "http://hub", "try_seconds": 0},
}


@pytest.mark.parametrize("options", BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_invalid_options_are_refused_at_once_without_repeating_secrets(options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption) as raised:
        Hub(**options)

    assert "secret" not in str(raised.value)


def test_a_client_does_not_show_its_token() -> None:
    assert "secret" not in repr(Hub("http://hub", "secret"))


def test_a_closed_client_says_so(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        await hub.aclose()
        await hub.topics()

    with pytest.raises(errors.StoreClosed):
        run_with_hub(url, use)
