"""A hub whose rows and keys are in PostgreSQL and whose files are in S3: any machine can serve any request.

DATABASE=postgresql://user@host/name BLOBS='s3://bucket?endpoint=…' python examples/hub_postgres_s3

Starts two hubs, attaches a file at the first one, kills it, and sends the same request to the second one. The keys of S3
are in `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. `onceward.toml` beside this file has the settings of a service.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from onceward.hub.client import BlockingHub


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a hub. On two machines, each has a folder of its own, and both have the same stores."""
    command = [sys.executable, "-m", "onceward", "serve", "--port", "0", "--data-dir", str(folder)]
    command += ["--database", os.environ["DATABASE"], "--blobs", os.environ["BLOBS"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as hub:  # noqa: S603
        assert hub.stdout is not None  # noqa: S101
        line = hub.stdout.readline()  # onceward: listening on http://127.0.0.1:40211 (data in …)
        try:
            yield next(word for word in line.split() if word.startswith("http://")), hub
        finally:
            hub.terminate()


def attach(url: str, file: Path) -> str:
    with BlockingHub(url) as hub:
        task = hub.create_task("Paint the shed", task_id="shed", idempotency_key="task-shed")
        attached = hub.attach_file(task.id, str(file), "spec", idempotency_key="plan-1")
        content = hub.download(attached.id, str(file.with_suffix(".copy")), overwrite=True).sha256 == attached.sha256
        return (
            f"{attached.id}, {len(hub.task_attachments(task.id))} attachment, content {'same' if content else 'lost'}"
        )


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.md"
        plan.write_text("# The shed\n\nGreen, with a white door.\n")
        with serving(folder / "one") as (one, first), serving(folder / "two") as (two, _):
            before = attach(one, plan)
            first.kill()
            after = attach(two, plan)
    print("first hub: ", before.partition(", ")[2])
    print("second hub:", after.partition(", ")[2])
    print("the same attachment:", before == after)


if __name__ == "__main__":
    main()
