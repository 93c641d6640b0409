"""`python -m onceward` is the command `onceward`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the current folder first: a file there, such as uvloop.py, would be run in place of the package.
        del sys.path[0]

    from onceward.cli import main

    sys.exit(main())
