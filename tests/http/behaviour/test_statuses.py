"""Statuses that are outcomes, and statuses that mean "try again"."""

from __future__ import annotations

import httpx
import pytest
from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import ASGI_AND_WSGI, StartServer, few, for_each, on_both_sides, on_the_diagonal
from tests.http.behaviour.demo_server import DemoServer, assert_problem, is_replay, new_name

KEPT = (200, 201, 202, 301, 303, 400, 404, 410, 418, 422)
NOT_KEPT = (401, 403, 408, 409, 425, 429, 500, 502, 503, 504)


@on_the_diagonal
def test_a_response_that_is_an_outcome_is_stored(server: DemoServer) -> None:
    for status in KEPT:
        name, key = new_name(), new_name()

        answers = [server.trial(name, key, {"status": status}) for _ in range(2)]

        assert [answer.status_code for answer in answers] == [status, status]
        assert answers[0].content == answers[1].content
        assert is_replay(answers[1])
        assert server.runs(name) == 1, status


@on_the_diagonal
def test_a_response_that_means_try_again_is_not_stored(server: DemoServer) -> None:
    for status in NOT_KEPT:
        name, key = new_name(), new_name()

        answers = [server.trial(name, key, {"status": status}) for _ in range(2)]

        assert [answer.status_code for answer in answers] == [status, status]
        assert not any(is_replay(answer) for answer in answers)
        assert server.runs(name) == 2, status


@on_the_diagonal
def test_a_storm_of_server_errors_ends_with_one_outcome(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"status": 502}, {"fail": True}, {"status": 503}, {"status": 500}, {"status": 201}]}

    answers = [server.trial(name, key, plan) for _ in range(7)]

    assert [answer.status_code for answer in answers] == [502, 500, 503, 500, 201, 201, 201]
    assert answers[4].content == answers[5].content == answers[6].content
    assert server.runs(name) == 5


@for_each(ASGI_AND_WSGI, few("memory", of=ONE_OF_EACH_KIND))
def test_the_stored_statuses_can_be_chosen(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, keep_status=[503])

    kept, not_kept = new_name(), new_name()
    for _ in range(2):
        server.trial(kept, kept, {"status": 503})
        server.trial(not_kept, not_kept, {"status": 200})

    assert (server.runs(kept), server.runs(not_kept)) == (1, 2)


@on_the_diagonal
def test_an_exception_after_the_response_started_is_not_an_outcome(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"parts": ["begun", {"fail": True}]}, {"parts": ["begun", " and done"]}]}

    with pytest.raises(httpx.RemoteProtocolError):
        server.trial(name, key, plan)
    answers = [server.trial(name, key, plan) for _ in range(2)]

    assert [answer.text for answer in answers] == ["begun and done", "begun and done"]
    assert [is_replay(answer) for answer in answers] == [False, True]
    assert server.runs(name) == 2


@on_the_diagonal
def test_on_a_hold_route_a_server_error_is_in_doubt(server: DemoServer) -> None:
    for plan in ({"status": 503}, {"fail": True}):
        name, key = new_name(), new_name()

        first = server.trial(name, key, plan, rule="hold")
        again = [server.trial(name, key, plan, rule="hold") for _ in range(2)]

        assert first.status_code >= 500
        for answer in again:
            assert_problem(answer, 409, "in-doubt")
            assert "retry-after" not in answer.headers
        assert server.runs(name) == 1


@on_the_diagonal
def test_on_a_hold_route_an_exception_after_the_response_started_is_in_doubt(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"parts": ["begun", {"fail": True}]}

    with pytest.raises(httpx.RemoteProtocolError):
        server.trial(name, key, plan, rule="hold")
    again = server.trial(name, key, plan, rule="hold")

    assert_problem(again, 409, "in-doubt")
    assert server.runs(name) == 1


@on_both_sides
def test_on_a_hold_route_a_refusal_still_lets_the_retry_run(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    plan = {"turns": [{"status": 429}, {"status": 200}]}

    answers = [server.trial(name, key, plan, rule="hold") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [429, 200]
