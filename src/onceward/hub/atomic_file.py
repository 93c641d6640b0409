"""Atomic creation of a file: it appears complete, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from onceward.errors import AlreadyThere


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name when the block ends, and is deleted if the block raises.

    Without `overwrite`, an existing file raises `AlreadyThere`: before anything is written, and also if it was created
    in the meantime.
    """
    if path.is_dir():
        raise AlreadyThere(f"{str(path)!r} is a folder; give the path of a file")
    if os.path.lexists(path) and (not overwrite or (path.exists() and not path.is_file())):
        raise AlreadyThere(f"{str(path)!r} already exists")
    # A symbolic link stays, and its target is replaced.
    path = path.resolve()
    temporary = path.with_name(f".{path.name[:64]}.{secrets.token_hex(6)}.part")
    # Not `tempfile`: the file must have the permissions of any new file.
    try:
        opened = temporary.open("xb")
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "the folder does not exist", str(path.parent)) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    with opened as file:
        try:
            yield file
            file.flush()
            _name(temporary, path, overwrite=overwrite)
        finally:
            temporary.unlink(missing_ok=True)


def _name(temporary: Path, path: Path, *, overwrite: bool) -> None:
    if overwrite:
        temporary.replace(path)
        return
    try:
        # Unlike a rename, this never replaces a file that was created in the meantime.
        path.hardlink_to(temporary)
    except FileExistsError:
        raise AlreadyThere(f"{str(path)!r} already exists") from None
    except OSError:
        # A file system without hard links.
        if os.path.lexists(path):
            raise AlreadyThere(f"{str(path)!r} already exists") from None
        temporary.replace(path)
