"""The checks of a hub's data and of the machine, without a hub. None of them creates, upgrades or changes anything."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

from onceward.hub.config.config import Config
from onceward.hub.doctor.check_result import CheckResult, errors_as_problems, ok
from onceward.hub.doctor.database import database_checks
from onceward.hub.doctor.ledger import ledger_checks
from onceward.hub.doctor.machine import blobs_checks, data_folder_checks, descriptor_checks, disk_space_checks
from onceward.hub.doctor.retention import retention_checks
from onceward.hub.doctor.server import START


def check_hub_data(config: Config, clock: Callable[[], float] = time.time) -> Iterator[CheckResult]:
    """Check the data of a hub and this machine.

    Args:
        config: The configuration of the hub.
        clock: This machine's clock, in seconds since 1970.

    Yields:
        One result for each check.
    """
    yield ok("version", f"onceward {version('onceward')}, SQLite {sqlite3.sqlite_version}")
    yield from errors_as_problems(
        "data-folder", "check the folder and its permissions", lambda: data_folder_checks(config)
    )
    yield from errors_as_problems("database", START, lambda: database_checks(config, clock))
    yield from errors_as_problems("ledger", START, lambda: ledger_checks(config, clock))
    yield from errors_as_problems(
        "blobs", "correct hub.blobs, or the permissions of the folder or bucket", lambda: blobs_checks(config)
    )
    yield from errors_as_problems("disk-space", "free some space", lambda: disk_space_checks(config))
    yield from descriptor_checks(config)
    yield from retention_checks(config.retain_seconds, config.turns.api_ttl_seconds)
