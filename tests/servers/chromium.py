"""A real Chromium, driven by Playwright. The program comes from the system's packages (`system_packages.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright
from tests.servers.system_packages import program


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser without a window. Chromium's sandbox does not work for root."""
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=[*sandbox, "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()
