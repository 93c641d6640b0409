"""`onceward config`."""

from __future__ import annotations

import click

from onceward.cli.settings import ALL, settings
from onceward.hub.config import Config, effective


@click.command()
@settings(*ALL)
def config(config: Config) -> None:
    """Print every setting as TOML, with where it came from. Passwords are not shown.

    \b
    onceward config
    onceward config --config staging.toml --port 9000
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    click.echo(effective(config), nl=False)
