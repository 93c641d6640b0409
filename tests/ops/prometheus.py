"""Let every alert fire in a real Prometheus, from real hubs in the condition, for `make test-alerts`.

The rules are those of `ops/alerts.yml`, with one change: their durations are a sixtieth, so that a minute takes a second.
Expressions, thresholds, labels and the names of jobs are unchanged. First a healthy hub must fire nothing. Then:

    job onceward, hub "busy"      doubts, slow requests, refused streams, failed and waiting turns
    job onceward, hub "other"     another version, and it is killed in the end
    job onceward, hub "lost"      its ledger cannot be reached
    job shop                      an application that proceeds without its store

`OncewardGaugesMissing` needs a job without any other hub, so a second Prometheus scrapes only the hub "lost".
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client import start_http_server
from tests.hub.hub_process import ROOT, RunningHub, running_hub, started_hub
from tests.ops.image import free_port
from tests.ops.test_alerts import send_unprotected_request

from onceward import Ledger
from onceward.core.claim import Claim
from onceward.store.open import open_store

RULES = ROOT / "ops" / "alerts.yml"
ALERTS = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
DEAD = "redis://127.0.0.1:1/0"
HEALTHY_SECONDS = 20.0
FIRE_SECONDS_MAX = 180.0
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
BRAIN = """
import asyncio

async def brain(context):
    text = context.messages[-1].content
    if text == "fail":
        raise RuntimeError("a brain that fails")
    await asyncio.sleep(3600 if text == "wait" else 2.8)
    return "done"
"""


def shortened(text: str) -> str:
    """Divide every duration of the rules by 60."""

    def divided(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, int(found[2]) * SECONDS[found[3]] // 60)}s{found[4]}"

    text = re.sub(r"(for: )(\d+)([smhd])($)", divided, text, flags=re.MULTILINE)
    return re.sub(r"(\[)(\d+)([smhd])(\])", divided, text)


@contextmanager
def prometheus(folder: Path, jobs: dict[str, list[int]], token: str = "") -> Iterator[str]:
    """Run a Prometheus that scrapes these ports every second. Yield its URL."""
    folder.mkdir()
    (folder / "alerts.yml").write_text(shortened(RULES.read_text()))
    configs: list[dict[str, Any]] = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
        for job, ports in jobs.items()
    ]
    if token:
        configs[0]["authorization"] = {"credentials": token}
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["alerts.yml"],
                "scrape_configs": configs,
            }
        )
    )
    subprocess.run(["promtool", "check", "config", "prometheus.yml"], cwd=folder, check=True, capture_output=True)
    port = free_port()
    command = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "--storage.tsdb.path=data"], cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def firing(url: str) -> set[str]:
    """Return the alerts that fire now."""
    with suppress(httpx.TransportError):
        found = httpx.get(f"{url}/api/v1/alerts", timeout=5.0).json()["data"]["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}
    return set()


def put_in_doubt(data: Path, seconds_ago: float) -> None:
    claimed_at = int((time.time() - seconds_ago) * 1e6)
    store = open_store(f"sqlite:///{data / 'ledger.db'}", clock=lambda: claimed_at)
    with closing(Ledger(store, namespace="idempotency")) as ledger:
        claim = ledger.blocking.begin("charges", f"{seconds_ago}", repeatable=False)
        assert isinstance(claim, Claim)
        assert ledger.blocking.doubt(claim)


class Load:
    """Requests that go on until the end, each kind in a thread of its own."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, act: Callable[[], object], pause_seconds: float) -> None:
        def repeat() -> None:
            while not self._ended.is_set():
                with suppress(httpx.TransportError):
                    act()
                self._ended.wait(pause_seconds)

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(10)


def chat(hub: RunningHub, message: str, session: str, wait: int = 0) -> int:
    headers = {"Prefer": f"wait={wait}"} if wait else {}
    body = {"message": message, "session_key": session}
    return httpx.post(f"{hub.url}/chat", json=body, headers=headers, timeout=30.0).status_code


def open_stream(hub: RunningHub, stack: ExitStack) -> int:
    response = stack.enter_context(httpx.stream("GET", f"{hub.url}/api/v1/events/stream", timeout=60.0))
    return response.status_code


def post_keyed_task(hub: RunningHub, number: int) -> int:
    body, headers = {"id": f"t{number}", "title": "A task"}, {"Idempotency-Key": f"k{number}"}
    return httpx.post(f"{hub.url}/v1/tasks", json=body, headers=headers, timeout=30.0).status_code


def environment_of_other_version(folder: Path) -> dict[str, str]:
    """Return the environment of a hub that takes itself for another version: its package metadata says so."""
    metadata = folder / "onceward-9.9.9.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: onceward\nVersion: 9.9.9\n")
    return {"PYTHONPATH": f"{folder}:{ROOT / 'src'}:{ROOT}"}


def wait_for(expected: set[str], urls: list[str]) -> set[str]:
    """Wait until all of these alerts have fired. Return those that have not."""
    missing, deadline = set(expected), time.monotonic() + FIRE_SECONDS_MAX
    while missing and time.monotonic() < deadline:
        for url in urls:
            for name in sorted(firing(url) & missing):
                print(f"onceward: {name} fires", flush=True)
                missing.discard(name)
        time.sleep(0.5)
    return missing


def run(folder: Path, stack: ExitStack) -> int:
    """Run all scenes. Return the exit code."""
    (folder / "slow_brain.py").write_text(BRAIN)
    own = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{folder}"}
    limits = {
        "ONCEWARD_HUB__MAX_STREAMS_PER_PRINCIPAL": "1",
        "ONCEWARD_TURNS__WORKERS": "40",
        "ONCEWARD_TURNS__MAX_ATTEMPTS": "1",
        "ONCEWARD_TURNS__BRAIN": "slow_brain:brain",
    }
    data = folder / "busy"
    busy = stack.enter_context(running_hub(data_dir=data, env=own | limits))
    with prometheus(folder / "healthy", {"onceward": [busy.port]}) as url:
        seen: set[str] = set()
        deadline = time.monotonic() + HEALTHY_SECONDS
        while time.monotonic() < deadline:
            post_keyed_task(busy, int(time.monotonic()))
            # Before the first scrapes, a metric is absent for what would be minutes.
            seen = seen | firing(url) if time.monotonic() > deadline - HEALTHY_SECONDS / 2 else set()
            time.sleep(0.5)
        targets = httpx.get(f"{url}/api/v1/targets", timeout=5.0).json()["data"]["activeTargets"]
    if seen or [one["health"] for one in targets] != ["up"]:
        print(f"onceward: a healthy hub fires {seen or 'nothing'}, and its target is {targets}", file=sys.stderr)
        return 1
    print("onceward: a healthy hub fires nothing", flush=True)

    other = stack.enter_context(
        started_hub(data_dir=folder / "other", env=environment_of_other_version(folder / "package"))
    )
    other.url = other.wait_for_line(r"onceward: listening on (https?://\S+)")[1]
    lost = stack.enter_context(running_hub(data_dir=folder / "lost", args=("--ledger", DEAD), env=own))
    shop = free_port()
    start_http_server(shop, addr="127.0.0.1")
    jobs = {"onceward": [busy.port, other.port, lost.port], "shop": [shop]}
    load = Load()
    stack.callback(load.stop)
    put_in_doubt(data, 0)
    put_in_doubt(data, 4 * 3600 + 60)
    open_stream(busy, stack)
    counter = iter(range(10**9))
    with prometheus(folder / "all", jobs) as url, prometheus(folder / "alone", {"onceward": [lost.port]}) as alone:
        load.start(lambda: open_stream(busy, ExitStack()), 0.1)
        load.start(lambda: chat(busy, "slow", f"s{next(counter)}", 10), 0.05)
        load.start(lambda: chat(busy, "fail", f"f{next(counter)}"), 0.5)
        # A request waits for the ledger before it is refused. Of all responses of the job, 5 % must be errors.
        for _ in range(10):
            load.start(lambda: post_keyed_task(lost, next(counter)), 0.1)
        load.start(send_unprotected_request, 0.5)
        missing = wait_for(ALERTS - {"OncewardHubDown", "OncewardTurnsWait"}, [url, alone])
        # From here on, no other turn gets a worker.
        for number in range(160):
            chat(busy, "wait", f"w{number}")
        other.process.kill()
        missing |= wait_for({"OncewardHubDown", "OncewardTurnsWait"}, [url])
    if missing:
        print(f"onceward: these alerts did not fire: {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    print(f"onceward: all {len(ALERTS)} alerts fired", flush=True)
    return 0


def main() -> int:
    """Check the rules, and let every alert fire. Return the exit code."""
    absent = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if absent:
        print(f"onceward: {' and '.join(absent)} not found; install prometheus, then run it again", file=sys.stderr)
        return 1
    checked = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    print(f"onceward: promtool check rules: {checked.stdout.split('SUCCESS: ')[-1].strip() or checked.stderr}")
    if checked.returncode != 0:
        return 1
    # The application without its store logs every request.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        try:
            return run(Path(folder), stack)
        except (httpx.HTTPError, json.JSONDecodeError, AssertionError) as error:
            print(f"onceward: {type(error).__name__}: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
