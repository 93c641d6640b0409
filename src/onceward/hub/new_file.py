"""A new file that is there whole or not at all."""

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
    """Write into it; it has its name when the block ends, and is gone when the block raises.

    Without `overwrite` a file that is there is `AlreadyThere`, before anything is written and also if it came meanwhile.
    """
    if path.is_dir():
        raise AlreadyThere(f"{str(path)!r} is a folder")
    if os.path.lexists(path) and (not overwrite or (path.exists() and not path.is_file())):
        raise AlreadyThere(f"{str(path)!r} is already there")
    # A link is kept, and what it leads to is replaced.
    path = path.resolve()
    temporary = path.with_name(f".{path.name[:64]}.{secrets.token_hex(6)}.part")
    # Not `tempfile`: the file shall have the permissions that any new file gets.
    try:
        opened = temporary.open("xb")
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent)) from None
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
        # Unlike renaming, this never takes the place of a file that came meanwhile.
        path.hardlink_to(temporary)
    except FileExistsError:
        raise AlreadyThere(f"{str(path)!r} is already there") from None
    except OSError:
        # A file system without links.
        if os.path.lexists(path):
            raise AlreadyThere(f"{str(path)!r} is already there") from None
        temporary.replace(path)
