"""Tables of blobs, and the verdicts on their goals."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.blobs.put import BY_HAND, FOLDER, MANY, OURS, SMALL_BYTES, WITH_ROWS, Load
from bench.blobs.transfer import Transferred
from bench.contest import Figures
from bench.goals import Goal, at_least, at_most, shown
from bench.table import goal_rows, heading

# Allows for noise: on one day, the same collection of 10,000 blobs took between 112 and 142 µs per blob. A step that
# reads all blobs for each blob would take ten times as long per blob with ten times as many blobs.
FLAT_MAX = 1.5
_BASE = 10_000
_POWERS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

_ABOUT = """\
Puts: the medians of {rounds} rounds. Each round measures all contestants in turn, so that all run under the same conditions.
A ratio is the median of the ratios of each round.

* **By hand**: hash while writing, fsync, link, fsync the folder, without checks and locks.
* **Blobs of 4 KiB** start like a PNG, and the rest is random. With rows, a blob of unknown type takes about 0.3 ms longer,
  because libmagic has to read it.
* **With rows**: `create_managed_attachment` on SQLite, called from threads of one process: the same puts, with media types,
  rows and events.
* **Through a hub**: one hub process, with a new connection for each small upload.
* **Collection**: garbage collection where half of the blobs are garbage and half are attached.
"""


@dataclass(slots=True)
class BlobFigures:
    """Measured figures: puts in rounds, one run through a hub, and microseconds by database and number of blobs."""

    puts: Figures = field(default_factory=Figures.empty)
    hub: Transferred | None = None
    collected: dict[str, dict[int, float]] = field(default_factory=dict)

    @property
    def loads(self) -> list[Load]:
        return [load for _, name, load in self.puts.rates if name == OURS and isinstance(load, Load)]

    @property
    def small(self) -> list[Load]:
        return [load for load in self.loads if load.count > 1]


def render(figures: BlobFigures, *, rounds: int) -> str:
    parts = [
        _beside(figures, figures.loads, "durable puts into a folder, without a database", OURS, BY_HAND),
        _beside(figures, figures.small, "the same with rows, as attachments", WITH_ROWS, OURS),
        [] if figures.hub is None else _through(figures.hub),
        _collected(figures.collected) if figures.collected else [],
        goal_rows(judge(figures)),
    ]
    lines = [line for part in parts if part for line in (*part, "")]
    return "\n".join(["# Cost of blobs", "", _ABOUT.format(rounds=rounds), *lines])


def _beside(figures: BlobFigures, loads: list[Load], title: str, above: str, below: str) -> list[str]:
    names = {OURS: f"{OURS}, without a database"} if above == WITH_ROWS else {}
    rows = heading([title], [names.get(above, above), names.get(below, below), "ratio"])
    for load in loads:
        rates = [figures.puts.median(FOLDER, name, load) or 0.0 for name in (above, below)]
        ratio = figures.puts.ratio(FOLDER, (above, load), (below, load)) or 0.0
        rows.append(f"| {load} | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.2f} |")
    return rows


def _through(hub: Transferred) -> list[str]:
    size = f"uploads of {SMALL_BYTES // 1024} KiB"
    rows = {
        f"upload of {hub.mib:,} MiB": f"{hub.upload:,.0f} MiB/s",
        "download, whole": f"{hub.download:,.0f} MiB/s",
        "download, second half by Range": f"{hub.second_half:,.0f} MiB/s",
        f"{size}, one client, a new connection each": f"{hub.small[1]:,.0f}/s",
        f"{size}, {MANY} clients, a new connection each": f"{hub.small[MANY]:,.0f}/s",
        f"growth of the hub's memory while {hub.mib:,} MiB are uploaded": f"{hub.grown_mib:.1f} MiB",
    }
    lines = heading(["through a hub on SQLite and a folder"], ["this run"])
    return [*lines, *(f"| {what} | {figure} |" for what, figure in rows.items())]


def _collected(collected: dict[str, dict[int, float]]) -> list[str]:
    counts = next(iter(collected.values()), {})
    titles = [f"{_power(count)}{'' if number else ' blobs'}" for number, count in enumerate(counts)]
    rows = heading(["collection, µs for each collected blob"], titles)
    for store, took in collected.items():
        rows.append(f"| {store} | {' | '.join(f'{figure:,.0f}' for figure in took.values())} |")
    return rows


def judge(figures: BlobFigures) -> list[Goal]:
    many = next((load for load in figures.small if load.threads == MANY), None)
    large = next((load for load in figures.loads if load.count == 1), None)
    size = "256 MiB" if large is None else f"{large.size_bytes // 1024**2} MiB"
    alone = None if many is None else figures.puts.median(FOLDER, OURS, many)
    ratio = figures.puts.ratio
    return [
        at_least(
            f"durable put of {size} ÷ by hand",
            None if large is None else ratio(FOLDER, (OURS, large), (BY_HAND, large)),
            0.9,
        ),
        at_least(
            f"small uploads of {MANY} clients, with rows (`create_managed_attachment`), ÷ the same files without a database",
            None if many is None else ratio(FOLDER, (WITH_ROWS, many), (OURS, many)),
            0.5,
        ),
        shown("the same ÷ by hand", None if many is None else ratio(FOLDER, (WITH_ROWS, many), (BY_HAND, many))),
        shown(
            "the same through HTTP ÷ the same files without a database, not in the same rounds",
            None if figures.hub is None or alone is None else figures.hub.small[MANY] / alone,
        ),
        *[_flat(store, took) for store, took in figures.collected.items()],
    ]


def _flat(store: str, took: dict[int, float]) -> Goal:
    base, most = (_BASE if _BASE in took else min(took)), max(took)
    what = f"time for each collected blob at {_power(most)} blobs ÷ at {_power(base)}, {store}"
    return at_most(what, took[most] / took[base] if most > base else None, FLAT_MAX)


def _power(count: int) -> str:
    digits = str(count)
    is_power = digits.strip("0") == "1" and len(digits) > 3
    return f"10{str(len(digits) - 1).translate(_POWERS)}" if is_power else f"{count:,}"
