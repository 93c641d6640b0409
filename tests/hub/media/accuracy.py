"""Accuracy of media type detection over the whole corpus, and its table in the guide.

python -m tests.hub.media.accuracy        prints the table as the guide has it
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tests.hub.media.corpus import Case, cases

from onceward.hub.media import hierarchy, libmagic
from onceward.hub.media.detect import of_sample


@dataclass(frozen=True, slots=True)
class Score:
    files: int
    exact: int
    # Another type than it is, and not merely a less special one.
    wrong: int

    @property
    def exact_percent(self) -> float:
        return 100 * self.exact / self.files

    @property
    def wrong_percent(self) -> float:
        return 100 * self.wrong / self.files


ALL = "all"
Detect = Callable[[Case], str]


def with_libmagic(case: Case) -> str:
    return of_sample(case.sample(), case.filename).media_type


def built_in(case: Case) -> str:
    return of_sample(case.sample(), case.filename, with_libmagic=False).media_type


def libmagic_alone(case: Case) -> str:
    """Detect from the first kilobytes with libmagic alone, without corrections."""
    return hierarchy.normal(libmagic.raw_type(case.data[:4096])) or hierarchy.UNKNOWN


@functools.cache
def scores(detect: Detect) -> dict[str, Score]:
    """The score of each group, and of all."""
    counts = {ALL: [0, 0, 0]}
    for case in cases():
        found = hierarchy.canonical(detect(case))
        is_exact = found == hierarchy.canonical(case.media_type)
        is_wrong = not is_exact and not hierarchy.descends(case.media_type, found)
        for count in (counts.setdefault(case.group, [0, 0, 0]), counts[ALL]):
            count[0] += 1
            count[1] += is_exact
            count[2] += is_wrong
    return {group: Score(*count) for group, count in counts.items()}


def table() -> str:
    """The rows of the guide's table."""
    measured = [scores(detect) for detect in (with_libmagic, built_in, libmagic_alone)]
    lines = []
    for group in [*(name for name in measured[0] if name != ALL), ALL]:
        types = len({case.media_type for case in cases() if group in {case.group, ALL}})
        cells = [f"{one[group].exact_percent:.1f} % / {one[group].wrong_percent:.1f} %" for one in measured]
        lines.append(f"| {group} | {types} | {measured[0][group].files} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201 - it is asked for
