"""Stripe webhooks: each event is handled once, however often and in whichever order Stripe delivers it.

python examples/stripe_webhooks    deliver events twice, at once, and with a wrong signature, and print the results

The id of the event is the key, and the response is kept for seven days; Stripe repeats a delivery for three. A delivery
that comes while the first one runs waits for its response.
"""

import asyncio
import hashlib
import hmac
import json
import time

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from onceward.http import IdempotencyMiddleware, idempotent
from onceward.http.webhooks import stripe

SECRET = b"whsec_test"  # of your endpoint, from the environment
TOLERANCE_SECONDS = 300

app = FastAPI()
app.add_middleware(IdempotencyMiddleware, store="sqlite:///webhooks.db")
booked: list[str] = []


def is_signed(header: str, body: bytes) -> bool:
    """Check `Stripe-Signature: t=…,v1=…`; `stripe.Webhook.construct_event` does the same."""
    parts = [part.partition("=") for part in header.split(",")]
    sent_at = next((value for name, _, value in parts if name == "t"), "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > TOLERANCE_SECONDS:
        return False
    expected = hmac.new(SECRET, f"{sent_at}.".encode() + body, hashlib.sha256).hexdigest()
    return any(hmac.compare_digest(value, expected) for name, _, value in parts if name == "v1")


@app.post("/webhooks/stripe")
@idempotent(webhook=stripe(), wait_seconds=5)
async def webhook(request: Request) -> JSONResponse:
    body = await request.body()
    if not is_signed(request.headers.get("Stripe-Signature", ""), body):
        return JSONResponse({"error": "the signature is not valid"}, 400)  # stored nowhere, so it blocks no key
    event = json.loads(body)
    await asyncio.sleep(0.05)  # book the payment, send the receipt
    booked.append(event["id"])
    return JSONResponse({"booked": event["id"]})


def signed(event: dict[str, str], secret: bytes = SECRET) -> tuple[bytes, dict[str, str]]:
    body, sent_at = json.dumps(event).encode(), str(int(time.time()))
    signature = hmac.new(secret, f"{sent_at}.".encode() + body, hashlib.sha256).hexdigest()
    return body, {"Stripe-Signature": f"t={sent_at},v1={signature}"}


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:

        async def deliver(event_id: str, secret: bytes = SECRET) -> str:
            body, headers = signed({"id": event_id, "type": "payment_intent.succeeded"}, secret)
            response = await client.post("/webhooks/stripe", content=body, headers=headers)
            return f"{response.status_code} {response.json()}"

        print("first:", await deliver("evt_1"))
        print("again:", await deliver("evt_1"))
        print("two at once:", *await asyncio.gather(deliver("evt_2"), deliver("evt_2")))
        print("forged:", await deliver("evt_3", b"a wrong secret"))
    print("booked:", booked)


if __name__ == "__main__":
    asyncio.run(main())
