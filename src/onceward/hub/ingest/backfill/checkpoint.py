"""Checkpoints: the position where a run stopped, so that the next run resumes there.

A checkpoint only saves time: an entry that is inserted again is recognised as a duplicate. So a checkpoint may be lost,
or be a little behind the commits, but it must never be ahead of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from onceward.hub.ingest.backfill.item import MessageSource, Position


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A folder with one small file for each unfinished archive. `purpose` separates runs to different destinations."""

    folder: Path
    purpose: str

    def load(self, source: MessageSource) -> Position | None:
        """Return the position to resume at; None without a checkpoint, or if the archive is a different one now."""
        try:
            saved = json.loads(self._file(source).read_bytes())
            if saved["mark"] != source.mark():
                return None
            position: Position = saved["position"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if isinstance(position, int) and source.total is not None and position > max(source.total, 0) > 0:
            return None
        return position if isinstance(position, int | str) and not isinstance(position, bool) else None

    def save(self, source: MessageSource, position: Position) -> None:
        """Replace the checkpoint atomically: if the process is killed, the old one or the new one remains."""
        if source.total is None:
            return
        file = self._file(source)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"source": source.name, "mark": source.mark(), "position": position}))
        new.replace(file)

    def forget(self, source: MessageSource) -> None:
        with contextlib.suppress(OSError):
            self._file(source).unlink()

    def _file(self, source: MessageSource) -> Path:
        where = f"{self.purpose}\0{Path(source.name).absolute()}"
        return self.folder / f"{hashlib.sha256(where.encode()).hexdigest()[:32]}.json"
