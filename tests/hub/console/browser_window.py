"""A window of the browser for the tests of pages: it checks accessibility, policy and width."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect
from tests.hub.hub_process import RunningHub

PHONE: ViewportSize = {"width": 390, "height": 844}
DESKTOP: ViewportSize = {"width": 1280, "height": 800}


@dataclass
class Window:
    """A window of the browser, which counts clicks and collects what must not happen."""

    page: Page
    url: str
    clicks: int = 0
    problems: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> None:
        self.page.goto(self.url + path)

    def click(self, name: str, kind: Any = "link", *, exact: bool = False, nth: int = 0) -> None:
        self.clicks += 1
        self.page.get_by_role(kind, name=name, exact=exact).nth(nth).click()

    def await_script(self, title: str) -> None:
        """Wait until the page with this title is there, and its script listens to keys."""
        expect(self.page.get_by_role("heading", name=title, level=1)).to_be_visible()
        expect(self.page.get_by_text("for the keys")).to_be_visible()

    def collect(self, message: ConsoleMessage) -> None:
        """Collect errors of scripts and violations of the policy, but not pages that are refused on purpose."""
        if message.type == "error" and "the server responded with a status of 4" not in message.text:
            self.problems.append(message.text)

    def check(self, what: str, rules: str = "") -> None:
        """Check the accessibility rules, the content security policy, and that nothing is wider than the window."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        # Only violations are read. Axe collects every node of the other results too, unless it is told not to.
        options = {"resultTypes": ["violations"], **({"runOnly": rules.split()} if rules else {})}
        found = self.page.evaluate("options => axe.run(options)", options)
        broken = [
            f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:300]}"
            for one in found["violations"]
            for node in one["nodes"]
        ]
        too_wide = self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert broken == [], what
        assert not too_wide, f"{what} is wider than the window"
        assert self.problems == [], what


@contextmanager
def window(browser: Browser, hub: RunningHub, **options: Any) -> Iterator[Window]:
    context = browser.new_context(viewport=options.pop("viewport", DESKTOP), **options)
    page = context.new_page()
    opened = Window(page, hub.url)
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    page.on("console", opened.collect)
    page.set_default_timeout(30_000)
    try:
        yield opened
    finally:
        context.close()
