"""Flask: the WSGI middleware wraps `app.wsgi_app`, and a route says that it needs a key.

python examples/flask_payments    pay, send the request again, and print the results
"""

from flask import Flask, request

from onceward.http import WSGIIdempotencyMiddleware, idempotent

app = Flask(__name__)
app.wsgi_app = guard = WSGIIdempotencyMiddleware(app.wsgi_app, store="sqlite:///keys.db")  # type: ignore[method-assign]
charged: list[int] = []


@app.post("/payments")
@idempotent(required=True, on_crash="hold")  # after a crash the payment is in doubt, and does not run again
def pay() -> tuple[dict[str, int], int]:
    charged.append(request.get_json()["amount"])  # call the payment provider here
    return {"payment": len(charged), "amount": charged[-1]}, 201


if __name__ == "__main__":
    client = app.test_client()
    for name in ("first:", "again:"):
        response = client.post("/payments", json={"amount": 10}, headers={"Idempotency-Key": "order-42"})
        print(
            name,
            response.status_code,
            response.get_json(),
            "replayed" if "Idempotent-Replayed" in response.headers else "fresh",
        )
    print("charged:", len(charged))
    guard.close()
