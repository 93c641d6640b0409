"""How often the type is right, over the whole corpus, and the table that says so in the guide.

python -m tests.blobs.media.accuracy        prints the table as the guide has it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.blobs.media.corpus import Case, cases

from onceward.blobs.media import lattice, libmagic
from onceward.blobs.media.sniff import of_sample


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


Look = Callable[[Case], str]


def with_libmagic(case: Case) -> str:
    return of_sample(case.sample(), case.filename).media_type


def built_in(case: Case) -> str:
    return of_sample(case.sample(), case.filename, with_libmagic=False).media_type


def libmagic_alone(case: Case) -> str:
    """What it says of the first kilobytes when nobody corrects it."""
    return lattice.normal(libmagic.said_of(case.data[:8192])) or lattice.UNKNOWN


def score(chosen: Iterable[Case], look: Look) -> Score:
    files = exact = wrong = 0
    for case in chosen:
        found = lattice.canonical(look(case))
        files += 1
        if found == lattice.canonical(case.media_type):
            exact += 1
        elif not lattice.descends(case.media_type, found):
            wrong += 1
    return Score(files, exact, wrong)


def table() -> str:
    """The rows of the guide's table."""
    corpus = cases()
    groups = list(dict.fromkeys(case.group for case in corpus))
    rows = [(group, [case for case in corpus if case.group == group]) for group in groups]
    lines = []
    for name, chosen in [*rows, ("all", corpus)]:
        types = len({case.media_type for case in chosen})
        cells = [
            f"{one.exact_percent:.1f} % / {one.wrong_percent:.1f} %"
            for one in (score(chosen, look) for look in (with_libmagic, built_in, libmagic_alone))
        ]
        lines.append(f"| {name} | {types} | {len(chosen)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201 - it is asked for
