"""The turns benchmark: every delta reaches every follower, and the tables show ratios and reasons."""

import socket

import pytest
from bench.contest import Figures, Unable, compete
from bench.load import Mode, Scenario
from bench.turns import tools
from bench.turns.fanout import Followed, _count
from bench.turns.table import TurnFigures, render

from bench import names

_FRESH, _REPLAY = tools.SCENARIOS


def test_a_bare_function_is_called_every_time_and_never_replayed() -> None:
    bare = tools.Bare()

    assert bare.rate(_FRESH, 0.001) > 0
    with pytest.raises(Unable, match="stores nothing"):
        bare.rate(_REPLAY, 0.001)


def test_only_the_requested_scenarios_are_measured() -> None:
    asked: list[Scenario] = []

    class Listening(tools.Bare):
        def rate(self, scenario: Scenario, seconds: float) -> float:
            asked.append(scenario)
            return super().rate(scenario, seconds)

    figures = compete("memory", [Listening()], 2, 0.001, lambda _: None, tools.SCENARIOS)

    assert set(asked) == {_FRESH, _REPLAY}
    assert len(figures.rates["memory", names.BARE_FUNCTION, _FRESH]) == 2


def test_a_tool_is_compared_with_the_rounds_of_its_neighbours() -> None:
    figures = TurnFigures(versions={"LangGraph": "1.0"})
    figures.tools.stores[names.SQLITE] = [names.BARE_FUNCTION, names.TOOL, names.LANGGRAPH]
    figures.tools.rates = {
        (names.SQLITE, names.BARE_FUNCTION, _FRESH): [1_000_000.0] * 3,
        (names.SQLITE, names.TOOL, _FRESH): [900.0, 90.0, 1000.0],
        (names.SQLITE, names.LANGGRAPH, _FRESH): [300.0, 30.0, 100.0],
    }
    figures.tools.unable[names.SQLITE, names.BARE_FUNCTION, _REPLAY] = "It forgets."
    figures.streams[names.SQLITE] = [Followed(50, 500, 4.0, 5.0)]

    text = render(figures, rounds=3, seconds=0.1, turn_seconds=1.0, stream_rounds=3)

    assert "| SQLite FULL | bare function | 1,000,000 | 0.0009 | -[^t1] |  |" in text
    assert "| SQLite FULL | **Onceward, an idempotent tool** | 900 | 1.00 |  |  |" in text
    assert "| SQLite FULL | LangGraph task, thread resumed | 100 | 3.00 |  |  |" in text
    assert "[^t1]: It forgets." in text
    assert "| SQLite FULL | 50 | 500 | 5,000 | 4.00 s | 5.00 s |" in text
    assert "LangGraph 1.0" in text


def test_turns_are_shown_as_a_multiple_of_two_commits_by_hand() -> None:
    one, many = Scenario(Mode.FRESH, 1), Scenario(Mode.FRESH, 64)
    figures = TurnFigures(turns=Figures.empty())
    figures.turns.stores[names.POSTGRES] = [names.TURNS, names.BY_HAND]
    figures.turns.rates = {
        (names.POSTGRES, names.TURNS, one): [100.0],
        (names.POSTGRES, names.TURNS, many): [300.0],
        (names.POSTGRES, names.BY_HAND, one): [1000.0],
    }
    figures.turns.unable[names.POSTGRES, names.BY_HAND, many] = "One caller only."

    text = render(figures, rounds=1, seconds=0.1, turn_seconds=1.0, stream_rounds=1)

    assert "| PostgreSQL | **Onceward, an empty brain** | 100 (0.10) | 300 (0.30) |" in text
    assert "| PostgreSQL | two commits by hand | 1,000 (1.00) |  |" in text
    assert "One caller only." not in text


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_follower_counts_deltas_that_arrive_in_pieces(cut: int) -> None:
    stream = b"id: 1.1\nevent: delta\ndata: {}\n\nid: 1.2\nevent: delta\ndata: {}\n\nid: 1.3\nevent: done\ndata: {}\n\n"
    hub, client = socket.socketpair()
    with hub, _Pieces(client, cut) as small:
        hub.sendall(stream)

        first, last = _count([small], 2)

    assert 0 <= first == last


def test_a_follower_that_misses_a_delta_is_an_error() -> None:
    hub, client = socket.socketpair()
    with hub, client:
        hub.sendall(b"event: delta\n\nevent: done\n\n")

        with pytest.raises(RuntimeError, match=r"2 deltas were sent; clients got \[1\]"):
            _count([client], 2)


class _Pieces(socket.socket):
    """A connection that never gives more than a few bytes at once."""

    def __init__(self, one: socket.socket, size: int) -> None:
        super().__init__(one.family, one.type, one.proto, one.detach())
        self._size = size

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        return super().recv(min(bufsize, self._size), flags)
