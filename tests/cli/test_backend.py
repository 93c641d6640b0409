"""Commands against a hub that needs a token, and against data on servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Onceward
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

from onceward.hub.db.engine import open_database
from onceward.hub.security import tokens


@pytest.fixture
def reader_token(hub: tuple[str, Path]) -> Iterator[str]:
    """A token that may only read; the hub needs one until it is opened again."""
    with closing(open_database(f"sqlite:///{hub[1]}/hub.db")) as database:
        with database.write() as tx:
            token, text = tokens.create(tx, "reader", ["read"])
        yield text
        with database.write() as tx:
            tokens.revoke(tx, token.token_id)
            tokens.open_local(tx)


@pytest.mark.parametrize("onceward", ["hub"], indirect=True)
def test_a_token_is_taken_from_the_environment_or_the_option(
    onceward: Onceward, reader_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = onceward("task", "list")
    monkeypatch.setenv("ONCEWARD_TOKEN", reader_token)
    by_name = onceward("task", "list")
    too_far = onceward("admin", "gc-blobs", "--dry-run")
    monkeypatch.setenv("ONCEWARD_TOKEN", reader_token[:-1])
    wrong = onceward("task", "list")
    by_option = onceward("task", "list", "--token", reader_token)
    Path("token").write_text(reader_token + "\n")
    Path("token").chmod(0o640)
    by_file = onceward("task", "list", "--token-file", "token")
    both = onceward("task", "list", "--token-file", "token", "--token", reader_token)

    assert (without.code, by_name.code, by_option.code, too_far.code, wrong.code) == (1, 0, 0, 1, 1)
    assert (by_file.code, both.code) == (0, 2), by_file.err
    assert "--token and --token-file cannot be combined" in both.err
    assert "the hub requires a token: pass --token-file or --token, or set ONCEWARD_TOKEN" in without.err
    assert "The token is malformed, unknown or revoked; `onceward token list` shows" in wrong.err
    assert "the scope admin" in too_far.err


@pytest.mark.parametrize("onceward", ["folder"], indirect=True)
def test_the_data_may_be_on_servers(
    onceward: Onceward, postgres_server: PostgresServer, s3_server: S3Server, tmp_path: Path
) -> None:
    onceward.where += ["--database", postgres_server.create_database(), "--blobs", s3_server.fresh_url()]
    (tmp_path / "a.bin").write_bytes(os.urandom(1000))
    task = onceward.text("task", "add", "Elsewhere")
    made = onceward.text("attach", "add", task, "a.bin", "--kind", "other")
    got = onceward("attach", "get", made, "--output", "-")
    onceward.text("task", "rm", task)

    assert got.out == (tmp_path / "a.bin").read_bytes()
    assert onceward.text("admin", "fsck") == "all blobs are intact"
    assert onceward.json("admin", "gc-blobs", "--apply", "--grace", "0")["deleted_count"] == 1


@pytest.mark.parametrize("onceward", ["folder"], indirect=True)
def test_the_settings_of_the_hub_apply_without_a_running_hub(onceward: Onceward, tmp_path: Path) -> None:
    settings = '[attachments]\nmax_upload_bytes = 10\nallowed_media_types = ["text/*"]\ngc_grace = 0\n'
    (tmp_path / "onceward.toml").write_text(settings)
    task = onceward.text("task", "add", "Settings")
    add = ("attach", "add", task, "-", "--kind", "other")
    large = onceward(*add, stdin=b"x" * 11)
    wrong = onceward(*add, stdin=b"\x89PNG\r\n\x1a\n")
    linked = onceward("attach", "add-link", task, "--kind", "spec", "--repo-path", "a", "--media-type", "image/png")
    onceward.text("attach", "rm", onceward.text(*add, stdin=b"x" * 10))

    assert (large.code, large.err) == (2, "onceward: an upload is limited to 10 bytes\n")
    assert (wrong.code, wrong.err) == (2, "onceward: media_type image/png is not allowed\n")
    assert (linked.code, linked.err) == (wrong.code, wrong.err)
    assert onceward.json("admin", "gc-blobs", "--apply")["deleted_count"] == 1
    assert not [path for path in onceward.blobs.glob("sha256/??/??/*") if path.is_file()]
