"""Build the image with buildah and run it, for `make test-image`. It needs root, but no daemon and no registry: `--base`
may name a local image that has Python 3.11 or newer.

The processes of the image run in a chroot, so the ports are those of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
IMAGE = "localhost/onceward-test"
START_SECONDS_MAX = 30.0
CHROOT = ("--isolation", "chroot")


class Failed(Exception):
    """The image does not do what it should."""


def buildah(*arguments: str, expected: Sequence[int] = (0,)) -> str:
    """Run a command of buildah, and return its output."""
    ended = subprocess.run(["buildah", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode not in expected:
        raise Failed(f"buildah {' '.join(arguments)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout + ended.stderr


def check(what: str, found: object, *, ok: bool) -> None:
    """Print one line, or fail."""
    if not ok:
        raise Failed(f"{what}: {found}")
    print(f"onceward: ok: {what}", flush=True)


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found += [int(folder.name), *children(int(folder.name))]
    return found


def hub_process(pid: int) -> int:
    """Return the process that runs the entry point, below the process of buildah."""
    for one in children(pid):
        words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
        if words[:2] == [b"/opt/onceward/bin/python", b"/opt/onceward/bin/onceward"]:
            return one
    raise Failed("the image does not run its entry point")


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def test_container(container: str) -> None:
    """Check one container of the image."""
    settings = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    entrypoint, command = settings["Entrypoint"], settings["Cmd"]
    port = free_port()

    def run(*words: str, expected: Sequence[int] = (0,)) -> str:
        return buildah(
            "run", *CHROOT, "--env", f"ONCEWARD_HUB__PORT={port}", container, "--", *words, expected=expected
        )

    check("the user is not root", user := run("id", "-u").strip(), ok=user == "10001")
    check("only the volume can be written", run("sh", "-c", "! touch /opt/onceward/x && ! touch /usr/x"), ok=True)
    check("the environment has no pip", run("sh", "-c", "! test -e /opt/onceward/bin/pip"), ok=True)
    refused = run(*entrypoint, *command, expected=(2,))
    check("without a token, the hub does not listen for other machines", refused, ok="token create" in refused)
    token = run(*entrypoint, "token", "create", "ops", "--scope", "admin")
    check("the first token is created in the volume", token, ok="ow_" in token)

    words = ["buildah", "run", *CHROOT, "--env", f"ONCEWARD_HUB__PORT={port}", container, "--", *entrypoint, *command]
    health_check = settings["Healthcheck"]["Test"][1:]
    unhealthy = run(*health_check, expected=(1,))
    check("the health check fails without a hub", unhealthy, ok="does not answer" in unhealthy)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while run(*health_check, expected=(0, 1)):
                if time.monotonic() > deadline:
                    raise Failed("the hub is not healthy")
            print("onceward: ok: the hub is healthy", flush=True)
            os.kill(hub_process(process.pid), signal.SIGTERM)
            output, _ = process.communicate(timeout=START_SECONDS_MAX)
        finally:
            process.kill()
    check("SIGTERM ends the hub with exit code 0", output, ok=process.returncode == 0)


def main() -> int:
    """Build and test the image. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.ops.image", description=__doc__)
    parser.add_argument("--base", help="the image to start from, instead of the one in the Dockerfile")
    base = parser.parse_args().base
    if shutil.which("buildah") is None or os.geteuid() != 0:
        print("onceward: make test-image needs root and buildah", file=sys.stderr)
        return 1
    try:
        arguments = ("--build-arg", f"BASE={base}") if base else ()
        buildah("build", *CHROOT, "--format", "docker", *arguments, "--tag", IMAGE, str(ROOT))
        container = buildah("from", "--pull-never", IMAGE).strip()
        try:
            test_container(container)
        finally:
            buildah("rm", container)
    except Failed as failure:
        print(f"onceward: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
