"""No keyed request breaks the middleware: never a 500, and a refused request leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import schemathesis
from examples.demo import fastapi_app
from examples.demo.world import World
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from onceward.http import IdempotencyMiddleware, Rule, idempotency
from onceward.http.openapi import document_idempotency
from onceward.store.memory import MemoryStore

KEY_CHARACTERS = "".join(map(chr, range(0x21, 0x7F)))
# Few, so that they meet again: replays, duplicates and other requests under a used key.
FEW_KEYS = ["a", "b", '"a"']
fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class EchoResponse(NamedTuple):
    """A complete response."""

    status: int
    content_type: str
    body: bytes
    replayed: bool


class EchoServer:
    """The middleware before an application that echoes its request, called as a server calls it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.runs = 0
        self._runner = asyncio.Runner()
        rules = {"/fields": Rule(fields=("a", "b.c")), "/digest": Rule(digest=True), "/hold": Rule(on_crash="hold")}
        self._app = IdempotencyMiddleware(
            self._echo, self.store, rules=rules, max_body_bytes=1000, metrics=False, purge_seconds=0.0
        )

    async def _echo(self, scope: Any, receive: Any, send: Any) -> None:
        assert idempotency(scope).key is not None
        self.runs += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the body never ended")
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": body})

    def send_request(
        self, path: str, headers: list[tuple[bytes, bytes]], pieces: list[bytes], query: bytes = b""
    ) -> EchoResponse:
        return self._runner.run(self._send_request(path, headers, pieces, query))

    async def _send_request(
        self, path: str, headers: list[tuple[bytes, bytes]], pieces: list[bytes], query: bytes
    ) -> EchoResponse:
        pieces = list(pieces) or [b""]
        sent: list[Any] = []

        async def receive() -> Any:
            if not pieces:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "query_string": query, "headers": headers}
        await asyncio.wait_for(self._app(scope, receive, send), timeout=20.0)
        assert [message["type"] for message in sent[:2]] == ["http.response.start", "http.response.body"]
        assert not sent[-1].get("more_body", False)
        lines = {name.lower(): value for name, value in sent[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in sent[1:])
        kind = lines.get(b"content-type", b"").decode()
        return EchoResponse(sent[0]["status"], kind, body, b"idempotent-replayed" in lines)

    def written(self) -> set[Any]:
        return {(entry.ref, entry.version, entry.status) for entry in self.store.scan(None, None, "", 500).entries}

    def close(self) -> None:
        self._app._admission.ledger.close()
        self._runner.close()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    echo = EchoServer()
    yield echo
    echo.close()


def assert_problem(response: EchoResponse, *statuses: int) -> None:
    assert response.status in statuses, response
    assert response.content_type == "application/problem+json"
    assert json.loads(response.body)["status"] == response.status


# The definition of a key, independent of the middleware.
BARE = re.compile(rb"[\x21\x23-\x7e][\x21-\x7e]{0,254}")
QUOTED = re.compile(rb'"((?:[\x21\x23-\x5b\x5d-\x7e]|\\["\\]){1,255})"')


def is_key(line: bytes) -> bool:
    text = line.strip(b" \t")
    return bool(BARE.fullmatch(text) or QUOTED.fullmatch(text))


lines_of_keys = st.one_of(
    st.binary(max_size=300),
    st.text(KEY_CHARACTERS, max_size=300).map(str.encode),
    st.text(KEY_CHARACTERS + ' "\\', max_size=20).map(lambda text: f'"{text}"'.encode()),
    st.sampled_from([b"", b" ", b'"', b'""', b'"a', b'a"', b'"a"b', b"\xff", b"k" * 255, b"k" * 256]),
)


@fuzzed
@given(line=lines_of_keys)
def test_a_malformed_key_is_always_refused_and_a_good_one_never(echo: EchoServer, line: bytes) -> None:
    before, runs = echo.written(), echo.runs

    response = echo.send_request("/", [(b"idempotency-key", line)], [])

    if is_key(line):
        assert response.status == 200
    else:
        assert_problem(response, 400)
        assert (echo.written(), echo.runs) == (before, runs)


@fuzzed
@given(
    lines=st.lists(st.tuples(st.sampled_from([b"idempotency-key", b"x-idempotency-key"]), lines_of_keys), min_size=2)
)
def test_several_keys_in_one_request_are_refused_unless_they_are_equal(
    echo: EchoServer, lines: list[tuple[bytes, bytes]]
) -> None:
    names = [name for name, _ in lines]

    response = echo.send_request("/", lines, [])

    if len(set(names)) < len(names) or not all(is_key(line) for _, line in lines):
        assert_problem(response, 400)
    else:
        assert response.status in {200, 400}


header_lines = st.tuples(
    st.sampled_from([
        b"content-type", b"content-length", b"content-digest", b"repr-digest", b"prefer", b"last-event-id",
        b"authorization", b"cookie", b"x-api-key", b"x-other", b"transfer-encoding", b"expect",
    ]),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([
            b"application/json", b"multipart/form-data; boundary=x", b"multipart/form-data", b"text/event-stream",
            b"wait=0", b"wait=1", b"wait=99999999999", b"sha-256=:AAAA:", b"sha-256=:" + b"A" * 44 + b":",
            b"1.1", b"999999999.999999999", b"10", b"-1", b"1e3", b"\xb2", b"9" * 5000, b"100-continue",
        ]),
    ),
)  # fmt: skip
bodies = st.one_of(
    st.binary(max_size=60),
    st.binary(min_size=900, max_size=1100),
    st.sampled_from([
        b"{", b"[]", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\\ud800"}', b'{"b": {"c": 1}}', b'{"a": 1, "a": 2}',
        b"[" * 990, b'{"a":' * 150, b"--x\r\n\r\nv\r\n--x--\r\n", b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n",
        b"\xff\xfe{", b'{"a": ' + b"9" * 900 + b"}",
    ]),
)  # fmt: skip


@settings(fuzzed, max_examples=400)
@given(
    path=st.sampled_from(["/", "/fields", "/digest", "/hold", "/\udcff", "/%2e%2e/\n"]),
    key=st.one_of(st.sampled_from(FEW_KEYS), st.uuids().map(str), st.uuids().map(str)),
    lines=st.lists(header_lines, max_size=5),
    body=bodies,
    cut=st.integers(0, 60),
    query=st.binary(max_size=10),
)
def test_no_request_breaks_the_middleware_and_a_refused_one_leaves_nothing(
    echo: EchoServer, path: str, key: str, lines: list[tuple[bytes, bytes]], body: bytes, cut: int, query: bytes
) -> None:
    headers = [(b"idempotency-key", key.encode()), *lines]
    pieces = [body[:cut], b"", body[cut:]]
    before, runs = echo.written(), echo.runs
    broken = False
    try:
        response = echo.send_request(path, headers, pieces, query)
    except ConnectionError:
        broken = True
    assert not broken, "the application's own error came through instead of an answer"

    if response.content_type == "application/problem+json":
        assert_problem(response, 400, 409, 413, 422)
        if response.status in {413, 422} or (response.status == 400 and echo.runs == runs):
            assert (echo.written(), echo.runs) == (before, runs)
    else:
        assert (response.status, response.body) == (200, body)
        again = echo.send_request(path, headers, pieces, query)
        assert (again.status, again.body, again.replayed) == (200, body, True)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("demo")
    store = f"sqlite:///{folder}/keys.db"
    app = fastapi_app.make_app(World(folder / "world.db"), store, metrics=False)
    document_idempotency(app)
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@settings(fuzzed, max_examples=50)
@given(data=st.data())
def test_the_demo_never_responds_500_to_anything_its_openapi_document_allows(demo: Any, data: st.DataObject) -> None:
    operations = [found.ok() for found in demo.get_all_operations()]
    operation = data.draw(st.sampled_from(operations))
    case = data.draw(operation.as_strategy())
    key = data.draw(st.one_of(st.sampled_from(FEW_KEYS), st.uuids().map(str), st.text(KEY_CHARACTERS, max_size=30)))
    token = data.draw(st.sampled_from(["ada-token", "bob-token", "nobody"]))
    headers = {"Idempotency-Key": key, "Authorization": f"Bearer {token}"}
    assume(case.headers is None or "Authorization" not in case.headers)

    first = case.call(headers=headers)
    again = case.call(headers=headers)

    for response in (first, again):
        assert response.status_code < 500, response.content
        if response.status_code in {400, 401, 404, 409, 422}:
            assert response.headers["content-type"][0] == "application/problem+json"
    checked = case.method.upper() in {"POST", "PUT", "PATCH"}
    if checked and first.status_code < 300:
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers["idempotent-replayed"] == ["true"]
