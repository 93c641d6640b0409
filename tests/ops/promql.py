"""An evaluator for the part of PromQL that the rules in `ops/` use. It is not Prometheus.

It parses selectors, `by`, the functions below, division and comparisons, and refuses everything else. `increase` and
`delta` are last minus first in the window: they do not extrapolate, and do not detect a counter that was reset.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

_TOKEN = re.compile(r'\s*(\d+(?:\.\d+)?(?![\dmhs])|\d+[smh]|[A-Za-z_][A-Za-z0-9_]*|"[^"]*"|=~|==|[><(){}\[\],=/])')
_SAMPLE = re.compile(r"([a-zA-Z_]\w*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNITS = {"s": 1, "m": 60, "h": 3600}
_OVER_TIME = ("rate", "increase", "delta")
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "count": len}


@dataclass(frozen=True)
class Scrape:
    """The samples of all targets at one time: the name, the labels and the value of each."""

    seconds: float
    samples: dict[tuple[str, Labels], float]


def scrape(seconds: float, **text_of_instance: str) -> Scrape:
    """Parse the texts of `/metrics`, and add the labels `job` and `instance` as Prometheus does."""
    samples: dict[tuple[str, Labels], float] = {}
    for instance, text in text_of_instance.items():
        own = {("job", "onceward"), ("instance", instance)}
        samples["up", frozenset(own)] = 1.0 if text else 0.0
        for line in text.splitlines():
            if line and not line.startswith("#"):
                found = _SAMPLE.fullmatch(line)
                assert found, line
                labels = frozenset(own | {(name, value) for name, value in _LABEL.findall(found[2] or "")})
                samples[found[1], labels] = float(found[3])
    return Scrape(seconds, samples)


class Expression:
    """A parsed expression: `metrics` are the names in it, each with the labels that are used with it."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        assert "".join(self._tokens) == re.sub(r"\s", "", text), f"unknown syntax in {text}"
        self.metrics: dict[str, set[str]] = {}
        self._grouped: list[str] = []
        self._root = self._comparison()
        assert not self._tokens, f"unexpected {self._tokens} in {text}"

    def evaluate(self, *scrapes: Scrape) -> Vector:
        """Return the series that the expression finds at the time of the last scrape. An alert fires if there are any."""
        return self._root(scrapes)

    def _take(self, *expected: str) -> str:
        token = self._tokens.pop(0)
        assert not expected or token in expected, f"expected {expected}, not {token}"
        return str(token)

    def _peek(self) -> str:
        return str(self._tokens[0]) if self._tokens else ""

    def _comparison(self) -> Callable[[tuple[Scrape, ...]], Vector]:
        left = self._term()
        if self._peek() == "/":
            self._take()
            over, under = left, self._term()

            def divided(scrapes: tuple[Scrape, ...]) -> Vector:
                below = under(scrapes)
                return {labels: value / below[labels] for labels, value in over(scrapes).items() if below.get(labels)}

            left = divided
        if self._peek() in {">", "=="}:
            operator, limit, all_of = self._take(), float(self._take()), left

            def compared(scrapes: tuple[Scrape, ...]) -> Vector:
                return {
                    labels: value
                    for labels, value in all_of(scrapes).items()
                    if (value > limit if operator == ">" else value == limit)
                }

            return compared
        return left

    def _term(self) -> Callable[[tuple[Scrape, ...]], Vector]:
        name = self._take()
        if name in _AGGREGATES:
            return self._aggregate(name)
        if name == "histogram_quantile":
            self._take("(")
            quantile = float(self._take())
            self._take(",")
            inner = self._term()
            self._take(")")
            return lambda scrapes: _quantile(quantile, inner(scrapes))
        if name == "absent":
            self._take("(")
            inner = self._term()
            self._take(")")
            return lambda scrapes: {} if inner(scrapes) else {frozenset(): 1.0}
        if name in _OVER_TIME:
            self._take("(")
            matches = self._selector(self._take())
            self._take("[")
            duration = self._take()
            seconds = float(duration[:-1]) * _UNITS[duration[-1]]
            self._take("]")
            self._take(")")
            return lambda scrapes: _over_time(name, matches, seconds, scrapes)
        matches = self._selector(name)
        return lambda scrapes: {
            labels: value for (one, labels), value in scrapes[-1].samples.items() if matches(one, labels)
        }

    def _aggregate(self, name: str) -> Callable[[tuple[Scrape, ...]], Vector]:
        self._take("by")
        self._take("(")
        wanted = [self._take()]
        while self._take(",", ")") == ",":
            wanted.append(self._take())
        self._take("(")
        self._grouped.extend(wanted)
        inner = self._term()
        del self._grouped[-len(wanted) :]
        self._take(")")

        def aggregated(scrapes: tuple[Scrape, ...]) -> Vector:
            groups: dict[Labels, list[float]] = {}
            for labels, value in inner(scrapes).items():
                groups.setdefault(frozenset(one for one in labels if one[0] in wanted), []).append(value)
            return {labels: _AGGREGATES[name](values) for labels, values in groups.items()}

        return aggregated

    def _selector(self, metric: str) -> Callable[[str, Labels], bool]:
        matchers: list[tuple[str, str, str]] = []
        if self._peek() == "{":
            while self._take("{", ",", "}") != "}":
                matchers.append((self._take(), self._take("=", "=~"), self._take().strip('"')))
                if self._peek() == "}":
                    self._take()
                    break
        self.metrics.setdefault(metric, set()).update(self._grouped, (label for label, _, _ in matchers))

        def matches(name: str, labels: Labels) -> bool:
            values = dict(labels)
            return name == metric and all(
                re.fullmatch(wanted if operator == "=~" else re.escape(wanted), values.get(label, "")) is not None
                for label, operator, wanted in matchers
            )

        return matches


def _over_time(
    name: str, matches: Callable[[str, Labels], bool], seconds: float, scrapes: tuple[Scrape, ...]
) -> Vector:
    window = [one for one in scrapes if one.seconds >= scrapes[-1].seconds - seconds]
    found: Vector = {}
    for (metric, labels), last in window[-1].samples.items():
        series = [one for one in window if (metric, labels) in one.samples]
        if matches(metric, labels) and len(series) > 1:
            change = last - series[0].samples[metric, labels]
            found[labels] = change / (series[-1].seconds - series[0].seconds) if name == "rate" else change
    return found


def _quantile(quantile: float, buckets: Vector) -> Vector:
    """Return the upper bound of the bucket that has the quantile. Prometheus interpolates inside of the bucket."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        groups.setdefault(frozenset(one for one in labels if one[0] != "le"), []).append((bound, count))
    found: Vector = {}
    for labels, pairs in groups.items():
        ordered = sorted(pairs)
        total = ordered[-1][1]
        if total > 0:
            found[labels] = next((bound for bound, count in ordered if count >= quantile * total), math.inf)
    return found
