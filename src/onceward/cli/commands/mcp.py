"""`onceward mcp`: run an MCP server so that a repeated tool call has one effect."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from urllib.parse import quote

import click

# The time between two purges of expired calls. The first is at the start, because many sessions are short.
_PURGE_SECONDS = 600.0
_UNLISTED = click.Choice(["pass", "refuse"])


@click.group()
def mcp() -> None:
    """Make the tools of MCP servers once-only."""


@mcp.command("wrap", context_settings={"allow_interspersed_args": False})
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file with the effect class and the key fields of each tool.",
)
@click.option(
    "--ledger",
    metavar="URL",
    help="Ledger for the calls: sqlite:///path, postgresql://… or redis://… [default: .onceward/mcp.db in the home folder]",
)
@click.option("--namespace", metavar="NAME", help="Namespace of the claims. [default: mcp]")
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the server. Servers with different names share no calls. [default: derived from COMMAND]",
)
@click.option("--principal", metavar="NAME", help="The caller. Different callers share no calls. [default: local]")
@click.option(
    "--group",
    "turn_group_id",
    metavar="GROUP",
    help="Group of calls that name none, such as the id of a conversation. [default: the caller, for ten minutes]",
)
@click.option(
    "--unlisted", type=_UNLISTED, help="Pass or refuse calls of tools that the file does not list. [default: refuse]"
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def wrap(config_file: Path | None, command: tuple[str, ...], **given: str | None) -> None:
    """Run an MCP server on stdio behind a proxy that records its tool calls in a ledger.

    COMMAND starts the server. Give the whole line to the MCP client in place of COMMAND. A repeated call gets the first
    result, and the server does not see it. Everything else passes through unchanged. The exit code is the server's.

    \b
    The file declares what a repetition of each tool would do:
      [tools.refund]
      effect = "irreversible"      # or "idempotent", or "pure"
      key_fields = ["order_id"]

    \b
    Examples:
      onceward mcp wrap --config shop.toml -- npx -y shop-mcp-server
      onceward mcp wrap --config shop.toml --ledger postgresql://localhost/app -- python server.py
      onceward claims list --ledger sqlite:////home/ada/.onceward/mcp.db --namespace mcp --status in_doubt
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    # Slow imports; `--help` does without.
    from onceward.integrations.mcp_wrap import load_config  # noqa: PLC0415
    from onceward.integrations.mcp_wrap import wrap as wrap_server  # noqa: PLC0415
    from onceward.ledger.open import open_ledger  # noqa: PLC0415

    config = load_config(config_file, **given)
    with open_ledger(config.ledger or _own_ledger(), namespace=config.namespace) as ledger:
        ledger.purge_every(_PURGE_SECONDS)
        click.get_current_context().exit(asyncio.run(wrap_server(command, config, ledger)))


def _own_ledger() -> str:
    """Return the URL of the ledger in the home folder, which does not depend on where a client starts the server.

    The file contains arguments and results of calls, so only its owner may read it.
    """
    file = Path.home() / ".onceward" / "mcp.db"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    return f"sqlite:///{quote(str(file))}"
