"""`onceward console`: pages for the ledger of an application without a hub."""

from __future__ import annotations

import dataclasses

import click

from onceward.cli.settings import settings
from onceward.errors import InvalidOption
from onceward.hub.config.config import Config


@click.command()
@settings("ledger", "namespace", "host", "port")
def console(config: Config) -> None:
    """Show an application's own ledger in the browser: overview, in doubt and operations. On this machine only.

    A hub has its console already, at /console/. Without --namespace, the only one of the ledger is shown. The default
    port is 8788.

    \b
    Examples:
      onceward console --ledger sqlite:///ledger.db
      onceward console --ledger postgresql://user@host/name --namespace shop --port 9000
      ONCEWARD_IDEMPOTENCY__ENCRYPTION_KEYS=… onceward console --ledger redis://host
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    if ("hub", "ledger") not in config.sources:
        raise click.UsageError("Give the ledger of the application with --ledger.", click.get_current_context())
    serve_console(config)


def serve_console(config: Config) -> None:
    """Serve the console of the ledger in a configuration, until Ctrl-C or SIGTERM."""
    from onceward.cli.local.claims import check_exists  # noqa: PLC0415  # slow imports; `--help` does without
    from onceward.hub.console import standalone  # noqa: PLC0415
    from onceward.hub.server.serve import serve_locally  # noqa: PLC0415

    check_exists(config)
    if config.hub.tls_cert or config.hub.workers > 1:
        raise InvalidOption("the console of a ledger uses neither TLS nor workers; remove hub.tls_cert and hub.workers")
    is_given = ("idempotency", "key_prefix") in config.sources
    namespace = standalone.chosen_namespace(config, is_given=is_given)
    port = config.hub.port if ("hub", "port") in config.sources else standalone.PORT
    chosen = dataclasses.replace(
        config,
        hub=dataclasses.replace(config.hub, port=port),
        idempotency=dataclasses.replace(config.idempotency, key_prefix=namespace),
    )

    def announce(url: str) -> None:
        click.echo(f"onceward: console of namespace {namespace} on {url}/console/ (Ctrl-C ends it)")

    serve_locally(chosen, standalone.create_app, announce)
