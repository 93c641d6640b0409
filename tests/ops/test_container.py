"""The Dockerfile and the compose file: their linters accept them, and what they name exists. `make test-image` builds
the image and runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from onceward.cli.root_command import onceward
from onceward.hub.config.config import Config, load

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "ops" / "compose.yml"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
SCRIPTS = Path(sysconfig.get_path("scripts"))
HEALTH_CHECK = ROOT / "ops" / "healthcheck.py"


def run_linter(*command: str) -> tuple[int, str]:
    ended = subprocess.run([str(SCRIPTS / command[0]), *command[1:]], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def instructions() -> list[tuple[str, str]]:
    """The instructions of the last stage, each as a name and the text behind it."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE))
    stage = text.rpartition("\nFROM ")[2]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in stage.splitlines()[1:]) if name]


def last_instruction(name: str) -> str:
    return [text for one, text in instructions() if one == name][-1]


def pins(name: str) -> dict[str, str]:
    """Package and version of every line of a compiled file."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, re.MULTILINE))


def test_hadolint_accepts_the_dockerfile() -> None:
    assert run_linter("hadolint", str(DOCKERFILE)) == (0, "")


@pytest.mark.parametrize(
    ("schema", "file"), [("compose-spec", "ops/compose.yml"), ("github-workflows", ".github/workflows/ci.yml")]
)
def test_the_schema_of_the_compose_file_and_of_the_workflows_accepts_them(schema: str, file: str) -> None:
    code, output = run_linter("check-jsonschema", "--builtin-schema", f"vendor.{schema}", str(ROOT / file))

    assert code == 0, output


def test_the_image_runs_the_hub_without_a_shell_and_without_root() -> None:
    """A shell as the first process would not pass SIGTERM on."""
    entrypoint, command = json.loads(last_instruction("ENTRYPOINT")), json.loads(last_instruction("CMD"))
    environment = dict(re.findall(r"(ONCEWARD_\w+)=(\S+)", last_instruction("ENV")))
    config = load(None, environment, {})

    assert entrypoint == ["/opt/onceward/bin/onceward"]
    assert command[0] in onceward.commands
    assert last_instruction("USER") == "10001:10001"
    assert config.hub.data_dir == last_instruction("VOLUME") == last_instruction("WORKDIR")
    assert str(config.hub.port) == last_instruction("EXPOSE")
    assert json.loads(last_instruction("HEALTHCHECK").partition("CMD ")[2])[-1] == last_instruction("COPY").split()[-1]


def test_the_build_sees_every_file_that_it_copies() -> None:
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [line.split()[1:-1] for line in DOCKERFILE.read_text().splitlines() if re.match(r"COPY (?!--from)", line)]
    names = {name for line in copied for name in line}

    assert names == seen
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_image_has_the_packages_of_the_extras_in_the_tested_versions() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(extras["dependencies"])
    for name in ("hub", "client", "metrics", "postgres", "redis", "s3", "crypto"):
        wanted += extras["optional-dependencies"][name]
    names = {re.match(r"[\w-]+", one)[0].lower() for one in wanted} - {"onceward"}  # type: ignore[index]
    hub = pins("hub")

    assert names <= hub.keys()
    assert {name: pins("dev")[name] for name in hub if name in pins("dev")} == {
        name: hub[name] for name in hub if name in pins("dev")
    }


@pytest.mark.parametrize("name", ["hub", "build"])
def test_every_package_of_the_image_has_a_hash(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    packages = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]

    assert packages
    assert [one.split()[0] for one in packages if "--hash=sha256:" not in one] == []
    assert "http" not in re.sub(r"^http(x|core|tools)==", "", text, flags=re.MULTILINE)


def compose_environment() -> dict[str, str]:
    """The hub's environment, with the example's values in the place of the variables."""
    lines = (ROOT / "ops" / "compose.env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    text = json.dumps(SERVICES)
    used = set(re.findall(r"\$\{(\w+)", text))

    assert used == example.keys()
    filled = re.sub(r"\$\{(\w+)[^}]*\}", lambda found: example[found[1]], json.dumps(SERVICES["hub"]["environment"]))
    return dict(json.loads(filled))


def test_the_hub_of_the_compose_file_has_valid_settings_and_uses_every_service() -> None:
    environment = {name: text for name, text in compose_environment().items() if name.startswith("ONCEWARD_")}
    hub = load(None, environment, {}).hub
    urls = (hub.database, hub.ledger, hub.blobs)

    assert [next((name for name in SERVICES if re.search(rf"[@/]{name}:", url)), None) for url in urls] == [
        "postgres",
        "valkey",
        "s3",
    ]
    assert SERVICES["hub"]["depends_on"].keys() == SERVICES.keys() - {"hub"}
    assert all(port.startswith("127.0.0.1:") for one in SERVICES.values() for port in one.get("ports", []))


def test_the_compose_file_waits_longer_for_the_end_than_the_hub_does() -> None:
    assert float(SERVICES["hub"]["stop_grace_period"].removesuffix("s")) > Config().hub.grace_seconds


def test_the_ledger_of_the_compose_file_loses_no_acknowledged_writes() -> None:
    command = SERVICES["valkey"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))

    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--maxmemory-policy"] == "noeviction"


def health(port: int, **more: str) -> tuple[int, str]:
    environment = os.environ | {"ONCEWARD_HUB__PORT": str(port)} | more
    command = [sys.executable, "-I", str(HEALTH_CHECK)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr.strip()


def serve(status: int) -> HTTPServer:
    """Start a server that answers `/healthz` with this status, and everything else with 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server


def test_the_health_check_needs_a_hub_that_answers() -> None:
    """`make test-image` runs it against the hub in the image."""
    healthy, busy = serve(200), serve(503)
    found = [health(healthy.server_port), health(busy.server_port)]
    for server in (healthy, busy):
        server.shutdown()
        server.server_close()
    found.append(health(healthy.server_port))

    assert found == [
        (0, ""),
        (1, "the hub answered with status 503"),
        (1, "the hub does not answer: [Errno 111] Connection refused"),
    ]


def test_without_a_container_engine_the_image_is_refused_with_the_reason() -> None:
    ended = subprocess.run(["make", "image", "ENGINE="], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode != 0
    assert "docker, podman or buildah" in ended.stderr
