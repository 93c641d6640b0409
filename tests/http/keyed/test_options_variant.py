"""`variant=`: an addition to the fingerprint of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.http import wsgi_server
from tests.http.asgi_server import protected, reply, run, send_request

from onceward.errors import InvalidOption
from onceward.http import WSGIIdempotencyMiddleware
from onceward.http.asgi_types import Receive, Send
from onceward.http.request.headers import fingerprint_of
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore


async def tea(scope: Any, _receive: Receive, send: Send) -> None:
    await reply(send, scope["place"].encode())


def coffee(_environ: wsgi_server.Environ, start_response: wsgi_server.Start) -> Iterable[bytes]:
    start_response("201 Created", list(wsgi_server.TEXT))
    return [b"coffee"]


def test_the_same_request_with_another_variant_is_refused_under_the_same_key() -> None:
    async def main() -> list[int]:
        with protected(tea, variant=lambda scope: scope["place"]) as app:
            places = ("shop", "garden", "shop")
            return [(await send_request(app, place=place)).status for place in places]

    assert run(main()) == [201, 422, 201]


def test_a_variant_of_none_changes_nothing() -> None:
    """None and an empty text are different variants."""
    request = ("POST", b"/", b"", "", b"")
    variants: list[str | None] = []

    assert fingerprint_of(*request, None) == fingerprint_of(*request)
    assert fingerprint_of(*request, b"") != fingerprint_of(*request)
    with Ledger(MemoryStore()) as ledger:
        app = WSGIIdempotencyMiddleware(coffee, ledger, variant=lambda _: variants.pop())
        variants += ["\ud800", "", None]
        first = wsgi_server.send_request(app)
        plain = wsgi_server.send_request(WSGIIdempotencyMiddleware(coffee, ledger))
        statuses = [wsgi_server.send_request(app).status for _ in range(2)]

    assert (first.status, plain.status, plain.replayed) == (201, 201, True)
    assert statuses == [422, 422]


def test_under_wsgi_the_same_request_with_another_variant_is_refused() -> None:
    with Ledger(MemoryStore()) as ledger:
        app = WSGIIdempotencyMiddleware(coffee, ledger, variant=lambda environ: environ["HTTP_X_PLACE"])
        places = ("shop", "garden", "shop")

        assert [wsgi_server.send_request(app, environ={"HTTP_X_PLACE": place}).status for place in places] == [
            201,
            422,
            201,
        ]


def test_the_variant_of_a_request_without_a_key_is_not_computed() -> None:
    def never(_scope: Any) -> str:
        raise AssertionError("nobody needs to know")

    async def main() -> int:
        with protected(tea, variant=never) as app:
            return (await send_request(app, key=None, place="shop")).status

    assert run(main()) == 201


@pytest.mark.parametrize("variants", [5, b"shop", asyncio.Event()], ids=["number", "bytes", "object"])
def test_a_variant_that_is_not_text_is_refused(variants: object) -> None:
    async def main(variant: Callable[[Any], Any]) -> None:
        with protected(tea, variant=variant) as app:
            await send_request(app, place="shop")

    with pytest.raises(InvalidOption, match="variant= must return a string or None"):
        run(main(lambda _: variants))
