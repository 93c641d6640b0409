"""`onceward doctor`: check a hub, and print what is wrong and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceward.cli.output import as_json, plain, print_json
from onceward.cli.settings import WITH_BYTES, loaded, with_flags
from onceward.cli.token_file import token_in

if TYPE_CHECKING:
    from onceward.hub.doctor.check_result import CheckResult

_FLAGS = (*WITH_BYTES, "ledger", "host")
_CODES = {"ok": 0, "warning": 1, "problem": 2}
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor_command(
    hub: str | None,
    token: str | None,
    token_file: Path | None,
    config_file: Path | None,
    as_json: bool,
    **given: str | None,
) -> int:
    """Check a hub: its stores, data folder, claims, settings and machine. It changes nothing.

    Prints one line for each check: ok, warning or problem, what was found, and what to do. Without --hub it checks the
    data directly, whether or not a hub is running. With --hub it checks a running hub over its API.

    Exit code 0: everything is well. 1: there are warnings. 2: there are problems.

    \b
    Examples:
      onceward doctor
      onceward doctor --database postgresql://hub@db/onceward --ledger postgresql://hub@db/onceward
      onceward doctor --hub https://hub.example.com --token "$TOKEN" --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    if hub is not None and token_file is not None:
        token = token_in(token_file)
    results = []
    for result in _results(hub, token, config_file, given):
        results.append(result)
        if not as_json:
            _print(result)
    code = max(_CODES[result.level] for result in results)
    if as_json:
        status = next(name for name, number in _CODES.items() if number == code)
        print_json({"status": status, "checks": [one.shown() for one in results]})
    return code


def _results(
    hub: str | None, token: str | None, config_file: Path | None, flags: dict[str, str | None]
) -> Iterator[CheckResult]:
    if hub is None:
        from onceward.hub.doctor.checkup import check_up  # noqa: PLC0415  # slow import; `--help` does without

        return check_up(loaded(config_file, flags))
    if given := [name for name, value in {"config": config_file, **flags}.items() if value is not None]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(
            f"--hub connects to a running hub and cannot be combined with {names}", click.get_current_context()
        )
    from onceward.hub.doctor.running_hub import check_hub  # noqa: PLC0415  # as above

    return check_hub(hub, token)


def _print(result: CheckResult) -> None:
    colour = None if os.environ.get("NO_COLOR") else _COLOURS[result.level]
    level = click.style(result.level.ljust(len("problem")), fg=colour)
    advice = f" -> {plain(result.advice)}" if result.advice else ""
    click.echo(f"{level}  {result.check}: {plain(result.detail)}{advice}")


_with_options: Any = as_json(with_flags(doctor_command, *_FLAGS))
_with_options = click.option(
    "--token", metavar="TOKEN", envvar="ONCEWARD_TOKEN", help="Access token for --hub. [default: $ONCEWARD_TOKEN]"
)(_with_options)
_with_options = click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with the access token for --hub, instead of --token.",
)(_with_options)
_with_options = click.option(
    "--hub", metavar="URL", help="URL of a running hub. [default: none; check the data directly]"
)(_with_options)
doctor = click.command("doctor")(_with_options)
