"""Forms: bounded, url-encoded, and with the line breaks of our own texts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from onceward.errors import InvalidInput, TooLarge
from onceward.hub.console.forms import FORM_BYTES_MAX, Form, read_form


def form_of(body: bytes, media_type: str = "application/x-www-form-urlencoded") -> Form:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", media_type.encode())]
    return asyncio.run(read_form(Request({"type": "http", "method": "POST", "headers": headers}, receive)))


def test_fields_are_read_with_all_their_values_and_plain_line_breaks() -> None:
    form = form_of(b"a=1&a=2&b=x%0D%0Ay&c=+z+&d=%C3%A4")

    assert form.all("a") == ["1", "2"]
    assert (form.raw("b"), form.text("c"), form.raw("c"), form.text("d"), form.text("no")) == (
        "x\ny",
        "z",
        " z ",
        "\u00e4",
        "",
    )
    assert form.number("a") == 1


@pytest.mark.parametrize("body", [b"a=%FF", b"a=\xff", b"a=%00"])
def test_a_form_that_is_not_text_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        form_of(body)


def test_a_large_form_and_another_media_type_are_refused() -> None:
    with pytest.raises(TooLarge):
        form_of(b"a=" + b"x" * FORM_BYTES_MAX)
    with pytest.raises(HTTPException) as refused:
        form_of(b"{}", "application/json")
    assert refused.value.status_code == 415


def test_a_number_is_whole_and_has_a_bounded_length() -> None:
    for text in ("", "-1", "1.5", "x", "9" * 19, "\u0661"):
        with pytest.raises(InvalidInput):
            Form({"n": [text]}).number("n")
