"""Strict JSON over a FastAPI application: limits, media types, and responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, FastAPI, Form
from pydantic import BaseModel, ConfigDict
from tests.hub.asgi_client import JSON, AsgiResponse, Headers, request, send_request

from onceward.hub.web import problems
from onceward.hub.web.json_body import StrictRoute


class Note(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    title: str
    count: int = 0


def application(**state: Any) -> FastAPI:
    app = FastAPI()
    router = APIRouter(prefix="/api", route_class=StrictRoute)
    app.state.seen = []

    @router.post("/notes")
    def note(note: Note) -> dict[str, Any]:
        app.state.seen.append(note)
        return {"title": note.title}

    @router.post("/maybe")
    def maybe(given: Annotated[dict[str, Any] | None, Body()] = None) -> dict[str, Any]:
        return {"given": given}

    @router.post("/form")
    def form(name: Annotated[str, Form()]) -> dict[str, str]:
        return {"name": name}

    @router.post("/nothing")
    def nothing() -> dict[str, str]:
        return {}

    app.include_router(router)
    problems.install(app)
    for name, value in state.items():
        setattr(app.state, name, value)
    return app


def post(app: FastAPI, path: str, body: bytes | Iterable[bytes], headers: Headers = JSON) -> AsgiResponse:
    pieces = [body] if isinstance(body, bytes) else body
    parts = ({"type": "http.request", "body": piece, "more_body": True} for piece in pieces)

    def messages() -> Iterator[dict[str, Any]]:
        yield from parts
        yield {"type": "http.request", "body": b"", "more_body": False}

    return send_request(app, request("POST", path, headers), messages())


def content_type(media_type: str) -> Headers:
    return ((b"content-type", media_type.encode()),)


def test_a_valid_body_reaches_the_handler() -> None:
    answer = post(application(), "/api/notes", '{"title": "é"}'.encode())

    assert (answer.status, answer.json) == (200, {"title": "é"})


@pytest.mark.parametrize(
    "body",
    [b'{"title":"a","title":"b"}', b'{"title":"\\u0000"}', b'{"title":"a","count":NaN}', b"", b"[" * 100 + b"]" * 100],
    ids=["twice", "nul", "nan", "empty", "deep"],
)
def test_an_invalid_body_is_a_problem_and_the_handler_does_not_run(body: bytes) -> None:
    app = application()
    answer = post(app, "/api/notes", body)

    assert (answer.status, answer.code) == (400, "badRequest")
    assert answer.json["detail"].startswith("the body ")
    assert app.state.seen == []


@pytest.mark.parametrize(
    "headers",
    [
        content_type("text/plain"),
        content_type("application/x-www-form-urlencoded"),
        content_type("multipart/form-data; boundary=x"),
        content_type("text/x+json"),
        content_type("application/jsonx"),
        content_type(""),
        (),
        (*JSON, (b"content-encoding", b"gzip")),
    ],
    ids=["text", "form", "multipart", "other+json", "jsonx", "blank", "none", "compressed"],
)
def test_a_body_whose_type_is_not_json_is_415(headers: Headers) -> None:
    """A page of another site can send a body without a type, or as text, without a preflight request."""
    app = application()
    answer = post(app, "/api/notes", b'{"title":"a"}', headers)

    assert (answer.status, answer.code) == (415, "unsupportedMediaType")
    assert app.state.seen == []


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON", "application/merge-patch+json"]
)
def test_json_under_its_other_type_names_is_read(media_type: str) -> None:
    assert post(application(), "/api/notes", b'{"title":"a"}', content_type(media_type)).status == 200


def test_a_body_over_the_limit_is_413_and_one_at_the_limit_is_not() -> None:
    app = application(max_body_bytes=20)
    fits, over = b'{"title":"%s"}' % (b"x" * 8), b'{"title":"%s"}' % (b"x" * 9)
    assert len(fits) == 20

    good = post(app, "/api/notes", [fits[:7], fits[7:]])
    bad = post(app, "/api/notes", [over[:7], over[7:]])

    assert good.status == 200
    assert (bad.status, bad.code) == (413, "payloadTooLarge")
    assert "20 bytes" in bad.json["detail"]


def test_a_longer_body_is_accepted_only_where_the_application_allows_it() -> None:
    app = application(max_body_bytes=20, max_body_bytes_at={"/api/notes": 40})
    statuses = [
        post(app, path, b'{"title":"' + b"x" * size + b'"}').status
        for path, size in (("/api/notes", 28), ("/api/notes", 29), ("/api/maybe", 9))
    ]

    assert statuses == [200, 413, 413]


def test_a_body_that_is_too_large_is_not_read_to_its_end() -> None:
    answer = post(application(max_body_bytes=10_000), "/api/notes", (b" " * 1000 for _ in range(1000)))

    assert answer.status == 413
    assert answer.taken == 11


def test_a_body_with_a_content_length_over_the_limit_is_not_read_at_all() -> None:
    answer = post(application(max_body_bytes=10), "/api/notes", b"{}", (*JSON, (b"content-length", b"11")))

    assert answer.status == 413
    assert answer.taken == 0


def test_an_optional_body_may_be_missing() -> None:
    app = application()

    assert post(app, "/api/maybe", b"", ()).json == {"given": None}
    assert post(app, "/api/maybe", b'{"a":1}').json == {"given": {"a": 1}}
    assert post(app, "/api/maybe", b'{"a":1,"a":1}').status == 400
    assert post(app, "/api/maybe", b"{}", content_type("text/plain")).status == 415


def test_forms_and_routes_without_a_body_are_unaffected() -> None:
    app = application()

    assert post(app, "/api/nothing", b"not json", ()).status == 200
    assert post(app, "/api/form", b"name=a", content_type("application/x-www-form-urlencoded")).json == {"name": "a"}
