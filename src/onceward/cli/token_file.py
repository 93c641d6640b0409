"""The file that `--token-file` names: one line with an access token, private to its owner and group."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import click
from click.core import ParameterSource

from onceward.errors import InvalidOption

# More than any token.
_BYTES_MAX = 4096
# Read and write by others, and write by the group. A service often reads its secrets through its group.
_NOT_PRIVATE = 0o026


def token_of(hub: str | None, token: str | None, file: Path | None) -> str | None:
    """Return the token to send: that of the file, if one is given. A token option without a hub is refused.

    Without the URL of the hub, the command would work on the data in the current folder.
    """
    context = click.get_current_context()
    if hub is None:
        for name in ("token_file", "token"):
            # A token in the environment may be there for other commands.
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} is for a running hub: give its URL with --hub", context)
    return token if file is None else token_in(file)


def token_in(file: Path) -> str:
    """Return the token in a file, or raise `InvalidOption` if it has none, or if other users can read it."""
    context = click.get_current_context()
    if context.get_parameter_source("token") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--token and --token-file cannot be combined", context)
    name = str(file)
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            content = opened.read(_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidOption(f"the token file {name!r} cannot be read: {error.strerror}") from None
    # A pipe, as in `--token-file <(pass show hub)`, has no mode that matters.
    if stat.S_ISREG(found.st_mode) and found.st_mode & _NOT_PRIVATE:
        command = f"chmod 600 {shlex.quote(name)}"
        raise InvalidOption(f"other users can read or change the token file {name!r}; run `{command}`")
    lines = content.decode("utf-8", "replace").split()
    if len(lines) != 1 or len(content) > _BYTES_MAX:
        raise InvalidOption(f"the token file {name!r} must contain one token and nothing else")
    return lines[0]
