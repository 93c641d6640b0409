"""The demo under Flask: the WSGI middleware wraps `app.wsgi_app`."""

from typing import Any

from examples.demo.orders import Refused, parse
from examples.demo.shop import Shop
from examples.demo.world import Reply, World
from flask import Flask, Response, jsonify, request

from onceward.http import WSGIIdempotencyMiddleware, idempotency, idempotent


def make_app(world: World, store: str | None = None, **options: Any) -> Flask:
    """Create the demo, with the idempotency middleware if a store is given. `options` go to the middleware."""
    app = Flask(__name__)
    shop = Shop(store or "")

    def user() -> str:
        return world.user(request.headers.get("Authorization"), request.cookies.get("session"))

    def order() -> dict[str, object]:
        return parse(request.get_data())

    @app.post("/api/dwellers/<dweller>/act")
    def act(dweller: str) -> Response:
        return answer(world.act(user(), dweller, order()))

    @app.post("/api/dwellers/<dweller>/heartbeat")
    def heartbeat(dweller: str) -> Response:
        return answer(world.heartbeat(user(), dweller, order()))

    @app.post("/api/dwellers/<dweller>/tell")
    def tell(dweller: str) -> Response:
        return Response(world.tell(user(), dweller), mimetype="text/event-stream")

    @app.post("/api/stories")
    def write_story() -> Response:
        return answer(world.write_story(user(), order()))

    @app.get("/api/stories")
    def stories() -> Response:
        return answer(world.stories())

    @app.put("/api/stories/<story>")
    @app.patch("/api/stories/<story>")
    def change_story(story: str) -> Response:
        return answer(world.change_story(user(), story, order(), whole=request.method == "PUT"))

    @app.delete("/api/stories/<story>")
    def delete_story(story: str) -> Response:
        return answer(world.delete_story(user(), story))

    @app.post("/api/proposals")
    def propose() -> Response:
        return answer(world.propose(user(), order()))

    @app.post("/api/review/<kind>/<subject>/feedback")
    def review(kind: str, subject: str) -> Response:
        return answer(world.review(user(), kind, subject, order()))

    @app.post("/api/auth/agent")
    def register() -> Response:
        return answer(world.register(order()))

    @app.post("/api/uploads")
    def upload() -> Response:
        file = request.files.get("file")
        if file is None:
            raise Refused(400, "badRequest", "send a file in a multipart field named file")
        return answer(world.upload(user(), file.filename or "", file.read()))

    # A letter cannot be taken back. If it is unknown whether it was sent, it is not sent again.
    @app.post("/api/letters")
    @idempotent(on_crash="hold", required=True)
    def send_letter() -> Response:
        return answer(world.send_letter(user(), order()))

    # Exactly once: the sale and its response commit in one transaction.
    @app.post("/api/sales")
    def sell() -> Response:
        buyer, wanted = user(), order()
        with shop.transaction() as connection:
            bound = idempotency(request).bind(connection)
            response = answer(shop.sell(connection, buyer, wanted))
            bound.settle(response)
        return response

    @app.errorhandler(Refused)
    def refuse(error: Refused) -> Response:
        response = jsonify(error.problem)
        response.status_code, response.mimetype = error.status, "application/problem+json"
        return response

    if store is not None:
        app.wsgi_app = WSGIIdempotencyMiddleware(app.wsgi_app, store=store, **options)  # type: ignore[method-assign]
    return app


def answer(reply: Reply) -> Response:
    if reply.content is None:
        return Response(status=reply.status)
    response = jsonify(reply.content)
    response.status_code = reply.status
    return response
