"""Rules declared beside a route, set through the operation, or set for the whole application."""

from __future__ import annotations

from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import ASGI_AND_WSGI, SHARED, StartServer, few, for_each, on, on_the_diagonal
from tests.http.behaviour.demo_server import MISMATCH, DemoServer, assert_problem, is_replay, new_name
from tests.waiting import until

each = for_each(ASGI_AND_WSGI, few("memory", of=ONE_OF_EACH_KIND))


@on_the_diagonal
def test_a_route_may_require_a_key(server: DemoServer) -> None:
    name = new_name()

    without = server.trial(name, None, rule="required")
    with_key = server.trial(name, new_name(), rule="required")

    assert_problem(without, 400, "badRequest")
    assert with_key.status_code == 200
    assert server.runs(name) == 1


@on_the_diagonal
def test_an_expired_key_runs_again(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    first = server.trial(name, key, rule="brief")

    until(lambda: server.trial(name, key, rule="brief").content != first.content, "the key never expired")

    assert server.runs(name) >= 2


@on_the_diagonal
def test_a_handler_may_say_how_long_its_response_is_stored(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    first = server.trial(name, key, {"keep_for": 0.2})

    until(lambda: server.trial(name, key, {"keep_for": 0.2}).content != first.content, "the answer was kept on")

    assert server.runs(name) >= 2


@on(ASGI_AND_WSGI)
def test_a_handler_may_store_its_response_longer_than_its_route(server: DemoServer) -> None:
    brief, name, key = new_name(), new_name(), new_name()
    first = server.trial(name, key, {"keep_for": 600}, rule="brief")
    other = server.trial(brief, brief, rule="brief")

    until(lambda: server.trial(brief, brief, rule="brief").content != other.content, "the other never expired")

    assert server.trial(name, key, {"keep_for": 600}, rule="brief").content == first.content


@on_the_diagonal
def test_the_chosen_fields_identify_a_request(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    order = {"order_id": "42", "buyer": {"name": "ada", "mood": "good"}, "sent_at": 1}

    first = server.trial(name, key, order, rule="fields")
    rebuilt = server.trial(
        name, key, {"sent_at": 2, "buyer": {"mood": "bad", "name": "ada"}, "order_id": "42"}, rule="fields"
    )
    other_order = server.trial(name, key, order | {"order_id": "43"}, rule="fields")
    other_buyer = server.trial(name, key, order | {"buyer": {"name": "bob"}}, rule="fields")

    assert rebuilt.content == first.content
    assert is_replay(rebuilt)
    assert_problem(other_order, *MISMATCH)
    assert_problem(other_buyer, *MISMATCH)


@on_the_diagonal
def test_a_handler_may_choose_not_to_store_its_response(server: DemoServer) -> None:
    for rule, plan in (("plain", {"no_store": True}), ("unkept", {})):
        name, key = new_name(), new_name()

        first = server.trial(name, key, plan, rule=rule)
        again = server.trial(name, key, plan, rule=rule)

        assert first.status_code == 200
        assert_problem(again, 409, "outcome-not-kept")
        assert server.runs(name) == 1, rule


@on_the_diagonal
def test_a_hold_route_replays_its_response_like_any_other_route(server: DemoServer) -> None:
    key, letter = new_name(), {"to": new_name(), "text": "Come home."}

    without = server.post("/api/letters", json=letter)
    answers = [server.post("/api/letters", key, json=letter) for _ in range(2)]

    assert_problem(without, 400, "badRequest")
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].content == answers[1].content
    assert server.world.effects("letter", letter["to"]) == 1


@each
def test_only_the_chosen_paths_are_checked(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, paths=["/api/trials/hold/"])
    name, key = new_name(), new_name()

    for _ in range(2):
        server.trial(name, key, rule="plain")
        server.trial(f"{name}-held", key, rule="hold")

    assert (server.runs(name), server.runs(f"{name}-held")) == (2, 1)


@each
def test_only_the_chosen_methods_are_checked(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, methods=["DELETE"])
    name, key = new_name(), new_name()

    for method in ("POST", "POST", "DELETE", "DELETE"):
        server.send(method, f"/api/trials/plain/{name}{method}", key)

    assert (server.runs(f"{name}POST"), server.runs(f"{name}DELETE")) == (2, 1)


@each
def test_every_route_may_require_a_key(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, required=True)

    assert_problem(server.trial(new_name(), None), 400, "badRequest")
    assert server.trial(new_name(), new_name()).status_code == 200
    assert server.send("GET", "/api/stories").status_code == 200


@each
def test_the_middleware_can_be_switched_off(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, enabled=False)
    name, key = new_name(), new_name()

    for _ in range(2):
        server.trial(name, key)

    assert server.runs(name) == 2


@each
def test_a_crash_policy_for_all_routes_is_their_default(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, on_crash="hold")
    name, key = new_name(), new_name()

    server.trial(name, key, {"fail": True})

    assert_problem(server.trial(name, key, {"fail": True}), 409, "in-doubt")


@for_each(ASGI_AND_WSGI, few("sqlite", of=SHARED))
def test_applications_with_separate_namespaces_can_share_a_store(
    start_server: StartServer, framework: str, store: str
) -> None:
    one = start_server(framework, store, namespace="one")
    two = start_server(framework, one.store, namespace="two")
    name, key = new_name(), new_name()

    assert one.trial(name, key).json()["token"] != two.trial(name, key).json()["token"]
