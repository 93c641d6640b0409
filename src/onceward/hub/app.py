"""The hub's ASGI application: FastAPI behind these middlewares, from the outside in.

ClientAddressMiddleware finds the client behind trusted proxies
RequestLogMiddleware    writes one log line and counts one metric per request
HostsMiddleware         checks Host and Origin
AuthMiddleware          checks the token and its scopes
StreamsMiddleware       limits the streams of a principal, and ends them when the token stops being valid
ActiveSchemaMiddleware  records the schema that a keyed insert goes to
IdempotencyMiddleware   replays the response of a key that was used before
FastAPI                 routes, strict bodies, problem responses
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

from onceward.errors import missing_extra

try:
    import anyio
    from fastapi import FastAPI
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.http import IdempotencyMiddleware, Rule, document_idempotency
from onceward.http.asgi_types import App, Receive, Send
from onceward.http.keyed.admission import KeyedRequest
from onceward.http.keyed.options import LEASE_SECONDS
from onceward.hub import openapi
from onceward.hub.config.config import Config
from onceward.hub.config.setting import without_password
from onceward.hub.console.console import console_of_hub
from onceward.hub.console.routing import routes as console_routes
from onceward.hub.monitoring.gauges import HubGauges
from onceward.hub.routes import admin, audit, chat, claims, events, ingest, metrics, pages, settings, tasks, topics
from onceward.hub.security.auth import AuthMiddleware, principal_of
from onceward.hub.security.client_address import ClientAddressMiddleware
from onceward.hub.security.hosts import HostsMiddleware
from onceward.hub.security.streams import StreamsMiddleware
from onceward.hub.state import HubState
from onceward.hub.web import problems, route_index
from onceward.hub.web.active_schema import ActiveSchemaMiddleware, variant_of
from onceward.hub.web.head import HeadMiddleware
from onceward.hub.web.request_log import RequestLogMiddleware
from onceward.hub.web.upload import FIELDS_BYTES_MAX
from onceward.hub.web.websocket_404 import WebSocket404Middleware

_ABOUT = """
Work that is retried, restarted or delivered again has one effect.

Send `Idempotency-Key` with every POST, PUT and PATCH: a retry with the same key gets the first response again. Without
a key, the unique keys of the stored rows detect duplicates.

Every request may get 431 if its head is too large, and 503 with `Retry-After` if the hub has too many connections.
"""


# Concurrent requests that write: fewer than the server's threads (40), so that a slow database does not block readers.
WRITERS = 24
# Uploads have their own limit, because they also wait for the blob folder.
UPLOADERS = 8
# Normalizing is CPU-bound: more at a time would not finish sooner.
NORMALIZERS = 4
_CONSOLE = "/console/"
# A response may be this many times as long as its request: it contains the text twice, unchanged and cleaned.
_RESPONSE_FACTOR = 4


def create_app(config: Config) -> App:
    """Build the hub as one ASGI application. Its database must have been migrated."""
    hub = HubState(config)
    app = FastAPI(
        title="Onceward hub",
        version=version("onceward"),
        description=_ABOUT,
        lifespan=_lifespan,
        # The hub has its own page for the documentation, which loads nothing from other sites.
        docs_url=None,
        redoc_url=None,
        # A redirect would be recorded as the response of the key, and following it would be another request.
        redirect_slashes=False,
    )
    app.state.hub = hub
    app.state.gauges = HubGauges(hub.database, hub.ledger, config.attachments.max_bytes_per_principal)
    app.state.max_body_bytes = config.hub.max_body_bytes
    app.state.max_body_bytes_at = {
        "/normalize/email": config.ingest.max_message_bytes,
        "/db/insert": config.ingest.max_batch_bytes,
    }
    app.state.writers = asyncio.Semaphore(WRITERS)
    app.state.uploaders = anyio.CapacityLimiter(UPLOADERS)
    app.state.normalizers = asyncio.Semaphore(NORMALIZERS)
    for part in (topics, tasks, events, ingest, chat, claims, admin, audit, settings, pages, metrics):
        # Not `include_router`: it would build every route a second time, with the first request.
        app.router.routes.extend(part.router.routes)
    app.state.console = console_of_hub(hub, _about(config))
    app.router.routes.extend(console_routes())
    route_index.install(app)
    problems.install(app)
    openapi.install(app, limits_keys=config.idempotency.enabled and config.idempotency.max_keys_per_principal > 0)
    document_idempotency(app)
    return _with_middlewares(app, hub)


def _about(config: Config) -> str:
    """Return where the data is, without passwords."""
    return without_password(config.hub.database) if config.hub.database else config.hub.data_dir


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
    hub: HubState = app.state.hub
    await hub.open()
    try:
        yield {"hub": hub}
    finally:
        await hub.close()


def _with_middlewares(app: App, hub: HubState) -> App:
    config = hub.config
    plain = HeadMiddleware(WebSocket404Middleware(app))
    keyed = IdempotencyMiddleware(
        plain,
        store=hub.ledger,
        principal=principal_of,
        variant=variant_of,
        enabled=config.idempotency.enabled,
        lease_seconds=min(LEASE_SECONDS, config.idempotency.processing_ttl_seconds),
        retain_seconds=hub.retain_seconds,
        wait_seconds=config.idempotency.wait_seconds,
        max_keys_per_principal=config.idempotency.max_keys_per_principal or None,
        max_body_bytes=config.hub.max_body_bytes,
        encryption_keys=config.idempotency.encryption_keys,
        rules=_rules(config),
    )
    keyed.observe_checks(_remember_check(hub))
    app = ActiveSchemaMiddleware(IdempotencyBypassMiddleware(keyed, chat.PATHS, plain), hub.database)
    app = StreamsMiddleware(app, hub.streams, always_waits=config.idempotency.wait_seconds > 0)
    app = AuthMiddleware(app, hub.database)
    app = HostsMiddleware(app, config.auth.allowed_hosts, config.auth.allowed_origins, bound=config.hub.host)
    return ClientAddressMiddleware(RequestLogMiddleware(app), config.hub.trusted_proxies)


def _remember_check(hub: HubState) -> Callable[[KeyedRequest, str, bool], None]:
    def remember(request: KeyedRequest, status: str, replayed: bool) -> None:
        principal = request.principal
        hub.checks.add(
            principal.scope,
            request.key,
            endpoint=request.endpoint,
            user=principal.name,
            status=status,
            replayed=replayed,
        )

    return remember


class IdempotencyBypassMiddleware:
    """Bypass of the idempotency middleware: for paths that handle duplicates themselves, and for the forms of the console,
    which are guarded by versions.
    """

    def __init__(self, app: App, paths: frozenset[str], plain: App) -> None:
        # `document_idempotency` and others follow this attribute through the middlewares to find the routes.
        self.app = app
        self._paths = paths
        self._plain = plain

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        bypasses = scope["type"] == "http" and (scope["path"] in self._paths or scope["path"].startswith(_CONSOLE))
        await (self._plain if bypasses else self.app)(scope, receive, send)


def _rules(config: Config) -> dict[str, Rule]:
    """Return the rules of routes with their own body limits."""
    message, batch = config.ingest.max_message_bytes, config.ingest.max_batch_bytes
    upload = config.attachments.max_upload_bytes + FIELDS_BYTES_MAX
    return {
        # The limit includes form fields and boundaries. A body with a verified digest is not buffered.
        "/v1/tasks/{task_id}/attachments": Rule(digest=True, max_body_bytes=upload),
        "/normalize/email": Rule(max_body_bytes=message, max_response_bytes=_RESPONSE_FACTOR * message),
        "/db/insert": Rule(max_body_bytes=batch, max_response_bytes=_RESPONSE_FACTOR * batch),
    }
