"""Interpreters for `make test-pythons`: print `version=path` for each version, or fail and say how to get those missing.

A version that is not on the machine is an error, because tests that did not run have not passed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# A build without these modules cannot make an environment or run the tests.
_PROBE = "import ensurepip, sqlite3, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
# Where pyenv and uv install interpreters, below the home folder.
_PLACES = (".pyenv/versions/{}.*/bin/python", ".local/share/uv/python/cpython-{}.*/bin/python")


def find_python(version: str, home: Path) -> str | None:
    """Return the path of an interpreter of this version that works, or None."""
    for candidate in _candidates(version, home):
        try:
            ended = subprocess.run([candidate, "-c", _PROBE], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if ended.stdout.strip() == version:
            return candidate
    return None


def _candidates(version: str, home: Path) -> Iterator[str]:
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    for place in _PLACES:
        yield from map(str, sorted(home.glob(place.format(version)), reverse=True))


def main(versions: Sequence[str], home: Path) -> int:
    found = {version: find_python(version, home) for version in versions}
    missing = [version for version, path in found.items() if path is None]
    if not versions:
        sys.stderr.write('onceward: name the versions to test: make test-pythons PYTHONS="3.12 3.13"\n')
        return 1
    if missing:
        get = " ".join(missing)
        sys.stderr.write(
            f"onceward: no Python {' or '.join(missing)} on this machine. Install it with one of:\n"
            f"  uv python install {get}\n"
            f"  pyenv install {get}\n"
            f"  apt-get install {' '.join(f'python{one} python{one}-venv' for one in missing)}\n"
            'or name the versions to test: make test-pythons PYTHONS="3.12 3.13"\n'
        )
        return 1
    sys.stdout.write("".join(f"{version}={path}\n" for version, path in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path.home()))
