"""Litestar creates its middleware for each route, so all of them share one ledger."""

from litestar import Litestar, Request, post
from litestar.datastructures import State
from litestar.middleware import DefineMiddleware
from litestar.testing import TestClient

from onceward import IdempotencyMiddleware, open_ledger

charged: list[int] = []


@post("/payments")
async def pay(request: Request[None, None, State]) -> dict[str, int]:
    charged.append((await request.json())["amount"])  # call the payment provider here
    return {"payment": len(charged), "amount": charged[-1]}


ledger = open_ledger("sqlite:///keys.db", lease_seconds=300)
app = Litestar([pay], middleware=[DefineMiddleware(IdempotencyMiddleware, store=ledger)], on_shutdown=[ledger.close])

if __name__ == "__main__":
    with TestClient(app) as client:
        for name in ("first:", "again:"):
            response = client.post("/payments", json={"amount": 10}, headers={"Idempotency-Key": "order-42"})
            print(
                name,
                response.status_code,
                response.json(),
                "replayed" if "Idempotent-Replayed" in response.headers else "fresh",
            )
    print("charged:", len(charged))
