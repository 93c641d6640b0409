"""Quart: the ASGI middleware wraps `app.asgi_app`."""

import asyncio

from quart import Quart, request

from onceward import IdempotencyMiddleware

app = Quart(__name__)
app.asgi_app = IdempotencyMiddleware(app.asgi_app, store="sqlite:///keys.db")  # type: ignore[method-assign]
charged: list[int] = []


@app.post("/payments")
async def pay() -> tuple[dict[str, int], int]:
    charged.append((await request.get_json())["amount"])  # call the payment provider here
    return {"payment": len(charged), "amount": charged[-1]}, 201


async def main() -> None:
    async with app.test_app() as running:
        client = running.test_client()
        for name in ("first:", "again:"):
            response = await client.post("/payments", json={"amount": 10}, headers={"Idempotency-Key": "order-42"})
            replayed = "replayed" if "Idempotent-Replayed" in response.headers else "fresh"
            print(name, response.status_code, await response.get_json(), replayed)
    print("charged:", len(charged))


if __name__ == "__main__":
    asyncio.run(main())
