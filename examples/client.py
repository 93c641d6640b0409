"""A client that retries safely: the connection breaks after the payment, the client dies, and it pays once."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceward import IdempotencyMiddleware
from onceward.http.client import Intents, RetryTransport

charged: list[int] = []


async def pay(request: Request) -> JSONResponse:
    charged.append((await request.json())["amount"])  # call the payment provider here
    return JSONResponse({"payment": len(charged), "amount": charged[-1]}, 201)


class BadLine:
    """Middleware that loses the body of the first response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.broken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lost = scope["type"] == "http" and not self.broken
        self.broken = self.broken or lost

        async def send_some(message: Message) -> None:
            if not lost or message["type"] != "http.response.body":
                await send(message)

        await self.app(scope, receive, send_some)


@contextlib.contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def main(folder: Path) -> None:
    app = Starlette(
        routes=[Route("/payments", pay, methods=["POST"])],
        middleware=[Middleware(BadLine), Middleware(IdempotencyMiddleware, store=f"sqlite:///{folder / 'keys.db'}")],
    )
    with serving(app) as url, httpx.Client(transport=RetryTransport(), base_url=url) as client:
        # The transport adds the key, and sends the request again when the response is incomplete.
        response = client.post("/payments", json={"amount": 10})
        print("tries:", response.extensions["tries"])
        replayed = "replayed" if "Idempotent-Replayed" in response.headers else "fresh"
        print("response:", response.status_code, response.json(), replayed)

        # An intent stores its key in a file, for a client that dies before it has used the response.
        intents = Intents(folder / "intents.db")
        for life in ("first life:", "second life:"):
            with contextlib.suppress(SystemExit), intents.until_done("pay order 43") as key:
                response = client.post("/payments", json={"amount": 20}, headers={"Idempotency-Key": key})
                print(life, response.json())
                if life == "first life:":
                    raise SystemExit("the power fails before the response is stored")
        print("unfinished:", intents.unfinished())
    print("charged:", charged)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder))
