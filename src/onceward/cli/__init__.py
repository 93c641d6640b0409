"""The command `onceward`, for the data of a hub, a running hub, or an application's ledger.

Not here: the work that the commands do, which is in `hub/`.
Start with `root_command.py`. Each command or group is a module of `commands/`; `backend.py` opens what it works on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from onceward.errors import install_command

__all__ = ["argument", "backend", "backfill", "hub_flags", "main", "output", "settings", "token_file"]

_MISSING = "a package that the command needs is not installed ({}): {}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: The arguments of the command. Without them, those of the process.

    Returns:
        The exit code.
    """
    try:
        from onceward.cli.root_command import run  # noqa: PLC0415  # needs the extra `hub`

        return run(arguments)
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "onceward":
            raise
        print(f"onceward: {_MISSING.format(error.name, install_command('hub'))}", file=sys.stderr)  # noqa: T201
        return 1
