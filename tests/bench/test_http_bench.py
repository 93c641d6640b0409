"""The middleware benchmark: same servers for all contestants, correct responses, and verdicts from the figures."""

from pathlib import Path

import pytest
from bench.connections import is_whole
from bench.contest import Figures, Unable
from bench.http.contest import Group, compete
from bench.http.load import Mode
from bench.http.serve import SERVER_PACKAGES
from bench.http.server import Entry, ServerProcess
from bench.http.table import judge, render

from bench import names

_REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"


def test_the_peers_are_served_by_the_same_versions_as_we_are() -> None:
    assert _pinned("peers.txt") == _pinned("dev.txt")


@pytest.mark.usefixtures("few_objects")
def test_a_contestant_that_runs_the_handler_again_gets_no_figure() -> None:
    bare = ServerProcess(Entry("bare", "bench.http.entries:plain_bare", remembers=False), "", connections=4)
    forgetful = ServerProcess(Entry("forgetful", "bench.http.entries:plain_bare"), "", connections=4)
    broken = ServerProcess(Entry("broken", "bench.http.entries:nowhere"), "")

    figures = compete("memory", [Group(bare, forgetful, (broken,))], rounds=1, seconds=0.01, report=lambda _: None)

    assert "ran the handler" in figures.unable["memory", "forgetful", Mode.REPLAY]
    assert "AttributeError" in figures.unable["memory", "broken", Mode.FRESH]
    assert figures.median("memory", "forgetful", Mode.REPLAY) is None
    assert figures.median("memory", "forgetful", Mode.FRESH)
    assert figures.ratio("memory", ("bare", Mode.REPLAY), ("bare", Mode.REPLAY)) == 1


def test_the_middleware_is_judged_against_the_bare_route_and_the_fastest_peer() -> None:
    figures = Figures.empty()
    figures.stores[names.REDIS_ALWAYS] = [names.BARE, names.MIDDLEWARE, names.HTTP_IDEMKIT, names.HTTP_IDEMGATE]
    for mode, rates in {Mode.REPLAY: (85.0, 60.0, 50.0), Mode.FRESH: (45.0, 20.0, 50.0)}.items():
        figures.rates[names.REDIS_ALWAYS, names.BARE, mode] = [100.0]
        for name, rate in zip(figures.stores[names.REDIS_ALWAYS][1:], rates, strict=True):
            figures.rates[names.REDIS_ALWAYS, name, mode] = [rate]
    figures.unable[names.REDIS_ALWAYS, names.HTTP_IDEMGATE, Mode.NO_KEY] = "It wants a key."

    verdicts = {goal.what: (goal.found, goal.verdict) for goal in judge(figures)}
    text = render(figures, {"idemkit": "1.0"}, {"uvicorn": "0.1"}, connections=64, rounds=1, seconds=0.4)

    assert verdicts["replay ÷ the route alone, Redis, AOF always"] == ("0.85", "reached")
    assert verdicts["fresh ÷ the route alone, Redis, AOF always"] == ("0.45", "**not reached**")
    assert verdicts["no key ÷ the route alone, Redis, AOF always"] == (None, "not measured")
    assert verdicts["replay ÷ the fastest peer (idemkit), Redis, AOF always"] == ("1.42", "reached")
    assert verdicts["fresh ÷ the fastest peer (idemgate), Redis, AOF always"] == ("0.90", "**not reached**")
    assert "| Redis, AOF always | FastAPI, idemgate | 50 (0.50) | 50 (0.50) |  | -[^h1] |" in text
    assert "[^h1]: It wants a key." in text


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"HTTP/1.1 201 Created\r\ncontent-le", False),
        (b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{", False),
        (b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}", True),
        (b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", False),
        (b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
    ],
)
def test_the_load_generator_detects_the_end_of_a_response(answer: bytes, whole: bool) -> None:
    assert is_whole(answer) is whole


def test_a_response_without_an_end_is_refused() -> None:
    with pytest.raises(Unable, match="neither Content-Length nor chunks"):
        is_whole(b"HTTP/1.1 201 Created\r\n\r\n{}")


def _pinned(name: str) -> dict[str, str]:
    lines = (_REQUIREMENTS / name).read_text("utf-8").splitlines()
    pins = (line.split()[0].partition("==") for line in lines if "==" in line)
    return {package: version for package, _, version in pins if package in SERVER_PACKAGES}
