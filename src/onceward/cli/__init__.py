"""The command `onceward`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_MISSING = "the command needs packages that are not installed ({}): pip install 'onceward[hub]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    try:
        from onceward.cli.command import run  # noqa: PLC0415  # the library half works without it

        return run(arguments)
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "onceward":
            raise
        print(f"onceward: {_MISSING.format(error.name)}", file=sys.stderr)  # noqa: T201
        return 1
