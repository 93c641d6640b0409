"""The flags of every command that can talk to a running hub: its URL, an access token, and its certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path)


def with_hub_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--hub`, `--token`, `--token-file` and `--ca-file` to a command.

    Args:
        command: A function with the parameters `hub`, `token`, `token_file` and `ca_file`.

    Returns:
        The command with its options.
    """
    decorated = click.option(
        "--ca-file",
        metavar="FILE",
        type=_PATH,
        envvar="ONCEWARD_CA_FILE",
        help="PEM file with the certificates that an https hub may be signed by. [default: $ONCEWARD_CA_FILE, or the"
        " system's]",
    )(command)
    decorated = click.option(
        "--token-file",
        metavar="FILE",
        type=_PATH,
        help="File with the access token for --hub. Other users must not be able to read it.",
    )(decorated)
    decorated = click.option(
        "--token", metavar="TOKEN", envvar="ONCEWARD_TOKEN", help="Access token for --hub. [default: $ONCEWARD_TOKEN]"
    )(decorated)
    return click.option("--hub", metavar="URL", help="URL of a running hub. [default: none; use the data directly]")(
        decorated
    )
