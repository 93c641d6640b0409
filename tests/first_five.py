"""Follow the README from a clone to the first replayed request, for each starting point: `make first-five`.

Each starting point gets a fresh environment. Its lines are those of the README, taken by heading; only the place to
install from and the port are replaced. The table at the end has the time and the size of each.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.markdown import PRINTS, Block, blocks

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
# The headings of the starting points. The second name is the heading of the README as long as it has not the first one.
HEADINGS = {
    "api": ("Protect an API", "Protect an HTTP API"),
    "agents": ("Give an agent's tools one effect", "Use in your code"),
    "hub": ("Run the hub", "Quick start"),
}
PORT = 8787
START_SECONDS_MAX = 600.0
# Packages that an example imports, under the name by which they are installed. Onceward is installed from the clone.
PACKAGES = {
    "fastapi": "fastapi",
    "starlette": "starlette",
    "flask": "flask",
    "django": "django",
    "langchain": "onceward[langchain]",
    "langchain_core": "onceward[langchain]",
    "langgraph": "onceward[langchain]",
    "pydantic_ai": "onceward[pydantic-ai]",
    "agents": "onceward[openai-agents]",
    "fastmcp": "onceward[fastmcp]",
    "mcp": "onceward[mcp]",
    "httpx": "httpx",
}
# Sends the same request twice to the `app` of a program, through a route of its own, and prints the second response.
ASK_APP = """

import asyncio as _asyncio
import httpx as _httpx

_ran = []


@app.post("/first-five")
def _first_five():
    _ran.append(1)
    return {"runs": len(_ran)}


async def _ask():
    async with _httpx.AsyncClient(transport=_httpx.ASGITransport(app), base_url="http://shop") as client:
        return [await client.post("/first-five", headers={"Idempotency-Key": "first-five"}) for _ in range(2)]


_first, _again = _asyncio.run(_ask())
print("replayed" if _again.headers.get("Idempotent-Replayed") == "true" and len(_ran) == 1 else "ran twice")
"""


class Failed(Exception):
    """The README does not lead to a replayed request."""


@dataclass(frozen=True, slots=True)
class Start:
    """A starting point: its heading in the README, its blocks, and the Python of the page before it."""

    name: str
    heading: str
    blocks: tuple[Block, ...]
    before: str = ""

    @property
    def program(self) -> str:
        """Return its Python, after the imports that it uses from earlier on the page: a page is one program."""
        own = "\n\n".join(block.text for block in self.blocks if block.kind == "python")
        used = {node.id for node in ast.walk(ast.parse(own)) if isinstance(node, ast.Name)}
        imports = [node for node in ast.parse(self.before).body if isinstance(node, ast.Import | ast.ImportFrom)]
        needed = [node for node in imports if used & {alias.asname or alias.name for alias in node.names}]
        return "\n".join([*map(ast.unparse, needed), own])


def starting_points(page: Path = README) -> list[Start]:
    """Return the starting points of the README, in their order."""
    lines = page.read_text("utf-8").splitlines()
    found = []
    for name, headings in HEADINGS.items():
        heading = next((one for one in headings if f"## {one}" in lines), None)
        if heading is None:
            raise Failed(f"{page.name} has no section {headings[0]!r}")
        first = lines.index(f"## {heading}")
        last = next((at for at in range(first + 1, len(lines)) if lines[at].startswith("## ")), len(lines))
        inside = [one for one in blocks(page) if first < one.line < last and one.kind in {"python", "sh"}]
        if not inside:
            raise Failed(f"the section {heading!r} has no block of python or sh")
        before = "\n".join(one.text for one in blocks(page) if one.line < first and one.kind == "python")
        found.append(Start(name, heading, tuple(inside), before))
    return found


def packages_of(program: str) -> list[str]:
    """Return the packages that a program needs, besides Onceward."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.partition(".")[0])
    missing = modules - PACKAGES.keys() - sys.stdlib_module_names - {"onceward", "__future__"}
    if missing:
        raise Failed(f"the program imports {sorted(missing)}; name their packages in tests/first_five.py")
    return sorted({PACKAGES[module] for module in modules & PACKAGES.keys()})


def from_clone(requirement: str, clone: Path) -> str:
    """Return what to install instead of `onceward`, which may not be published, or be another version."""
    return re.sub(r"^onceward(?=\[|$)", str(clone), requirement)


def environment(folder: Path, clone: Path, requirements: Sequence[str]) -> Path:
    """Create an environment with these packages. Return its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    wanted = [from_clone(one, clone) for one in ("onceward", *requirements)]
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *wanted], check=True)
    return folder / "bin"


def try_program(start: Start, clone: Path, folder: Path) -> Path:
    """Run the Python of a starting point. Return its environment."""
    program = start.program
    # A program that prints shows by itself that the retry was replayed.
    asks_app = start.name == "api" and not PRINTS.findall(program)
    packages = packages_of(program) + (["httpx"] if start.name == "api" else [])
    bin_folder = environment(folder / "venv", clone, packages)
    file = folder / "program.py"
    file.write_text(program + (ASK_APP if asks_app else ""), "utf-8")
    done = subprocess.run([bin_folder / "python", file], cwd=folder, capture_output=True, text=True, check=False)
    expected = PRINTS.findall(program) + (["replayed"] if asks_app else [])
    if done.returncode or done.stdout.splitlines() != expected:
        raise Failed(f"{start.heading}: expected {expected}, got {done.stdout.splitlines()}\n{done.stderr}")
    return folder / "venv"


def commands(start: Start) -> list[str]:
    """Return the commands of a starting point, one for each line, without comments and without the tests."""
    text = "\n".join(block.text for block in start.blocks if block.kind == "sh").replace("\\\n", " ")
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "make test", "cd ", "git clone"))]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@contextlib.contextmanager
def background(command: str, clone: Path, settings: dict[str, str], port: int) -> Iterator[None]:
    """Run a server until the end of the block, and wait until it answers."""
    log = clone / "first-five.log"
    with (
        log.open("w") as written,
        subprocess.Popen(  # noqa: S602  # the README's own line
            command, cwd=clone, env=settings, shell=True, start_new_session=True, stdout=written, stderr=written
        ) as process,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Failed(f"{command}: nothing answers on port {port}\n{log.read_text()}")
                time.sleep(0.2)
            yield
        finally:
            os.killpg(process.pid, 15)


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def try_hub(start: Start, clone: Path, folder: Path) -> Path:
    """Run the commands of the hub. Return the environment that they created."""
    port = free_port()
    lines = [line.replace(f":{PORT}", f":{port}") for line in commands(start)]
    home = folder / "home"
    home.mkdir()
    settings = {**os.environ, "ONCEWARD_HUB__PORT": str(port), "HOME": str(home)}
    settings.pop("PYTHONPATH", None)
    made = clone / ".venv-hub"
    if any(re.match(r"(pip|uv) ", line) for line in lines):
        made = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(made)], check=True)
        settings["PATH"] = f"{made / 'bin'}{os.pathsep}{settings['PATH']}"
    with contextlib.ExitStack() as running:
        for line in lines:
            command = re.sub(r"(?<=['\s])onceward(?=\[|'|$)", str(clone), line) if line.startswith("pip ") else line
            if command.endswith(" &") or re.search(r"\bserve\b", command):
                running.enter_context(background(command.rstrip("& "), clone, settings, port))
            elif command.startswith("curl "):
                for expected in (False, True):
                    # The flag shows the headers of the response; everything else is the README's.
                    response = output(f"curl --silent --include {command.removeprefix('curl ')}", clone, settings)
                    if ("idempotent-replayed: true" in response.lower()) is not expected:
                        raise Failed(f"{command}: replayed={not expected}, expected {expected}\n{response}")
            else:
                output(command, clone, settings)
    if not any(line.startswith("curl ") for line in lines):
        raise Failed(f"the section {start.heading!r} sends no request")
    return made


def output(command: str, folder: Path, settings: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=settings, shell=True, capture_output=True, text=True, check=False)  # noqa: S602
    if done.returncode:
        raise Failed(f"{shlex.quote(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def megabytes(folder: Path) -> float:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def main() -> int:
    """Try every starting point. Return the exit code."""
    with tempfile.TemporaryDirectory(prefix="onceward-first-five-") as name:
        clone = Path(name) / "onceward"
        if (ROOT / ".git").exists():
            subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)], check=True)
        else:
            shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".venv*", "build", "dist"))
        rows = []
        try:
            for start in starting_points(clone / "README.md"):
                folder = Path(name) / start.name
                folder.mkdir()
                began = time.monotonic()
                try_it = try_hub if start.name == "hub" else try_program
                made = try_it(start, clone, folder)
                rows.append((start.heading, time.monotonic() - began, megabytes(made)))
                print(f"onceward: {start.heading}: a replayed request after {rows[-1][1]:.1f} s", flush=True)
        except Failed as failure:
            print(f"onceward: {failure}", file=sys.stderr)
            return 1
    for heading, seconds, size in rows:
        print(f"{heading:36} {seconds:6.1f} s {size:6.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
