"""`onceward demo`: watch a shop that is killed while it charges a card."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from onceward.cli.backend import exit_on_sigterm
from onceward.cli.commands import console
from onceward.cli.output import as_json, print_json
from onceward.hub.config.config import load


@click.command()
@click.option("--serve", is_flag=True, help="Leave the console open at the end, with one more doubt to resolve.")
@click.option("--port", metavar="PORT", help="Port of the console; 0 lets the system choose one. [default: 8788]")
@as_json
def demo(serve: bool, port: str | None, as_json: bool) -> None:
    """Show in a few seconds what Onceward does: a payment, a kill -9, a retry, one charge, a doubt and its resolution.

    Starts a small shop in a process of its own, kills it twice, and needs nothing else: it listens on loopback, writes
    into a temporary folder, and removes that at the end. NO_COLOR=1 prints without colours.

    Exit code 1: something did not happen as promised.

    \b
    Examples:
      onceward demo
      onceward demo --serve     # and look at it in the browser
      onceward demo --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    if as_json and serve:
        raise click.UsageError("--json and --serve exclude each other; use one of them")
    from onceward.cli.demo.story import Failed, StoryPrinter, run_story  # noqa: PLC0415  # slow import; `--help` does without

    is_plain = bool(os.environ.get("NO_COLOR"))

    def styled(text: str, **style: str | bool) -> str:
        return text if is_plain else click.style(text, **style)  # type: ignore[arg-type]  # names of styles

    printer = StoryPrinter(
        heading=lambda text: click.echo("\n" + styled(text, bold=True)),
        line=lambda text: click.echo(f"  {text}"),
        result=lambda text: click.echo("  " + styled(text, fg="green")),
    )
    parts: list[dict[str, Any]] = []

    def add_line(text: str) -> None:
        parts[-1]["lines"].append(text)

    collector = StoryPrinter(
        heading=lambda text: parts.append({"heading": text, "lines": [], "result": None}),
        line=add_line,
        result=lambda text: parts[-1].update(result=text),
    )

    def serve_console(ledger_url: str) -> None:
        flags = {("hub", "ledger"): ledger_url, ("idempotency", "key_prefix"): "onceward", ("hub", "port"): port}
        console.serve_console(load(Path(os.devnull), {}, flags))

    try:
        with exit_on_sigterm():
            run_story(collector if as_json else printer, serve_console if serve else None)
    except Failed as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"parts": parts})
