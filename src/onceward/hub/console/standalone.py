"""The console of an application's own ledger, without a hub: overview, in doubt and operations, on loopback only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from onceward.core.key import check_namespace
from onceward.errors import NotFound
from onceward.http.asgi_types import App
from onceward.hub.claims.claims import namespaces
from onceward.hub.config.config import Config
from onceward.hub.config.data_folder import ledger, response_codec
from onceward.hub.config.setting import without_password
from onceward.hub.console.console import Console
from onceward.hub.console.routing import routes
from onceward.hub.console.visitors import LocalVisitors
from onceward.hub.security.client_address import ClientAddressMiddleware
from onceward.hub.security.hosts import HostsMiddleware
from onceward.hub.web.head import HeadMiddleware
from onceward.hub.web.request_log import RequestLogMiddleware
from onceward.ledger.blocking import wait

# Not the hub's, so that both can run on one machine.
PORT = 8788


def create_app(config: Config) -> App:
    """Build the console of the ledger in a configuration, as one ASGI application.

    Args:
        config: The configuration, with the URL of the ledger and its namespace.

    Returns:
        The application. It opens the ledger on first use, and closes it at its end.
    """
    opened = ledger(config)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await opened.aclose()

    app = Starlette(routes=[Route("/", _home), *routes()], lifespan=lifespan)
    about = without_password(config.ledger_url)
    app.state.console = Console(opened, response_codec(config), LocalVisitors(), about=about)
    guarded = HostsMiddleware(HeadMiddleware(app), bound=config.hub.host)
    return ClientAddressMiddleware(RequestLogMiddleware(guarded), config.hub.trusted_proxies)


def chosen_namespace(config: Config, *, is_given: bool) -> str:
    """Return the namespace to show: the given one, or else the only one that the ledger has.

    Args:
        config: The configuration.
        is_given: Whether the user has named a namespace.

    Returns:
        The namespace.

    Raises:
        NotFound: The ledger has several namespaces, and none was given.
        StoreUnavailable: The ledger did not respond.
    """
    wanted = check_namespace(config.idempotency.key_prefix)
    with ledger(config) as opened:
        found = wait(namespaces(opened))
    if is_given or not found or wanted in found:
        return wanted
    if len(found) == 1:
        return found.pop()
    raise NotFound(f"the ledger has several namespaces; choose one with --namespace: {', '.join(sorted(found))}")


async def _home(_request: Request) -> Response:
    return RedirectResponse("/console/", 303)
