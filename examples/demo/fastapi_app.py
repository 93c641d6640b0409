"""The demo under FastAPI. It needs one line: `app.add_middleware(IdempotencyMiddleware, store=…)`."""

from typing import Annotated, Any, Literal

from examples.demo.orders import TEXT_CHARACTERS_MAX, Refused
from examples.demo.shop import Shop
from examples.demo.world import Reply, World
from fastapi import Depends, FastAPI, File, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from onceward.http import IdempotencyMiddleware, idempotency, idempotent

Name = Annotated[str, Field(min_length=1, max_length=64)]
Line = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)]


class Order(BaseModel):
    """Base of request bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def plain(self) -> dict[str, object]:
        return self.model_dump(exclude_none=True)


class Act(Order):
    action: Name
    target: Line | None = None


class Heartbeat(Order):
    mood: Name | None = None


class Writing(Order):
    title: Line
    text: Text


class Amendment(Order):
    title: Line | None = None
    text: Text | None = None


class Feedback(Order):
    verdict: Literal["approve", "reject"]
    comment: Annotated[str, Field(min_length=1, max_length=4000)] | None = None


class Agent(Order):
    name: Name


class Letter(Order):
    to: Line
    text: Text


class Sale(Order):
    item: Line
    amount: Annotated[int, Field(ge=1, le=1_000_000)]


def make_app(world: World, store: str | None = None, **options: Any) -> FastAPI:
    """Create the demo, with the idempotency middleware if a store is given. `options` go to the middleware."""
    app = FastAPI(
        title="Onceward demo",
        exception_handlers={Refused: refuse, RequestValidationError: refuse_invalid, HTTPException: refuse_early},
    )
    shop = Shop(store or "")

    def authenticate(request: Request) -> str:
        return world.user(request.headers.get("authorization"), request.cookies.get("session"))

    User = Annotated[str, Depends(authenticate)]  # noqa: N806  # it is a type

    @app.post("/api/dwellers/{dweller}/act")
    def act(dweller: str, order: Act, user: User) -> Response:
        return answer(world.act(user, dweller, order.plain()))

    @app.post("/api/dwellers/{dweller}/heartbeat")
    def heartbeat(dweller: str, user: User, order: Heartbeat | None = None) -> Response:
        return answer(world.heartbeat(user, dweller, order.plain() if order else {}))

    @app.post("/api/dwellers/{dweller}/tell")
    def tell(dweller: str, user: User) -> Response:
        return StreamingResponse(world.tell(user, dweller), media_type="text/event-stream")

    @app.post("/api/stories")
    def write_story(order: Writing, user: User) -> Response:
        return answer(world.write_story(user, order.plain()))

    @app.get("/api/stories")
    def stories() -> Response:
        return answer(world.stories())

    @app.put("/api/stories/{story}")
    def replace_story(story: str, order: Writing, user: User) -> Response:
        return answer(world.change_story(user, story, order.plain(), whole=True))

    @app.patch("/api/stories/{story}")
    def amend_story(story: str, order: Amendment, user: User) -> Response:
        return answer(world.change_story(user, story, order.plain(), whole=False))

    @app.delete("/api/stories/{story}")
    def delete_story(story: str, user: User) -> Response:
        return answer(world.delete_story(user, story))

    @app.post("/api/proposals")
    def propose(order: Writing, user: User) -> Response:
        return answer(world.propose(user, order.plain()))

    @app.post("/api/review/{kind}/{subject}/feedback")
    def review(kind: str, subject: str, order: Feedback, user: User) -> Response:
        return answer(world.review(user, kind, subject, order.plain()))

    @app.post("/api/auth/agent")
    def register(order: Agent) -> Response:
        return answer(world.register(order.plain()))

    @app.post("/api/uploads")
    def upload(file: Annotated[UploadFile, File()], user: User) -> Response:
        return answer(world.upload(user, file.filename or "", file.file.read()))

    # A letter cannot be taken back. If it is unknown whether it was sent, it is not sent again.
    @app.post("/api/letters")
    @idempotent(on_crash="hold", required=True)
    def send_letter(order: Letter, user: User) -> Response:
        return answer(world.send_letter(user, order.plain()))

    # Exactly once: the sale and its response commit in one transaction.
    @app.post("/api/sales")
    def sell(request: Request, order: Sale, user: User) -> Response:
        with shop.transaction() as connection:
            bound = idempotency(request).bind(connection)
            response = answer(shop.sell(connection, user, order.plain()))
            bound.settle(response)
        return response

    if store is not None:
        app.add_middleware(IdempotencyMiddleware, store=store, **options)
    return app


def answer(reply: Reply) -> Response:
    if reply.content is None:
        return Response(status_code=reply.status)
    return JSONResponse(reply.content, reply.status)


async def refuse(_: Request, error: Any) -> Response:
    return JSONResponse(error.problem, error.status, media_type="application/problem+json")


async def refuse_invalid(request: Request, error: Any) -> Response:
    """Respond with 400 instead of FastAPI's 422, which here means that a key was used for another request."""
    errors = [
        {"field": ascii(".".join(str(step) for step in wrong["loc"]))[1:-1], "message": wrong["msg"]}
        for wrong in error.errors()
    ]
    return await refuse(request, Refused(400, "badRequest", f"The request has {len(errors)} invalid field(s).", errors))


async def refuse_early(request: Request, error: Any) -> Response:
    """Respond to an unknown route, or to a body that FastAPI could not read."""
    code = {404: "notFound", 405: "methodNotAllowed"}.get(error.status_code, "badRequest")
    return await refuse(request, Refused(error.status_code, code, error.detail))
