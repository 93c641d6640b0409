"""`onceward doctor`: check a hub, and print what is wrong and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceward.cli.hub_flags import with_hub_flags
from onceward.cli.output import as_json, plain, print_json
from onceward.cli.settings import WITH_BYTES, loaded, with_flags
from onceward.cli.token_file import token_of

if TYPE_CHECKING:
    from onceward.hub.doctor.check_result import CheckResult

_FLAGS = (*WITH_BYTES, "ledger", "host")
_CODES = {"ok": 0, "warning": 1, "problem": 2}
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor_command(
    hub: str | None,
    token: str | None,
    token_file: Path | None,
    ca_file: Path | None,
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
      onceward doctor --hub https://hub.example.com --token-file token --json
      onceward doctor --hub https://hub.internal --ca-file our-ca.pem --token-file token
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    token = token_of(hub, token, token_file)
    results = []
    for result in _results(hub, token, ca_file, config_file, given):
        results.append(result)
        if not as_json:
            _print(result)
    code = max(_CODES[result.level] for result in results)
    if as_json:
        status = next(name for name, number in _CODES.items() if number == code)
        print_json({"status": status, "checks": [one.json() for one in results]})
    return code


def _results(
    hub: str | None, token: str | None, ca_file: Path | None, config_file: Path | None, flags: dict[str, str | None]
) -> Iterator[CheckResult]:
    if hub is None:
        from onceward.hub.doctor.checkup import check_hub_data  # noqa: PLC0415  # slow import; `--help` does without

        return check_hub_data(loaded(config_file, flags))
    if given := [name for name, value in {"config": config_file, **flags}.items() if value is not None]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(
            f"--hub connects to a running hub and cannot be combined with {names}", click.get_current_context()
        )
    from onceward.hub.doctor.running_hub import check_hub  # noqa: PLC0415  # as above

    return check_hub(hub, token, ca_file=ca_file)


def _print(result: CheckResult) -> None:
    colour = None if os.environ.get("NO_COLOR") else _COLOURS[result.level]
    level = click.style(result.level.ljust(len("problem")), fg=colour)
    advice = f" -> {plain(result.advice)}" if result.advice else ""
    click.echo(f"{level}  {result.check}: {plain(result.detail)}{advice}")


doctor = click.command("doctor")(as_json(with_hub_flags(with_flags(doctor_command, *_FLAGS))))
