"""The hub's application: every part in its place, the guards in front of them, from the outside in:

Observe                 one log line and one count for each request
Hosts                   is it meant for this host, and from a page that may ask?
Auth                    whose token is it, and does it reach this far?
Schemas                 which schema does a keyed insert go to?
IdempotencyMiddleware   has this key been answered already?
FastAPI                 routes, strict bodies, problem answers
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from onceward.http import IdempotencyMiddleware, Rule, document_idempotency
from onceward.http.guard import LEASE_SECONDS
from onceward.http.wire import App, Receive, Send
from onceward.hub import metrics, problems
from onceward.hub.auth import Auth, principal_of
from onceward.hub.config import Config
from onceward.hub.head import Head
from onceward.hub.hosts import Hosts
from onceward.hub.observe import Observe
from onceward.hub.routes import admin, chat, claims, events, ingest, pages, tasks, topics
from onceward.hub.schema import Schemas, variant_of
from onceward.hub.sockets import Sockets
from onceward.hub.state import Hub
from onceward.hub.upload import FIELDS_BYTES_MAX

_ABOUT = """
Work that is retried, restarted or delivered again has one effect.

Send `Idempotency-Key` with every POST, PUT and PATCH: a retry with the same key gets the first answer again. Without a
key the rows themselves find duplicates.
"""


# How many requests that change something run at a time: fewer than the server has threads (40), so that a database that
# keeps writers waiting does not keep readers waiting too.
WRITERS = 24
# Uploads have turns of their own: they also wait for the blob folder, which topics have nothing to do with.
UPLOADERS = 8
# Normalizing takes a processor and no database: more at a time would be done no sooner.
NORMALIZERS = 4
# What is answered is longer than what was sent: a text comes back as it was and cleaned.
_ANSWER_FACTOR = 4


def create_app(config: Config) -> App:
    """The whole hub as one ASGI application. Its database must have been migrated."""
    hub = Hub(config)
    app = FastAPI(
        title="Onceward hub",
        version=version("onceward"),
        description=_ABOUT,
        lifespan=_lifespan,
        # The page of our own loads nothing from elsewhere.
        docs_url=None,
        redoc_url=None,
        # A redirect would be the answer that is kept for the key, and following it would be another request.
        redirect_slashes=False,
    )
    app.state.hub = hub
    app.state.max_body_bytes = config.hub.max_body_bytes
    app.state.max_body_bytes_at = {
        "/normalize/email": config.ingest.max_message_bytes,
        "/db/insert": config.ingest.max_batch_bytes,
    }
    app.state.writers = asyncio.Semaphore(WRITERS)
    app.state.uploaders = asyncio.Semaphore(UPLOADERS)
    app.state.normalizers = asyncio.Semaphore(NORMALIZERS)
    for part in (topics, tasks, events, ingest, chat, claims, admin, pages, metrics):
        # Not included: that would make every route a second time, with the first request.
        app.router.routes.extend(part.router.routes)
    problems.install(app)
    document_idempotency(app)
    return _guarded(app, hub)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
    hub: Hub = app.state.hub
    await hub.open()
    try:
        yield {"hub": hub}
    finally:
        await hub.close()


def _guarded(app: App, hub: Hub) -> App:
    config = hub.config
    plain = Head(Sockets(app))
    keyed = IdempotencyMiddleware(
        plain,
        store=hub.ledger,
        principal=principal_of,
        variant=variant_of,
        enabled=config.idempotency.enabled,
        lease_seconds=min(LEASE_SECONDS, config.idempotency.processing_ttl_seconds),
        retain_seconds=hub.retain_seconds,
        wait_seconds=config.idempotency.wait_seconds,
        max_body_bytes=config.hub.max_body_bytes,
        encryption_keys=config.idempotency.encryption_keys,
        rules=_rules(config),
    )
    app = Schemas(Known(keyed, chat.PATHS, plain), hub.database)
    app = Auth(app, hub.database)
    app = Hosts(app, config.auth.allowed_hosts, config.auth.allowed_origins, bound=config.hub.host)
    return Observe(app)


class Known:
    """What knows its own duplicates is not behind the middleware; everything else is."""

    def __init__(self, app: App, paths: frozenset[str], plain: App) -> None:
        # Under this name the routes are found through all layers.
        self.app = app
        self._paths = paths
        self._plain = plain

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        app = self._plain if scope["type"] == "http" and scope["path"] in self._paths else self.app
        await app(scope, receive, send)


def _rules(config: Config) -> dict[str, Rule]:
    """Where bodies may be longer than elsewhere."""
    message, batch = config.ingest.max_message_bytes, config.ingest.max_batch_bytes
    upload = config.attachments.max_upload_bytes + FIELDS_BYTES_MAX
    return {
        # Fields and boundaries come on top of the file. A client that promises a digest is not spooled.
        "/v1/tasks/{task_id}/attachments": Rule(digest=True, max_body_bytes=upload),
        "/normalize/email": Rule(max_body_bytes=message, max_response_bytes=_ANSWER_FACTOR * message),
        "/db/insert": Rule(max_body_bytes=batch, max_response_bytes=_ANSWER_FACTOR * batch),
    }
