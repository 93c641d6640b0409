"""`onceward config`."""

from __future__ import annotations

import click

from onceward.cli.settings import ALL, settings
from onceward.hub.config.config import Config, effective


@click.command()
@settings(*ALL)
def config(config: Config) -> None:
    """Print every setting as TOML, with its source. Passwords are not shown.

    \b
    Examples:
      onceward config
      onceward config --config staging.toml --port 9000
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    click.echo(effective(config), nl=False)
