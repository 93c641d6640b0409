"""The result of one run, and how to replay it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """A result. `broken` is the broken guarantee, if any."""

    seed: int
    broken: str | None
    trace: tuple[str, ...]

    def __str__(self) -> str:
        if self.broken is None:
            return f"seed {self.seed}: every promise was kept"
        return f"seed {self.seed}: {self.broken}\n    python -m tests.simulation --seed {self.seed} --trace"
