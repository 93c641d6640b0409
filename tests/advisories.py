"""Compare every pinned package with published advisories, for `make audit`. pip-audit asks PyPI, or a local folder.

An audit that checks nothing must not pass, so this differs from pip-audit alone in three ways:

* A package that could not be checked is a failure. pip-audit skips it, and exits with 0.
* Packages for other systems are checked, too. pip-audit leaves out those whose marker does not match this machine.
* A folder of advisories must be recent.

`--advisories` names a checkout of the PyPA advisory database, for machines that cannot reach PyPI's API.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parent.parent
# Advisories are published daily. An older folder misses what an attacker has read about.
ADVISORIES_DAYS_MAX = 14
# Packages named per finding: without the network, all packages have the same one.
_NAMED_MAX = 5
_UNCHECKED = (
    "onceward: the audit failed, because some packages were not compared with the advisories. Run it on a machine that"
    " reaches https://pypi.org, or on a checkout of https://github.com/pypa/advisory-database:"
    " make audit ADVISORIES=folder"
)
# Advisories that do not apply to us, each with the reason.
ACCEPTED: dict[str, str] = {}

_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[\w,-]*\])?==([^\s;\\]+)", re.MULTILINE)
_MODIFIED = re.compile(r"^modified: [\"']?([0-9T:.+Z-]+)", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """A reason to fail."""

    package: str
    reason: str
    is_checked: bool = True


def pins(file: Path) -> list[tuple[str, str]]:
    """Return every package in a compiled file with its version, whatever its marker. A name may have two versions."""
    return [(_normal(name), version) for name, version in _PIN.findall(file.read_text("utf-8"))]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def findings(pinned: Sequence[tuple[str, str]], report: Mapping[str, Any]) -> list[Finding]:
    """Compare a report of pip-audit with the packages that it should have."""
    found: list[Finding] = []
    checked: set[tuple[str, str]] = set()
    for package in report["dependencies"]:
        name = _normal(package["name"])
        if "skip_reason" in package or "vulns" not in package:
            continue
        checked.add((name, package["version"]))
        for advisory in package["vulns"]:
            names = [advisory["id"], *advisory.get("aliases", [])]
            if ACCEPTED.keys().isdisjoint(names):
                fixed = ", ".join(advisory.get("fix_versions", [])) or "no version"
                found.append(Finding(f"{name} {package['version']}", f"{' '.join(names)}, fixed in {fixed}"))
    reasons = {_normal(one["name"]): one["skip_reason"] for one in report["dependencies"] if "skip_reason" in one}
    for name, version in pinned:
        if (name, version) not in checked:
            reason = reasons.get(name, "it is not in the report")
            reason = reason.removesuffix(f": {name} ({version})")  # so that equal reasons are printed once
            found.append(Finding(f"{name} {version}", f"could not be checked: {reason}", is_checked=False))
    return found


def audit(file: Path, service: Sequence[str]) -> tuple[int, list[Finding]]:
    """Audit one compiled file. Return the number of its packages, and the findings."""
    pinned = pins(file)
    if not pinned:
        return 0, [Finding(file.name, "has no pinned packages")]
    # pip-audit takes one version of a package at a time.
    first = list({name: (name, version) for name, version in reversed(pinned)}.values())
    others = [one for one in pinned if one not in first]
    return len(pinned), [finding for part in (first, others) if part for finding in _audit(part, service)]


def _audit(pinned: Sequence[tuple[str, str]], service: Sequence[str]) -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        # Without markers and hashes: every package is checked on every system.
        plain, output = Path(folder) / "requirements.txt", Path(folder) / "report.json"
        plain.write_text("".join(f"{name}=={version}\n" for name, version in pinned))
        command = [str(Path(sysconfig.get_path("scripts")) / "pip-audit"), "--requirement", str(plain), *service]
        command += ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
        ended = subprocess.run([*command, "--output", str(output)], capture_output=True, text=True, check=False)
        try:
            report = json.loads(output.read_text("utf-8"))
        except (OSError, ValueError):
            last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
            return [Finding(f"{len(pinned)} packages", f"could not be checked: {last}", is_checked=False)]
    return findings(pinned, report)


# A folder of advisories, as the API that pip-audit asks.


def newest(folder: Path) -> datetime.datetime:
    """Return the time of the newest advisory in a folder."""
    texts = (file.read_text("utf-8") for file in folder.glob("vulns/*/*.yaml"))
    times = [found[1].replace("Z", "+00:00") for text in texts if (found := _MODIFIED.search(text))]
    if not times:
        raise SystemExit(f"onceward: {folder} has no advisories: it must be a checkout of the PyPA advisory database")
    return max(datetime.datetime.fromisoformat(time) for time in times)


def affecting(folder: Path, name: str, version: str) -> list[dict[str, Any]]:
    """Return the advisories that affect this version of a package."""
    files = sorted((folder / "vulns" / _normal(name)).glob("*.yaml"))
    loaded = [yaml.load(file.read_text("utf-8"), yaml.CSafeLoader) for file in files]  # the safe one, in C
    return [
        one
        for one in loaded
        if not one.get("withdrawn") and any(_is_affected(part, version) for part in one["affected"])
    ]


def _is_affected(part: Mapping[str, Any], version: str) -> bool:
    if version in part.get("versions", ()):
        return True
    ranges = [one for one in part.get("ranges", ()) if one["type"] == "ECOSYSTEM"]
    return any(_is_within(one["events"], Version(version)) for one in ranges)


def _is_within(events: Sequence[Mapping[str, Any]], version: Version) -> bool:
    inside = False
    for event in events:
        for kind, text in event.items():
            try:
                bound = Version("0" if text == "0" else str(text))
            except InvalidVersion:
                return True  # not comparable: a person must check it
            if kind == "introduced" and version >= bound:
                inside = True
            elif (kind == "fixed" and version >= bound) or (kind == "last_affected" and version > bound):
                inside = False
    return inside


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder of advisories as OSV's API does, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = affecting(folder, query["package"]["name"], query["version"])
            body = json.dumps({"vulns": found} if found else {}, default=str).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        server.server_close()


def lines(found: Sequence[Finding]) -> list[str]:
    """Return a line for each reason, with the first packages that have it."""
    reasons = {one.reason: [other.package for other in found if other.reason == one.reason] for one in found}
    return [f"{_some(packages)}: {reason}" for reason, packages in reasons.items()]


def _some(packages: Sequence[str]) -> str:
    more = f" and {len(packages) - _NAMED_MAX} more" if len(packages) > _NAMED_MAX else ""
    return ", ".join(packages[:_NAMED_MAX]) + more


def audit_all(files: Sequence[Path], service: Sequence[str] = ()) -> int:
    """Audit files, and print what was found. Return the exit code."""
    failed = unchecked = False
    for file in files:
        count, found = audit(file, service)
        failed = failed or bool(found)
        unchecked = unchecked or not all(one.is_checked for one in found)
        print(f"onceward: {file.name}: {count} packages, {len(found)} findings", flush=True)
        for line in lines(found):
            print(f"onceward: {file.name}: {line}", file=sys.stderr, flush=True)
    if unchecked:
        print(_UNCHECKED, file=sys.stderr, flush=True)
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the named files, or all of `requirements/`. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.advisories", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="compiled files; default: all in requirements/")
    parser.add_argument("--advisories", type=Path, help="a checkout of the PyPA advisory database")
    parser.add_argument("--osv-url", help="the URL of an API like OSV's, instead of PyPI")
    options = parser.parse_args(arguments)
    files = options.files or sorted((ROOT / "requirements").glob("*.txt"))
    if options.advisories is None:
        url = options.osv_url
        return audit_all(files, ("--vulnerability-service", "osv", "--osv-url", url) if url else ())
    at = newest(options.advisories)
    with served(options.advisories) as url:
        code = audit_all(files, ("--vulnerability-service", "osv", "--osv-url", url))
    age = datetime.datetime.now(datetime.UTC) - at
    if age.days > ADVISORIES_DAYS_MAX:
        print(f"onceward: the newest advisory is from {at:%Y-%m-%d}; get a newer copy of the database", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
