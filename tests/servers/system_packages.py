"""Programs that no wheel has: found on this machine, or installed from the packages of Debian or Ubuntu.

`make test` runs this module first: `python -m tests.servers.system_packages` installs what is missing, as root, or with
`sudo` if that needs no password. Tests only look for the programs. A program that is missing is an error in the tests
that need it, and never a skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Programs and the names of their files. The first one is also the name of the package.
PROGRAMS = {"pgbouncer": ("pgbouncer",), "chromium": ("chromium", "chromium-browser", "google-chrome")}
# Environment variables that name a program which is somewhere else.
_VARIABLES = {"chromium": "ONCEWARD_CHROMIUM"}
# For Chromium and its libraries over a slow line.
_SECONDS_MAX = 600
# How long apt-get waits for another one, such as that of a second test run.
_LOCK_SECONDS = 300
# System folders that the PATH of a user may lack.
_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")


def program(name: str) -> Path:
    """Return the path of a program, or raise `RuntimeError`."""
    found = _find(name)
    if found is None:
        raise RuntimeError(
            f"the tests need {name}, which is not installed; run `make system-packages`, or install the package"
            f" {name} of your system{f', or name the program in {_VARIABLES[name]}' if name in _VARIABLES else ''}"
        )
    return found


def _find(name: str) -> Path | None:
    elsewhere = os.environ.get(_VARIABLES.get(name, ""))
    names = (elsewhere,) if elsewhere else PROGRAMS[name]
    found = next(filter(None, map(_which, names)), None)
    return None if found is None else Path(found)


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS]))


def install(package: str) -> str:
    """Install a package, and return why that failed, or nothing."""
    apt = _which("apt-get")
    if apt is None:
        return "this system has no apt-get"
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if as_root and shutil.which("sudo") is None:
        return "this user is not root"
    # The run level of a single user keeps Debian's scripts from starting a service of the package.
    environment = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"]
    waiting = ["-q", "-o", f"DPkg::Lock::Timeout={_LOCK_SECONDS}"]
    failure = ""
    for options in (["update"], ["install", "-y", "--no-install-recommends", package]):
        try:
            done = subprocess.run(
                [*as_root, *environment, apt, *waiting, *options],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS_MAX,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        lines = (done.stderr or done.stdout).strip().splitlines()
        # A failed update may leave lists that are good enough.
        failure = (lines[-1] if lines else f"code {done.returncode}") if done.returncode else ""
    return failure


def main() -> int:
    """Install what is missing. Returns 1 if something is still missing."""
    code = 0
    for name in PROGRAMS:
        if os.environ.get(_VARIABLES.get(name, "")) or _find(name) is not None:
            continue
        sys.stderr.write(f"onceward: installing the package {name}, which the tests need (up to a minute)\n")
        failure = install(name)
        if _find(name) is None:
            code = 1
            sys.stderr.write(f"onceward: {name} could not be installed, so its tests will fail: {failure}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
