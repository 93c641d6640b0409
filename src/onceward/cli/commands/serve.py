"""`onceward serve`."""

from __future__ import annotations

import click

from onceward.cli.settings import ALL, settings
from onceward.hub.config.config import Config


@click.command()
@settings(*ALL)
def serve(config: Config) -> None:
    """Run the hub until Ctrl-C or SIGTERM.

    The hub prints its address when it is ready. Before it stops, it finishes the requests in progress.

    \b
    Examples:
      onceward serve                                # SQLite files in ./onceward-data
      onceward serve --port 9000 --data-dir /var/lib/onceward
      onceward serve --database postgresql://user@host/name --workers 4
      onceward serve --brain shop.desk:brain        # your own brain answers /chat
      ONCEWARD_EVENTS__KEEP_DAYS=30 onceward serve  # `onceward config` lists all settings
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.hub.server import serve as hub  # noqa: PLC0415  # slow import; other commands do without

    hub.serve(config)
