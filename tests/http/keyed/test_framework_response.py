"""Status, headers and body of a response of any framework; an incomplete one is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import flask
import litestar
import litestar.response
import pydantic
import pytest
import quart
from django.http import FileResponse as DjangoFile
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from litestar.datastructures import Cookie
from starlette import responses as starlette

from onceward.errors import InvalidOption
from onceward.http.keyed.framework_response import from_framework

HERE = __file__


def lines(answer: Any) -> list[tuple[bytes, bytes]]:
    return sorted(answer.headers)


@pytest.fixture(autouse=True)
def inside_flask() -> Iterator[None]:
    with flask.Flask("shop").test_request_context():
        yield


class Receipt(pydantic.BaseModel):
    number: int
    status_code: int = 5


class Pieces:
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"piece"


def starlette_one() -> Any:
    made = starlette.JSONResponse({"a": 1}, 201, {"X-Total": "3"})
    made.set_cookie("session", "s")
    return made


def flask_one() -> Any:
    made = flask.make_response(b'{"a":1}', 201, {"X-Total": "3", "Content-Type": "application/json"})
    made.set_cookie("session", "s")
    return made


def django_one() -> Any:
    made = HttpResponse(b'{"a":1}', status=201, content_type="application/json", headers={"X-Total": "3"})
    made.set_cookie("session", "s")
    return made


def litestar_one() -> Any:
    return litestar.Response(
        {"a": 1}, status_code=201, headers={"X-Total": "3"}, cookies=[Cookie("session", value="s")]
    )


@pytest.mark.parametrize("make", [starlette_one, flask_one, django_one, litestar_one])
def test_every_frameworks_response_is_converted_alike(make: Any) -> None:
    answer = from_framework(make())

    assert (answer.status, answer.body) == (201, b'{"a":1}')
    headers = dict(answer.headers)
    assert headers.pop(b"set-cookie").startswith(b"session=s; ")
    assert headers == {b"content-type": b"application/json", b"x-total": b"3", b"content-length": b"7"}


@pytest.mark.parametrize(
    ("make", "status", "body", "kind"),
    [
        (lambda: starlette.PlainTextResponse("hö"), 200, "hö".encode(), b"text/plain; charset=utf-8"),
        (lambda: starlette.Response(memoryview(b"x")), 200, b"x", None),
        (lambda: flask.Response(iter(["a", "b"])), 200, b"ab", b"text/html; charset=utf-8"),
        (lambda: flask.jsonify(a=1), 200, b'{"a":1}\n', b"application/json"),
        (lambda: JsonResponse({"a": 1}), 200, b'{"a": 1}', b"application/json"),
        (lambda: SimpleTemplateResponse(engines["django"].from_string("hi {{ who }}"), {"who": "ann"}), 200, b"hi ann",
         b"text/html; charset=utf-8"),
        (lambda: litestar.Response("hi", status_code=200, media_type="text/plain"), 200, b"hi",
         b"text/plain; charset=utf-8"),
        (lambda: litestar.Response(b"\x00", status_code=200, media_type="image/png"), 200, b"\x00", b"image/png"),
    ],
)  # fmt: skip
def test_bodies_and_types_are_the_frameworks_own(make: Any, status: int, body: bytes, kind: bytes | None) -> None:
    answer = from_framework(make())

    assert (answer.status, answer.body) == (status, body)
    assert dict(answer.headers).get(b"content-type") == kind
    assert dict(answer.headers)[b"content-length"] == str(len(body)).encode()


@pytest.mark.parametrize(
    "make",
    [
        lambda: starlette.RedirectResponse("/next", 303),
        lambda: flask.redirect("/next", 303),
        lambda: HttpResponseRedirect("/next", status=303),
        lambda: litestar.response.Redirect("/next", status_code=303),
    ],
    ids=["starlette", "flask", "django", "litestar"],
)
def test_a_redirect_keeps_its_location(make: Any) -> None:
    answer = from_framework(make())

    assert answer.status == 303
    assert dict(answer.headers)[b"location"] == b"/next"


@pytest.mark.parametrize(
    "make",
    [
        lambda: starlette.Response(status_code=204),
        lambda: flask.Response(status=204),
        lambda: litestar.Response(None, status_code=204),
        lambda: (204, {}, None),
        lambda: (204, {}, b""),
    ],
    ids=["starlette", "flask", "litestar", "tuple", "bytes"],
)
def test_a_no_content_response_has_no_body_and_no_content_length(make: Any) -> None:
    answer = from_framework(make())

    assert (answer.status, answer.body) == (204, b"")
    assert b"content-length" not in dict(answer.headers)


# Without a framework.


@pytest.mark.parametrize(
    ("body", "data", "kind"),
    [
        ("hö", "hö".encode(), b"text/plain; charset=utf-8"),
        (b"\x00\x01", b"\x00\x01", b"application/octet-stream"),
        (bytearray(b"x"), b"x", b"application/octet-stream"),
        ({"a": [1, None]}, b'{"a": [1, null]}', b"application/json"),
        ([], b"[]", b"application/json"),
        (None, b"null", b"application/json"),
        (Receipt(number=1), b'{"number": 1, "status_code": 5}', b"application/json"),
    ],
    ids=repr,
)
def test_a_plain_value_is_sent_with_its_own_media_type(body: object, data: bytes, kind: bytes) -> None:
    expected = [(b"content-length", str(len(data)).encode()), (b"content-type", kind)]

    bare, with_status = from_framework(body), from_framework((201, {}, body))

    assert (bare.status, bare.body, lines(bare)) == (200, data, expected)
    assert (with_status.status, with_status.body, lines(with_status)) == (201, data, expected)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/csv", "X-A": "1"},
        [("content-type", "text/csv"), (b"X-A", b"1")],
        [["CONTENT-TYPE", "text/csv"], ["x-a", 1]],
    ],
    ids=["dict", "pairs", "lists"],
)
def test_headers_may_be_given_in_any_form(headers: Any) -> None:
    answer = from_framework((200, headers, "a,b"))

    assert lines(answer) == [(b"content-length", b"3"), (b"content-type", b"text/csv"), (b"x-a", b"1")]
    assert hash(answer.headers), "it is remembered by its headers"


def test_a_header_may_occur_twice() -> None:
    answer = from_framework((200, [("link", "</a>"), ("link", "</b>")], b""))

    assert [value for name, value in answer.headers if name == b"link"] == [b"</a>", b"</b>"]


def test_a_list_of_three_is_a_value_and_not_a_response_tuple() -> None:
    assert json.loads(from_framework(["a", "b", "c"]).body) == ["a", "b", "c"]
    assert json.loads(from_framework(("a", "b", "c")).body) == ["a", "b", "c"]


# Bodies that cannot be stored.


@dataclass
class Plain:
    number: int


def passing_through() -> Any:
    made = flask.Response(b"x")
    made.direct_passthrough = True
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda: starlette.StreamingResponse(Pieces()),
        lambda: starlette.FileResponse(HERE),
        passing_through,
        lambda: StreamingHttpResponse(iter([b"piece"])),
        lambda: litestar.response.Stream(Pieces(), status_code=200),
        lambda: litestar.response.File(HERE, status_code=200),
        lambda: litestar.response.Template("page.html", status_code=200),
    ],
    ids=[
        "starlette-stream",
        "starlette-file",
        "flask",
        "django",
        "litestar-stream",
        "litestar-file",
        "litestar-template",
    ],
)
def test_a_body_that_is_not_complete_in_memory_is_refused(make: Any) -> None:
    with pytest.raises(InvalidOption, match=r"bound.settle\(\) cannot take a \w+"):
        from_framework(make())


def test_a_django_file_is_refused() -> None:
    with open(HERE, "rb") as file, pytest.raises(InvalidOption, match="FileResponse"):  # noqa: PTH123
        from_framework(DjangoFile(file))


def test_a_litestar_response_must_have_a_status() -> None:
    """Litestar would choose it later, by the method, so the stored status could differ from the sent one."""
    with pytest.raises(InvalidOption, match="status_code"):
        from_framework(litestar.Response({"a": 1}))


def test_a_quart_response_is_refused_because_its_body_has_to_be_awaited() -> None:
    async def main() -> None:
        async with quart.Quart("shop").app_context():
            with pytest.raises(InvalidOption, match=r"tuple \(status, headers, body\)"):
                from_framework(quart.Response("hi", status=201))

    asyncio.run(main())


@pytest.mark.parametrize(
    "value", [{1, 2}, Plain(1), object(), (200, {}, {1})], ids=["set", "dataclass", "object", "tuple"]
)
def test_a_value_without_a_json_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match="JSON"):
        from_framework(value)
