"""The bench of the hub's edges calls every layer once, and gets the right responses from all of them."""

import subprocess
import sys
from pathlib import Path

from bench.hub import edges

_ROOT = Path(__file__).resolve().parents[2]


def test_a_short_run_prints_every_layer_of_the_hub() -> None:
    # In its own process, because it configures the process's log.
    command = [sys.executable, "-m", "bench.hub.edges", "--rounds", "1", "--round-seconds", "0.01"]
    printed = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout

    for name in [
        edges.BARE,
        "FastAPI",
        "IdempotencyMiddleware",
        "AuthMiddleware",
        "HostsMiddleware",
        edges.NO_LOG,
        edges.HUB,
        edges.DUPLICATE,
        edges.LOOKUP,
    ]:
        assert f"  {name}\n" in printed


def test_a_layers_own_time_is_the_difference_to_the_layer_inside_it() -> None:
    text = edges.render({edges.BARE: 30.0, "FastAPI": 42.5, "AuthMiddleware": 45.0, edges.LOOKUP: 9.0})

    assert [line.split() for line in text.splitlines()[1:]] == [
        ["30.0", *edges.BARE.split()],
        ["42.5", "12.5", "FastAPI"],
        ["45.0", "2.5", "AuthMiddleware"],
        ["9.0", edges.LOOKUP],
    ]
