"""A real Chromium, driven by Playwright: that of the machine, or Debian's package, installed if that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_VARIABLE = "ONCEWARD_CHROMIUM"
_HOW = (
    "the tests of the console need Chromium, and none was found. Install it (`apt-get install chromium` on Debian), or name"
    f" its program in {_VARIABLE}"
)


def chromium_program() -> str:
    """Return the path of Chromium. Install it first if it is missing and this user may do that."""
    found = _found()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{_HOW}. `{' '.join(command)}` failed:\n{done.stderr[-2000:]}")
        found = _found()
    if found is None:
        raise RuntimeError(_HOW)
    return found


def _found() -> str | None:
    return os.environ.get(_VARIABLE) or next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser without a window. Chromium's sandbox does not work for root."""
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium_program(), args=[*sandbox, "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()
