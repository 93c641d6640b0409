"""FastAPI payments, exactly once: the row of the payment and its response commit in one transaction.

python examples/fastapi_payments    pay, send the request again, and print the results
"""

import asyncio
import sqlite3
from collections.abc import Iterator
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from onceward.http import IdempotencyMiddleware, idempotency, idempotent

# The keys are in the database of the application, so that a handler can commit its rows and its response together.
app = FastAPI()
app.add_middleware(IdempotencyMiddleware, store="sqlite:///shop.db")


class Payment(BaseModel):
    """A payment for an order."""

    amount: int


def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect("shop.db", timeout=10, check_same_thread=False)
    try:
        with connection:  # commits at the end, or rolls back
            yield connection
    finally:
        connection.close()


@app.post("/payments")
@idempotent(required=True)  # a request without a key gets 400
def pay(payment: Payment, request: Request, db: Annotated[sqlite3.Connection, Depends(database)]) -> JSONResponse:
    bound = idempotency(request).bind(db)
    row = db.execute("INSERT INTO payments (amount) VALUES (?) RETURNING id", [payment.amount]).fetchone()
    response = JSONResponse({"payment": row[0], "amount": payment.amount}, 201)
    bound.settle(response)  # commits with the row, when the handler has returned
    return response


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


if __name__ == "__main__":
    shop = sqlite3.connect("shop.db")
    shop.execute("CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, amount INTEGER)")
    asyncio.run(main())
    print("charged:", shop.execute("SELECT count(*) FROM payments").fetchone()[0])
    shop.close()
