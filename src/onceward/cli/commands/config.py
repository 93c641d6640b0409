"""`onceward config`."""

from __future__ import annotations

import click

from onceward.cli.output import as_json, print_json
from onceward.cli.settings import ALL, settings
from onceward.hub.config.config import Config, effective, effective_settings


@click.command()
@as_json
@settings(*ALL)
def config(config: Config, as_json: bool) -> None:
    """Print every setting as TOML, with its source. Passwords are not shown.

    \b
    Examples:
      onceward config
      onceward config --config staging.toml --port 9000
      onceward config --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    if as_json:
        print_json({"settings": effective_settings(config)})
    else:
        click.echo(effective(config), nl=False)
