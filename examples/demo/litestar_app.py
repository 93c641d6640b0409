"""The demo under Litestar: the middleware is an option of the application, `middleware=[DefineMiddleware(…)]`."""

from collections.abc import Callable
from typing import Any

from examples.demo.orders import Refused, parse
from examples.demo.shop import Shop
from examples.demo.world import Reply, World
from litestar import Litestar, Request, Response, delete, get, patch, post, put
from litestar.concurrency import sync_to_thread
from litestar.datastructures import State, UploadFile
from litestar.middleware import DefineMiddleware
from litestar.response import Stream

from onceward import Ledger, open_store
from onceward.http import IdempotencyMiddleware, idempotency, idempotent

Asked = Request[Any, Any, State]
Answer = Response[Any]

# Above the middleware's limit, so that only the middleware decides.
BODY_BYTES_MAX = 16 * 1024 * 1024
# The defaults of the middleware when it opens its store itself.
LEASE_SECONDS = 30.0
STORE_SECONDS = 5.0


def make_app(world: World, store: str | None = None, **options: Any) -> Litestar:
    """Create the demo, with the idempotency middleware if a store is given. `options` go to the middleware."""
    shop = Shop(store or "")

    def user(request: Asked) -> str:
        return world.user(request.headers.get("authorization"), request.cookies.get("session"))

    @post("/api/dwellers/{dweller:str}/act")
    async def act(request: Asked, dweller: str) -> Answer:
        return await do(world.act, user(request), dweller, parse(await request.body()))

    @post("/api/dwellers/{dweller:str}/heartbeat")
    async def heartbeat(request: Asked, dweller: str) -> Answer:
        return await do(world.heartbeat, user(request), dweller, parse(await request.body()))

    @post("/api/dwellers/{dweller:str}/tell", status_code=200)
    async def tell(request: Asked, dweller: str) -> Stream:
        return Stream(world.tell(user(request), dweller), media_type="text/event-stream")

    @post("/api/stories")
    async def write_story(request: Asked) -> Answer:
        return await do(world.write_story, user(request), parse(await request.body()))

    @get("/api/stories")
    async def stories() -> Answer:
        return await do(world.stories)

    @put("/api/stories/{story:str}")
    async def replace_story(request: Asked, story: str) -> Answer:
        order = parse(await request.body())
        return await do(lambda: world.change_story(user(request), story, order, whole=True))

    @patch("/api/stories/{story:str}")
    async def amend_story(request: Asked, story: str) -> Answer:
        order = parse(await request.body())
        return await do(lambda: world.change_story(user(request), story, order, whole=False))

    @delete("/api/stories/{story:str}")
    async def delete_story(request: Asked, story: str) -> None:
        await do(world.delete_story, user(request), story)

    @post("/api/proposals")
    async def propose(request: Asked) -> Answer:
        return await do(world.propose, user(request), parse(await request.body()))

    @post("/api/review/{kind:str}/{subject:str}/feedback")
    async def review(request: Asked, kind: str, subject: str) -> Answer:
        return await do(world.review, user(request), kind, subject, parse(await request.body()))

    @post("/api/auth/agent")
    async def register(request: Asked) -> Answer:
        return await do(world.register, parse(await request.body()))

    @post("/api/uploads")
    async def upload(request: Asked) -> Answer:
        file = (await request.form()).get("file")
        if not isinstance(file, UploadFile):
            raise Refused(400, "badRequest", "send a file in a multipart field named file")
        return await do(world.upload, user(request), file.filename, await file.read())

    # A letter cannot be taken back. If it is unknown whether it was sent, it is not sent again.
    @post("/api/letters")
    @idempotent(on_crash="hold", required=True)
    async def send_letter(request: Asked) -> Answer:
        return await do(world.send_letter, user(request), parse(await request.body()))

    # Exactly once: the sale and its response commit in one transaction.
    @post("/api/sales")
    async def sell(request: Asked) -> Answer:
        operation, order = idempotency(request), parse(await request.body())

        def sale(buyer: str) -> Answer:
            with shop.transaction() as connection:
                bound = operation.bind(connection)
                response = answer(shop.sell(connection, buyer, order))
                bound.settle(response)
            return response

        return await sync_to_thread(sale, user(request))

    middleware, closing = [], []
    if store is not None:
        # Litestar creates its middleware for each route, so all of them share one ledger. The options of the ledger are
        # set here, not in the middleware.
        ledger = Ledger(
            open_store(store),
            lease_seconds=options.get("lease_seconds", LEASE_SECONDS),
            namespace=options.pop("namespace", "onceward"),
            patience_seconds=options.pop("store_seconds", STORE_SECONDS),
        )
        middleware.append(DefineMiddleware(IdempotencyMiddleware, store=ledger, **options))
        closing.append(ledger.close)
    handlers = [act, heartbeat, tell, write_story, stories, replace_story, amend_story, delete_story]
    return Litestar(
        route_handlers=[*handlers, propose, review, register, upload, send_letter, sell],
        middleware=middleware,
        on_shutdown=closing,
        exception_handlers={Refused: refuse},
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,  # the process configures logging
    )


async def do(action: Callable[..., Reply], *arguments: object) -> Answer:
    """Run an action in a thread, because it writes to a file."""
    return answer(await sync_to_thread(action, *arguments))


def answer(reply: Reply) -> Answer:
    return Response(reply.content, status_code=reply.status)


def refuse(_: Asked, error: Refused) -> Answer:
    return Response(error.problem, status_code=error.status, media_type="application/problem+json")
