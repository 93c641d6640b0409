"""Starlette: the middleware is added like any other."""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onceward import IdempotencyMiddleware

charged: list[int] = []


async def pay(request: Request) -> JSONResponse:
    charged.append((await request.json())["amount"])  # call the payment provider here
    return JSONResponse({"payment": len(charged), "amount": charged[-1]}, 201)


app = Starlette(
    routes=[Route("/payments", pay, methods=["POST"])],
    middleware=[Middleware(IdempotencyMiddleware, store="sqlite:///keys.db")],
)


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        for name in ("first:", "again:"):
            response = await client.post("/payments", json={"amount": 10}, headers={"Idempotency-Key": "order-42"})
            print(
                name,
                response.status_code,
                response.json(),
                "replayed" if "Idempotent-Replayed" in response.headers else "fresh",
            )
    print("charged:", len(charged))


if __name__ == "__main__":
    asyncio.run(main())
