"""Where a run stopped, so that the next one goes on there.

A checkpoint only saves time: a chunk that is inserted twice is found to be there. So it may be lost, or be a little
behind, but it must never be ahead of what was committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from onceward.ingest.backfill.item import Position, Source


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A folder with one small file for each archive that is not done yet. `purpose` tells runs apart that go to
    different places.
    """

    folder: Path
    purpose: str

    def load(self, source: Source) -> Position | None:
        """Where to go on; None when nothing is known, or the archive is another one by now."""
        try:
            kept = json.loads(self._file(source).read_bytes())
            if kept["mark"] != source.mark():
                return None
            position: Position = kept["position"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if isinstance(position, int) and source.total is not None and position > max(source.total, 0) > 0:
            return None
        return position if isinstance(position, int | str) and not isinstance(position, bool) else None

    def save(self, source: Source, position: Position) -> None:
        """The old one or the new one is there, whenever the process ends."""
        if source.total is None:
            return
        file = self._file(source)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"source": source.name, "mark": source.mark(), "position": position}))
        new.replace(file)

    def forget(self, source: Source) -> None:
        with contextlib.suppress(OSError):
            self._file(source).unlink()

    def _file(self, source: Source) -> Path:
        where = f"{self.purpose}\0{Path(source.name).absolute()}"
        return self.folder / f"{hashlib.sha256(where.encode()).hexdigest()[:32]}.json"
