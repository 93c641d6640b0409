"""The root command: its groups of commands, its exit codes and its error output.

Exit codes: 0 success, 1 failure, 2 wrong usage, configuration or input, 3 `claims list --fail-if-any` found claims,
130 interrupted, 143 ended by SIGTERM.
An error is printed as one line on standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import click

from onceward.cli.commands.admin import admin
from onceward.cli.commands.attach import attach
from onceward.cli.commands.audit import audit
from onceward.cli.commands.backup import backup, restore
from onceward.cli.commands.claims import claims
from onceward.cli.commands.config import config
from onceward.cli.commands.console import console
from onceward.cli.commands.demo import demo
from onceward.cli.commands.doctor import doctor
from onceward.cli.commands.ingest import ingest
from onceward.cli.commands.mcp import mcp
from onceward.cli.commands.schema import schema
from onceward.cli.commands.serve import serve
from onceward.cli.commands.task import task
from onceward.cli.commands.token import token
from onceward.errors import (
    InvalidConfig,
    InvalidInput,
    InvalidKey,
    InvalidOption,
    InvalidStoreUrl,
    OncewardError,
    TooLarge,
)

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings come from onceward.toml, the environment (ONCEWARD_HUB__PORT=9000) and flags. Flags take"
    " precedence over the environment, and the environment over the file.",
)
@click.version_option(version("onceward"), message="onceward %(version)s")
def onceward() -> None:
    """Make retries safe: run the hub, manage its access tokens, and work with its data.

    \b
    Examples:
      onceward demo                           # a payment, a kill -9, a retry, one charge
      onceward serve                          # http://127.0.0.1:8787, data in ./onceward-data
      onceward config                         # every setting and its source
      onceward token create ada --scope read  # prints the token; it is not shown again
      onceward task add "Paint the shed"      # prints the id of the task
      onceward attach add TASK plan.pdf --kind spec
      onceward ingest backfill mail.mbox      # stores each message once
      onceward claims list --status in_doubt  # effects whose outcome is unknown
      onceward console --ledger sqlite:///ledger.db  # look at an application's own ledger
      onceward doctor                         # what is wrong, and what to do about it
      onceward backup /backups/today          # while the hub runs
    """  # noqa: D301  # \b: click does not rewrap the paragraph


for command in (
    serve, config, schema, token, task, attach, ingest, claims, mcp, admin, audit, backup, restore, doctor, console, demo,
):  # fmt: skip
    onceward.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    try:
        code = onceward.main(arguments, prog_name="onceward", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return MISUSED
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "onceward"
        return _print_error(f"{error.format_message().rstrip('.')}; see {path} --help", MISUSED)
    except click.ClickException as error:
        return _print_error(error.format_message(), FAILED)
    except (InvalidConfig, InvalidInput, InvalidKey, InvalidOption, InvalidStoreUrl, TooLarge) as error:
        return _print_error(str(error), MISUSED)
    except OncewardError as error:
        return _print_error(str(error), FAILED)
    except UnicodeEncodeError:
        return _print_error("an argument is not valid UTF-8", MISUSED)
    except OSError as error:
        return _print_error(f"{error.filename or 'I/O error'}: {error.strerror or error}", FAILED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _print_error(message: str, code: int) -> int:
    click.echo("onceward: " + " ".join(message.split()), err=True)
    return code
