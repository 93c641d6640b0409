"""A small payment service, safe to retry: `make serve`, then

    curl -X POST http://127.0.0.1:8787/charge -d '{"order_id": "42", "amount": 10}'

as often as you like, at once or in turn: order 42 is charged once, and everyone gets the same receipt.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn

from onceward import Ledger, errors, open_ledger

PAGE = """Onceward example service

POST /charge {"order_id": "42", "amount": 10}   charge an order, once
GET  /charges                                  what was charged so far
"""
BODY_BYTES_MAX = 64 * 1024

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Service:
    """A plain ASGI application. The list of charges stands for the payment provider."""

    def __init__(self, ledger: Ledger, charges: Path) -> None:
        self.ledger = ledger
        self.charges = charges

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        match scope["method"], scope["path"]:
            case "GET", "/":
                await answer(send, 200, PAGE)
            case "GET", "/charges":
                text = self.charges.read_text("utf-8") if self.charges.exists() else ""
                await answer(send, 200, [json.loads(line) for line in text.splitlines()])
            case "POST", "/charge":
                await self.charge(await body(receive), send)
            case _:
                await problem(send, 404, "notFound", "there is POST /charge and GET /charges")

    async def charge(self, data: bytes | None, send: Send) -> None:
        order = parse(data)
        if isinstance(order, str):
            await problem(send, 400, "badRequest", order)
            return

        async def effect() -> dict[str, object]:
            await asyncio.sleep(0.2)  # a provider takes its time, so that a second request can race the first
            receipt = {**order, "receipt": uuid4().hex}
            with self.charges.open("a", encoding="utf-8") as file:
                file.write(json.dumps(receipt) + "\n")
            return receipt

        try:
            receipt = await self.ledger.run(
                f"charge:{order['order_id']}", effect, fingerprint=order, effect="irreversible"
            )
        except errors.KeyReused as error:
            await problem(send, 422, "unprocessable", str(error))
        except (errors.InDoubt, errors.Busy) as error:
            await problem(send, 409, error.code, str(error))
        except errors.InvalidKey as error:
            await problem(send, 400, "badRequest", str(error))
        except errors.StoreUnavailable as error:
            await problem(send, 503, "unavailable", str(error))
        else:
            await answer(send, 200, receipt)


def parse(data: bytes | None) -> dict[str, object] | str:
    """The order, or what is wrong with it."""
    if data is None:
        return f"the body is larger than {BODY_BYTES_MAX} bytes"
    try:
        order = json.loads(data)
    except ValueError as error:
        return f"the body is not JSON: {error}"
    if not isinstance(order, dict) or set(order) != {"order_id", "amount"}:
        return "the body is an object with order_id and amount"
    if not isinstance(order["order_id"], str) or not order["order_id"].strip():
        return "order_id is text, and not blank"
    if type(order["amount"]) is not int or order["amount"] <= 0:
        return "amount is a whole number above 0"
    return order


async def body(receive: Receive) -> bytes | None:
    data, more = b"", True
    while more:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
        if len(data) > BODY_BYTES_MAX:
            return None
    return data


async def answer(send: Send, status: int, content: object, media_type: str = "application/json") -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    kind = "text/plain; charset=utf-8" if isinstance(content, str) else media_type
    headers = [(b"content-type", kind.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def problem(send: Send, status: int, code: str, detail: str) -> None:
    content = {"type": f"urn:onceward:problem:{code}", "title": code, "status": status, "code": code, "detail": detail}
    await answer(send, status, content, "application/problem+json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8787, help="the port on 127.0.0.1 (default 8787)")
    parser.add_argument("--data-dir", type=Path, default=Path("onceward-data"), help="default ./onceward-data")
    options = parser.parse_args()
    options.data_dir.mkdir(parents=True, exist_ok=True)

    with open_ledger(f"sqlite:///{options.data_dir / 'ledger.db'}") as ledger, contextlib.suppress(KeyboardInterrupt):
        service = Service(ledger, options.data_dir / "charges.jsonl")
        print(
            f"onceward: serving the example on http://127.0.0.1:{options.port} (data in {options.data_dir})", flush=True
        )
        uvicorn.run(service, host="127.0.0.1", port=options.port, lifespan="off", log_level="info")


if __name__ == "__main__":
    main()
