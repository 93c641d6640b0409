"""The demo itself: the six routes and their companions, under every framework, with input good and bad."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from examples.demo.__main__ import MAKERS
from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import StartServer, few, on_the_diagonal
from tests.http.behaviour.demo_server import REPOSITORY, DemoServer, assert_problem, is_replay, new_name

WRITING = {"title": "The well", "text": "It was deep."}
# Each of the six: path, body, status, and the effect that it has in the world.
SIX: dict[str, tuple[str, dict[str, Any], int, str, str]] = {
    "act": ("/api/dwellers/{id}/act", {"action": "dig", "target": "well"}, 200, "act", "{id}"),
    "heartbeat": ("/api/dwellers/{id}/heartbeat", {"mood": "calm"}, 200, "heartbeat", "{id}"),
    "stories": ("/api/stories", WRITING, 201, "write", ""),
    "proposals": ("/api/proposals", WRITING, 201, "propose", "proposals"),
    "feedback": ("/api/review/story/{id}/feedback", {"verdict": "approve"}, 201, "review", "story/{id}"),
    "registration": ("/api/auth/agent", {"name": "{id}"}, 201, "register", "{id}"),
}
BAD: dict[str, tuple[str, bytes]] = {
    "no JSON": ("/api/stories", b"{"),
    "no object": ("/api/stories", b"[]"),
    "a field missing": ("/api/stories", b'{"title": "a"}'),
    "a field too many": ("/api/stories", b'{"title": "a", "text": "b", "colour": "c"}'),
    "a wrong type": ("/api/stories", b'{"title": 1, "text": "b"}'),
    "half a character": ("/api/stories", b'{"title": "\\ud800", "text": "b"}'),
    "no UTF-8": ("/api/stories", b'{"title": "\xff", "text": "b"}'),
    "deep nesting": ("/api/stories", b"[" * 50_000),
    "an unknown word": ("/api/review/story/1/feedback", b'{"verdict": "maybe"}'),
    "no name": ("/api/auth/agent", b"{}"),
}


@on_the_diagonal
@pytest.mark.parametrize("route", SIX)
def test_a_retry_of_each_of_the_six_routes_happens_once(server: DemoServer, route: str) -> None:
    retry_thrice(server, route)


def retry_thrice(server: DemoServer, route: str) -> None:
    """Send the same request three times: one effect, and one answer for all."""
    path, body, status, action, subject = SIX[route]
    name, key = new_name(), new_name()
    body = {field: value.replace("{id}", name) for field, value in body.items()}
    path, user = path.replace("{id}", name), "" if route == "registration" else "ada"

    answers = [server.post(path, key, json=body, user=user) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [status] * 3, answers[0].text
    assert answers[0].content == answers[1].content == answers[2].content
    assert is_replay(answers[2])
    if route == "stories":
        subject = answers[0].json()["id"]
    if route != "proposals":  # its effects have no name of their own
        assert server.world.effects(action, subject.replace("{id}", name)) == 1


@on_the_diagonal
def test_the_token_of_a_registration_is_given_again_on_retry_and_works(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    tokens = {server.post("/api/auth/agent", key, json={"name": name}, user="").json()["token"] for _ in range(2)}
    acted = server.post(
        "/api/dwellers/1/act", json={"action": "dig"}, headers={"Authorization": f"Bearer {tokens.pop()}"}
    )

    assert tokens == set()
    assert acted.json()["by"] == name


@on_the_diagonal
def test_a_story_is_written_changed_and_deleted(server: DemoServer) -> None:
    story = server.post("/api/stories", new_name(), json=WRITING).json()
    path, key = f"/api/stories/{story['id']}", new_name()

    replaced = [server.send("PUT", path, key, json=WRITING | {"text": "It was dry."}) for _ in range(2)]
    amended = server.send("PATCH", path, new_name(), json={"title": "The dry well"})
    listed = server.send("GET", "/api/stories")
    deleted = [server.send("DELETE", path, new_name()) for _ in range(2)]

    assert replaced[0].json() == story | {"text": "It was dry."}
    assert replaced[0].content == replaced[1].content
    assert amended.json() == story | {"title": "The dry well", "text": "It was dry."}
    assert amended.json() in listed.json()["stories"]
    assert [answer.status_code for answer in deleted] == [204, 204]
    assert server.world.effects("change", story["id"]) == 2
    assert server.world.effects("delete", story["id"]) == 2


@on_the_diagonal
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_clear_400(server: DemoServer, case: str) -> None:
    path, body = BAD[case]

    answer = server.post(path, new_name(), content=body, headers={"Content-Type": "application/json"})

    assert_problem(answer, 400, "badRequest")


@on_the_diagonal
def test_requests_without_a_token_are_refused(server: DemoServer) -> None:
    answer = server.post("/api/dwellers/1/act", new_name(), json={"action": "dig"}, user="nobody")

    assert_problem(answer, 401, "unauthorized")


@pytest.mark.parametrize("store", few("sqlite", of=ONE_OF_EACH_KIND))
def test_quart_is_wrapped_like_the_other_frameworks(start_server: StartServer, store: str) -> None:
    server = start_server("quart", store)

    for route in SIX:
        retry_thrice(server, route)
    for path, body in BAD.values():
        answer = server.post(path, new_name(), content=body, headers={"Content-Type": "application/json"})
        assert_problem(answer, 400, "badRequest")
    unknown = server.post("/api/dwellers/1/act", new_name(), json={"action": "dig"}, user="nobody")
    assert_problem(unknown, 401, "unauthorized")


@pytest.mark.parametrize("framework", few("starlette", of=tuple(MAKERS)))
def test_the_demo_runs_from_the_command_line(tmp_path: Path, framework: str) -> None:
    command = [sys.executable, "-m", "examples.demo", framework, "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the demo ended before it listened"
            found = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
        headers = {"Authorization": "Bearer ada-token", "Idempotency-Key": "1"}
        acts = [httpx.post(f"{found[1]}/api/dwellers/1/act", headers=headers, json={"action": "dig"}) for _ in range(2)]
        process.terminate()
        process.communicate(timeout=20)

    assert [act.status_code for act in acts] == [200, 200]
    assert acts[0].content == acts[1].content
    assert is_replay(acts[1])
