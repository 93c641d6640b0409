"""A data folder and its backup."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.backup.hub_data import attach_file

from onceward.hub.backup.backup import back_up
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of a hub that is not running, with three tasks, each with a file, and three claims."""
    config = Config(HubSettings(data_dir=str(tmp_path / "data")))
    for number in range(3):
        attach_file(config, b"%d" % number * 100_000)
    with data_folder.ledger(config) as ledger:
        for number in range(3):
            ledger.blocking.run(f"k{number}", lambda: "done", effect="irreversible")
    return tmp_path / "data"


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    back_up(Config(HubSettings(data_dir=str(data))), tmp_path / "copy")
    return tmp_path / "copy"
