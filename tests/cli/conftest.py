"""The command inside the test's own process, on a running hub and on a data folder."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.hub.hub_process import running_hub

from onceward.cli import main


@dataclass(frozen=True, slots=True)
class Done:
    """Exit code and output of a command."""

    code: int
    out: bytes
    err: str


class Onceward:
    """`onceward("task", "add", "x")`: runs a command, with the options that name the hub or the data folder added."""

    def __init__(
        self, where: list[str], blobs: Path, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.where = where
        self.blobs = blobs
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str | Path, stdin: bytes = b"") -> Done:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capture.readouterr()
        code = main([*map(str, arguments), *self.where])
        printed = self._capture.readouterr()
        return Done(code, printed.out, printed.err.decode())

    def text(self, *arguments: str | Path, stdin: bytes = b"") -> str:
        """Return the output of a command that must succeed."""
        done = self(*arguments, stdin=stdin)
        assert (done.code, done.err) == (0, "")
        return done.out.decode().rstrip("\n")

    def json(self, *arguments: str | Path, code: int = 0) -> Any:
        done = self(*arguments, "--json")
        assert (done.code, done.err) == (code, "")
        return json.loads(done.out)


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a hub that all of these tests share, and its data folder."""
    data_dir = tmp_path_factory.mktemp("hub") / "data"
    with running_hub(data_dir=data_dir) as hub:
        yield hub.url, data_dir


@pytest.fixture(params=["hub", "folder"])
def onceward(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Onceward:
    monkeypatch.chdir(tmp_path)
    if request.param == "hub":
        url, data_dir = request.getfixturevalue("hub")
        return Onceward(["--hub", url], data_dir / "blobs", capsysbinary, monkeypatch)
    return Onceward(["--data-dir", "data"], tmp_path / "data" / "blobs", capsysbinary, monkeypatch)
