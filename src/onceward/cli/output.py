"""Output of commands: tables and lines for people, JSON for scripts, and progress bars."""

from __future__ import annotations

import contextlib
import json
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_UNIT = 1024


def print_json(value: Mapping[str, Any]) -> None:
    # ASCII only, so that the output is correct in any terminal encoding.
    click.echo(json.dumps(value))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: with lines and colours on a terminal, otherwise as columns separated by two spaces."""
    cells = [[plain(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(heads, cells)
        return
    widths = [max(len(row[column]) for row in [heads, *cells]) for column in range(len(heads))]
    for row in [heads, *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_fields(shown: Mapping[str, Any]) -> None:
    """Print one line for each field."""
    width = max(map(len, shown))
    for name, value in shown.items():
        click.echo(f"{name.ljust(width)}  {plain(value)}")


def plain(value: object) -> str:
    """Format a value on one line, without control characters: an attacker may have put terminal commands into it."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        text = " ".join(str(one) for one in value)
    else:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | bool) else str(value)
    return "".join(" " if one in "\r\n\t" else "\N{REPLACEMENT CHARACTER}" if _is_control(one) else one for one in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cf", "Cs"}


def size_text(count: int | None) -> str:
    """Format a size: `12 bytes`, `3.4 MiB`."""
    if count is None:
        return ""
    size, unit = float(count), 0
    while size >= _UNIT and unit < len(_UNITS) - 1:
        size, unit = size / _UNIT, unit + 1
    return f"{count} {_UNITS[0]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def hidden_progress(_done: int, _total: int | None) -> None:
    """Ignore progress: standard error is not a terminal."""


@contextlib.contextmanager
def progress(
    title: str, *, in_bytes: bool, total: int | None = None, hidden: bool = False
) -> Iterator[Callable[[int, int | None], object]]:
    """Show a progress bar on standard error while the block runs, if that is a terminal and it is not `hidden`.

    Yields a function that takes the number done and the total: `hidden_progress` if nobody sees it. Until its first
    call, the bar shows only the elapsed time: a hub reports no progress of short operations.
    """
    if hidden or not sys.stderr.isatty():
        yield hidden_progress
        return
    from rich import progress as bars  # noqa: PLC0415  # only needed on a terminal
    from rich.console import Console  # noqa: PLC0415

    amount = bars.DownloadColumn() if in_bytes else bars.MofNCompleteColumn()
    speed = [bars.TransferSpeedColumn()] if in_bytes else []
    named = (bars.TextColumn("{task.description}"), bars.BarColumn())
    waiting, counting = (*named, bars.TimeElapsedColumn()), (*named, amount, *speed, bars.TimeRemainingColumn())
    with bars.Progress(*waiting, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=total)

        def update(done: int, of: int | None) -> None:
            shown.columns = counting
            shown.update(task, completed=done, total=of if of is not None else total)

        yield update


def _draw(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415  # only needed on a terminal
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(header_style="bold")
    for head in heads:
        # Wrap instead of truncating, so that values can be copied.
        table.add_column(head, overflow="fold")
    for row in cells:
        # `Text`, because rich would read brackets in a string as markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
