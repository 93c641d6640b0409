"""The systemd unit in `ops/`, against the command and the settings that it uses."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from onceward.cli.root_command import onceward
from onceward.hub.config.config import Config, load

UNIT = Path(__file__).parent.parent.parent / "ops" / "onceward.service"


def unit_values(name: str) -> list[str]:
    lines = [line.partition("=") for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    return [value for key, _, value in lines if key == name]


def test_the_unit_starts_a_command_that_exists_with_settings_that_exist() -> None:
    (command,) = unit_values("ExecStart")
    _, name, *options = shlex.split(command)
    environment = dict(one.split("=", 1) for one in unit_values("Environment"))
    serve = onceward.commands[name]
    known = {option for parameter in serve.params for option in parameter.opts}

    assert [one for one in options if one.startswith("-") and one not in known] == []
    assert load(None, environment, {}).hub.data_dir == "/var/lib/onceward"
    assert unit_values("StateDirectory") == ["onceward"]


def test_systemd_waits_longer_for_the_end_than_the_hub_does() -> None:
    (seconds,) = unit_values("TimeoutStopSec")

    assert float(seconds) > Config().hub.grace_seconds


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Run systemd's check if it is installed. The command of the unit is not installed here."""
    sections = [line for line in UNIT.read_text().splitlines() if line.startswith("[")]
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/onceward/bin/onceward", shutil.which("true") or "/bin/true"))
    verify = shutil.which("systemd-analyze")
    output = ""
    if verify is not None:
        checked = subprocess.run([verify, "verify", str(copy)], capture_output=True, text=True, check=False)
        output = checked.stdout + checked.stderr

    assert sections == ["[Unit]", "[Service]", "[Install]"]
    assert output == ""
