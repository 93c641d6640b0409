"""An operator gives the response of an HTTP claim in doubt, and the client's retry gets exactly that."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.cli.conftest import Onceward
from tests.hub.in_process_hub import Client, in_process_hub
from tests.hub.tasks_hub import problem

from onceward.http import IdempotencyMiddleware, idempotent
from onceward.hub.config.config import Config, HubSettings, IdempotencySettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate

SCOPE, KEY = "http:anonymous", "a-key-that-is-longer-than-twenty"
RESOLVE = "/api/v1/claims/resolve"
SECRET = os.urandom(32)


class Shop:
    """An application with a handler that fails in the middle, so that its claim is in doubt."""

    def __init__(self, url: str, keys: tuple[bytes, ...]) -> None:
        self.charges = 0
        app = Starlette(
            routes=[Route("/pay", self._pay, methods=["POST"]), Route("/note", self._note, methods=["POST"])]
        )
        self._app = IdempotencyMiddleware(app, store=url, namespace="shop", encryption_keys=list(keys))
        self.url = url

    @staticmethod
    async def _note(request: Request) -> Response:
        return Response("noted" if request.query_params.get("times") is None else "n" * 100_000, 201)

    @idempotent(on_crash="hold")
    async def _pay(self, _request: Request) -> Response:
        self.charges += 1
        return Response("the line broke", 502)

    def post(self, path: str = "/pay", key: str = KEY) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.post(path, headers={"Idempotency-Key": key}, content=b"{}")

        return asyncio.run(ask())

    def close(self) -> None:
        """End the background job, which would log in other tests when the file is gone."""
        self._app._admission.close()


@pytest.fixture(params=["plain", "encrypted"])
def keys(request: pytest.FixtureRequest) -> tuple[bytes, ...]:
    return (SECRET,) if request.param == "encrypted" else ()


@pytest.fixture
def shop(tmp_path: Path, keys: tuple[bytes, ...]) -> Iterator[Shop]:
    with closing(Shop(f"sqlite:///{tmp_path}/shop.db", keys)) as shop:
        assert shop.post().status_code == 502
        assert shop.post().json()["code"] == "in-doubt"
        yield shop


@pytest.fixture
def client(tmp_path: Path, shop: Shop, keys: tuple[bytes, ...]) -> Iterator[Client]:
    """A hub on the ledger of the shop."""
    settings = IdempotencySettings(key_prefix="shop", encryption_keys=keys)
    config = Config(HubSettings(data_dir=str(tmp_path), ledger=shop.url), settings)
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    with in_process_hub(config) as client:
        yield client


def version(client: Client) -> int:
    return int(client.get("/api/v1/claims/show", params={"scope": SCOPE, "key": KEY}).json()["version"])


def resolution(**more: Any) -> dict[str, Any]:
    return {"scope": SCOPE, "key": KEY, "version": 1, "verdict": "committed", "reason": "journal", **more}


BODY = b"\x00paid \xff\r\n"
HEADERS = {"Content-Type": "application/x-paid", "X-Charge": ["ch_1", "ch_2"], "Location": "/charges/1"}


def test_a_retry_gets_the_given_response_byte_for_byte(client: Client, shop: Shop) -> None:
    response = {"status": 201, "headers": HEADERS, "body_base64": base64.b64encode(BODY).decode()}
    done = client.post(RESOLVE, json=resolution(version=version(client), response=response))
    retried = shop.post()

    assert done.status_code == 200, done.text
    assert (done.json()["status"], done.json()["outcome"]["code"]) == ("completed", 201)
    assert done.json()["outcome"]["bytes"] == len(BODY)
    assert (retried.status_code, retried.content) == (201, BODY)
    assert retried.headers["Idempotent-Replayed"] == "true"
    assert retried.headers.get_list("X-Charge") == ["ch_1", "ch_2"]
    assert (retried.headers["Content-Type"], retried.headers["Location"]) == ("application/x-paid", "/charges/1")
    assert retried.headers["Content-Length"] == str(len(BODY))
    assert shop.charges == 1


@pytest.mark.parametrize(
    ("arguments", "stdin", "status", "body"),
    [
        (("--status", "201", "--body", "päid"), b"", 201, "päid".encode()),
        (("--status", "200", "--body", "@body"), b"", 200, BODY),
        (("--status", "200", "--body", "-"), BODY, 200, BODY),
        (("--status", "204"), b"", 204, b""),
        (("--status", "404", "--header", "Content-Length: 0"), b"", 404, b""),
    ],
    ids=["text", "file", "stdin", "no-content", "empty"],
)
def test_the_command_can_write_a_response_directly_to_the_ledger(
    shop: Shop,
    keys: tuple[bytes, ...],
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    stdin: bytes,
    status: int,
    body: bytes,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("body").write_bytes(BODY)
    monkeypatch.setenv(
        "ONCEWARD_IDEMPOTENCY__ENCRYPTION_KEYS", ",".join(base64.b64encode(key).decode() for key in keys)
    )
    onceward = Onceward(["--ledger", shop.url, "--namespace", "shop"], tmp_path, capsysbinary, monkeypatch)
    seen = str(onceward.json("claims", "show", SCOPE, KEY)["version"])
    # The key as the log shows it.
    resolve = ("claims", "resolve", SCOPE, KEY[:20] + "...", "--version", seen, "--committed", "--reason", "r")
    done = onceward(*resolve, "--header", "X-A: b: c", *arguments, "--json", stdin=stdin)
    retried = shop.post()

    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["key"] == KEY
    assert (retried.status_code, retried.content) == (status, body)
    assert (retried.headers["X-A"], retried.headers["Idempotent-Replayed"]) == ("b: c", "true")
    assert retried.headers.get("Content-Length") == (None if status == 204 else str(len(body)))
    assert shop.charges == 1


def test_the_hub_keeps_its_own_responses_encrypted_too(client: Client, shop: Shop, keys: tuple[bytes, ...]) -> None:
    first, again = (
        client.post("/api/v1/topics", json={"title": "Secret plans"}, headers={"Idempotency-Key": "k"})
        for _ in range(2)
    )
    stored = b"".join(path.read_bytes() for path in Path(shop.url.removeprefix("sqlite:///")).parent.glob("shop.db*"))

    assert (first.status_code, again.content) == (201, first.content)
    assert (b"Secret plans" in stored) is not bool(keys)
    shown = client.get("/api/v1/claims/show", params={"scope": "http:user:local", "key": "k"}).json()
    assert shown["outcome"] == {"code": 201, "bytes": len(first.content), "value": first.text}


def test_a_large_stored_response_is_shown_without_the_record_of_its_head(
    client: Client, shop: Shop, keys: tuple[bytes, ...]
) -> None:
    assert len(shop.post("/note?times=many", "large").content) == 100_000
    shown = client.get("/api/v1/claims/show", params={"scope": SCOPE, "key": "large"}).json()

    assert shown["outcome"] == {"code": 201, "bytes": None if keys else 100_000}


OK = {"status": 200}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a value": ({"value": 1}, "value"),
    "both": ({"value": 1, "response": OK}, "response"),
    "not committed": ({"verdict": "not_committed", "response": OK}, "response"),
    "a status that is none": ({"response": {"status": 99}}, "response.status"),
    "a status without a response": ({"response": {"status": 100}}, "response.status"),
    "a server error": ({"response": {"status": 500}}, "response.status"),
    "a status to retry on": ({"response": {"status": 429}}, "response.status"),
    "no status": ({"response": {}}, "response.status"),
    "a cookie": ({"response": {**OK, "headers": {"Set-Cookie": "a=b"}}}, "response.headers"),
    "hop by hop": ({"response": {**OK, "headers": {"Transfer-Encoding": "chunked"}}}, "response.headers"),
    "another length": ({"response": {**OK, "headers": {"content-length": "3"}, "body": "four"}}, "response.headers"),
    "two lengths": ({"response": {**OK, "headers": {"Content-Length": ["0", "0"]}}}, "response.headers"),
    "a line break": ({"response": {**OK, "headers": {"A": "b\r\nc: d"}}}, "response.headers"),
    "not a name": ({"response": {**OK, "headers": {"A B": "c"}}}, "response.headers"),
    "not a header's text": ({"response": {**OK, "headers": {"A": "€"}}}, "response.headers"),
    "too many headers": ({"response": {**OK, "headers": {"A": ["b" * 8000] * 9}}}, "response.headers"),
    "a body of 204": ({"response": {"status": 204, "body": "x"}}, "response.body"),
    "a length of 204": ({"response": {"status": 204, "headers": {"Content-Length": "0"}}}, "response.headers"),
    "two bodies": ({"response": {**OK, "body": "x", "body_base64": ""}}, "response.body"),
    "not base64": ({"response": {**OK, "body_base64": "%"}}, "response.body_base64"),
    "too large": ({"response": {**OK, "body": "x" * 65_537}}, "response.body"),
    "another field": ({"response": {**OK, "colour": "red"}}, "response.colour"),
}


def test_a_response_that_cannot_be_replayed_is_refused_and_nothing_is_written(client: Client, shop: Shop) -> None:
    seen = version(client)
    for name, (more, field) in REFUSED.items():
        refusal = problem(client.post(RESOLVE, json=resolution(version=seen, **more)), 400)
        assert field in {error["field"] for error in refusal["errors"]}, (name, refusal)
    plain = problem(client.post(RESOLVE, json=resolution(scope="call", response=OK)), 400)
    assert [error["field"] for error in plain["errors"]] == ["response"]

    assert shop.post().json()["code"] == "in-doubt"
    assert version(client) == seen


def test_without_a_response_the_retry_learns_only_that_it_happened(client: Client, shop: Shop) -> None:
    done = client.post(RESOLVE, json=resolution(version=version(client)))
    retried = shop.post()

    assert (done.status_code, done.json()["outcome"]["bytes"]) == (200, None)
    assert (retried.status_code, retried.json()["code"], shop.charges) == (409, "outcome-not-kept", 1)


def test_a_response_is_not_written_if_stored_responses_cannot_be_read(
    shop: Shop,
    keys: tuple[bytes, ...],
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator does not have the application's keys, and would write a response that it refuses with 409."""
    assert shop.post("/note", "another").status_code == 201
    others = "" if keys else base64.b64encode(SECRET).decode()
    monkeypatch.setenv("ONCEWARD_IDEMPOTENCY__ENCRYPTION_KEYS", others)
    onceward = Onceward(["--ledger", shop.url, "--namespace", "shop"], tmp_path, capsysbinary, monkeypatch)
    seen = str(onceward.json("claims", "show", SCOPE, KEY)["version"])
    resolve = ("claims", "resolve", SCOPE, KEY, "--version", seen, "--committed", "--reason", "r", "--status", "200")
    done = onceward(*resolve)

    assert (done.code, "Set idempotency.encryption_keys" in done.err) == (2, True)
    assert shop.post().json()["code"] == "in-doubt"


def test_a_shortened_key_must_match_one_claim(client: Client, shop: Shop) -> None:
    seen = version(client)
    twin = f"{KEY}-twin"
    assert shop.post(key=twin).status_code == 502
    cut = resolution(key=KEY[:20] + "...", version=seen, verdict="not_committed")

    assert problem(client.post(RESOLVE, json={**cut, "version": seen + 99}), 404)
    assert problem(client.post(RESOLVE, json={**cut, "key": "another-key-that-is-..."}), 404)
    assert problem(client.post(RESOLVE, json={**cut, "key": "another..."}), 404)
    assert "give the whole key" in problem(client.post(RESOLVE, json=cut), 409)["detail"]
    assert client.post(RESOLVE, json={**cut, "key": twin}).status_code == 200
    assert client.post(RESOLVE, json=cut).json()["key"] == KEY
