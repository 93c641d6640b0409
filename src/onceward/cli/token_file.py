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
