"""Readers for mail in files: one file, a folder of `.eml` files, or a Maildir. Positions are file names, sorted."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from onceward.core.json_text import refused
from onceward.hub.ingest.backfill.item import Item, Position
from onceward.hub.ingest.backfill.lines import MESSAGE_BYTES_MAX, mark_of
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.normalize.dates import source_time
from onceward.hub.ingest.payload import Payload

_MAILDIR = ("cur", "new")
# File names in a Maildir begin with the Unix time of the delivery.
_SECONDS = re.compile(r"[0-9]{9,11}(?=\.)")


class MailFiles:
    """A folder of `.eml` files at any depth, or a single file."""

    def __init__(self, path: Path, normalizer: Normalizer) -> None:
        self.name = str(path)
        self._path = path
        self._normalizer = normalizer
        self._files = [path] if path.is_file() else sorted(one for one in path.rglob("*.eml") if one.is_file())
        self.total: int | None = sum(map(_size, self._files))

    def mark(self) -> str:
        return mark_of(b"files")

    def items(self, after: Position | None) -> Iterator[Item]:
        done = 0
        for file in self._files:
            name = file.name if file == self._path else file.relative_to(self._path).as_posix()
            done += (size := _size(file))
            # Compare paths, not strings, because the files are sorted by path: `a/b` comes before `a.b`.
            if isinstance(after, str) and Path(name) <= Path(after):
                continue
            yield Item(name, name, done, size, functools.partial(_mail, file, self._normalizer, None))


class Maildir:
    """A Maildir. A mail that is opened moves from `new` to `cur` and gets flags; its name before them stays."""

    def __init__(self, path: Path, normalizer: Normalizer) -> None:
        self.name = str(path)
        self._path = path
        self._normalizer = normalizer
        files = [one for part in _MAILDIR for one in (path / part).iterdir() if not one.name.startswith(".")]
        self._names = sorted({one.name.partition(":")[0]: one for one in files}.items())
        self.total: int | None = sum(_size(file) for _, file in self._names)

    def mark(self) -> str:
        return mark_of(b"maildir")

    def items(self, after: Position | None) -> Iterator[Item]:
        done = 0
        for name, file in self._names:
            done += (size := _size(file))
            if isinstance(after, str) and name <= after:
                continue
            make = functools.partial(self._payload, name, file)
            yield Item(f"{file.parent.name}/{file.name}", name, done, size, make)

    def _payload(self, name: str, file: Path) -> Payload:
        seconds = _SECONDS.match(name)
        received_at = source_time(int(seconds[0])) if seconds else None
        if not file.exists():
            file = next((one for one in (self._path / "cur").glob(f"{_literally(name)}*")), file)
        return _mail(file, self._normalizer, received_at)


def _mail(file: Path, normalizer: Normalizer, received_at: str | None) -> Payload:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MESSAGE_BYTES_MAX + 1)
    except OSError as error:
        raise refused(file.name, f"cannot be read: {error.strerror}") from None
    if len(raw) > MESSAGE_BYTES_MAX:
        raise refused(file.name, f"has more than {MESSAGE_BYTES_MAX} bytes")
    return normalizer.mail(raw, received_at)


def _literally(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def is_maildir(path: Path) -> bool:
    return all((path / part).is_dir() for part in _MAILDIR)
