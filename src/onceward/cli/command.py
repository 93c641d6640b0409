"""The command line as a whole: its groups of commands, and how it ends.

Exit codes: 0 done, 1 failed, 2 wrong usage, configuration or input, 3 `claims list --fail-if-any` found claims,
130 interrupted, 143 ended by SIGTERM.
An error is one line on standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import click

from onceward.cli.admin import admin
from onceward.cli.attach import attach
from onceward.cli.claims import claims
from onceward.cli.config import config
from onceward.cli.ingest import ingest
from onceward.cli.serve import serve
from onceward.cli.task import task
from onceward.cli.token import token
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
    epilog="Settings come from onceward.toml, the environment (ONCEWARD_HUB__PORT=9000) and flags; later wins.",
)
@click.version_option(version("onceward"), message="onceward %(version)s")
def onceward() -> None:
    """Make every retry safe: run the hub, say who may use it, and work with what it keeps.

    \b
    onceward serve                          # on http://127.0.0.1:8787, data in ./onceward-data
    onceward config                         # every setting, and where it came from
    onceward token create ada --scope read  # prints the token, this once
    onceward task add "Paint the shed"      # prints the id of the task
    onceward attach add TASK plan.pdf --kind spec
    onceward ingest backfill mail.mbox      # an entry of each message, once
    onceward claims list --status in_doubt  # what nobody knows the outcome of
    """  # noqa: D301  # \b is click's mark for lines that stay as they are


for command in (serve, config, token, task, attach, ingest, claims, admin):
    onceward.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        code = onceward.main(arguments, prog_name="onceward", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return MISUSED
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "onceward"
        return _say(f"{error.format_message().rstrip('.')}; see {path} --help", MISUSED)
    except click.ClickException as error:
        return _say(error.format_message(), FAILED)
    except (InvalidConfig, InvalidInput, InvalidKey, InvalidOption, InvalidStoreUrl, TooLarge) as error:
        return _say(str(error), MISUSED)
    except OncewardError as error:
        return _say(str(error), FAILED)
    except UnicodeEncodeError:
        return _say("an argument is not text: it is not valid UTF-8", MISUSED)
    except OSError as error:
        return _say(f"{error.filename or 'input or output'}: {error.strerror or error}", FAILED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _say(message: str, code: int) -> int:
    click.echo("onceward: " + " ".join(message.split()), err=True)
    return code
