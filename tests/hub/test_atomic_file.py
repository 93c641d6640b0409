"""A new file appears completely or not at all, and never replaces another by accident."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from onceward.errors import AlreadyThere
from onceward.hub.atomic_file import new_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _fail_after(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    raise RuntimeError


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_file_gets_its_name_when_it_is_complete(overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "new"
    mask = os.umask(0o027)
    try:
        with new_file(path, overwrite=overwrite) as file:
            file.write(b"all of it")
            assert not path.exists()
    finally:
        os.umask(mask)

    assert path.read_bytes() == b"all of it"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["new"]


def test_a_failed_write_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_bytes(b"mine")
    for target in (path, tmp_path / "new"):
        with pytest.raises(RuntimeError), new_file(target, overwrite=True) as file:
            _fail_after(file, b"half")

    assert path.read_bytes() == b"mine"
    assert names(tmp_path) == ["there"]


def test_an_existing_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    there, dangling = tmp_path / "there", tmp_path / "dangling"
    there.write_bytes(b"mine")
    dangling.symlink_to("nowhere")
    for path in (there, dangling, tmp_path):
        with pytest.raises(AlreadyThere), new_file(path, overwrite=False):
            raise ZeroDivisionError

    assert names(tmp_path) == ["dangling", "there"]


def test_a_file_created_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with pytest.raises(AlreadyThere), new_file(path, overwrite=False):
        path.write_bytes(b"theirs")

    assert path.read_bytes() == b"theirs"
    assert names(tmp_path) == ["new"]


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(AlreadyThere), new_file(path, overwrite=True):
            raise ZeroDivisionError

    assert pipe.is_fifo()


def test_a_symlink_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with new_file(link, overwrite=True) as file:
        file.write(b"new")

    assert link.is_symlink()
    assert target.read_bytes() == b"new"
