"""FastAPI: one line protects every POST, PUT and PATCH that carries an `Idempotency-Key`."""

import asyncio

import httpx
from fastapi import Body, FastAPI

from onceward import IdempotencyMiddleware

app = FastAPI()
app.add_middleware(IdempotencyMiddleware, store="sqlite:///keys.db")
charged: list[int] = []


@app.post("/payments", status_code=201)
def pay(order: dict[str, int] = Body()) -> dict[str, int]:  # noqa: B008, FAST002  # FastAPI reads it
    charged.append(order["amount"])  # call the payment provider here
    return {"payment": len(charged), "amount": charged[-1]}


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        for name in ("first:", "again:"):
            response = await client.post("/payments", json={"amount": 10}, headers={"Idempotency-Key": "order-42"})
            print(name, response.status_code, response.json(), response.headers.get("Idempotent-Replayed", "fresh"))
    print("charged:", len(charged))


if __name__ == "__main__":
    asyncio.run(main())
