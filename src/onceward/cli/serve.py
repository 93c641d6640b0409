"""`onceward serve`."""

from __future__ import annotations

import click

from onceward.cli.settings import ALL, settings
from onceward.hub.config import Config


@click.command()
@settings(*ALL)
def serve(config: Config) -> None:
    """Run the hub until Ctrl-C or SIGTERM.

    It prints its address when it is ready to answer. Requests under way are finished before it ends.

    \b
    onceward serve                                            # SQLite files in ./onceward-data
    onceward serve --port 9000 --data-dir /var/lib/onceward
    onceward serve --database postgresql://user@host/name --workers 4
    onceward serve --brain shop.desk:brain                    # who answers /chat
    ONCEWARD_EVENTS__KEEP_DAYS=30 onceward serve              # every setting: onceward config
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    from onceward.hub import serve as hub  # noqa: PLC0415  # a server is a lot to import for the other commands

    hub.serve(config)
