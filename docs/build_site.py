"""Build the documentation site: `make docs`. It needs the packages of requirements/docs.txt.

The pages are copied to build/site-source, each at its path in the repository, and `zensical build --strict` makes
build/site from them. Then every link of every built page is followed, without the network: to a file of the site, and to
an anchor in it. Beside each page is its Markdown, for people and programs that prefer it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "build" / "site-source"
SITE = ROOT / "build" / "site"
PAGES = (
    "*.md",
    "LICENSE",
    "docs/**/*.md",
    "docs/llms.txt",
    "bench/*.md",
    "bench/*.svg",
    "docs/images/*.png",
    "examples/README.md",
)


def pages() -> Iterator[Path]:
    """The files of the site, as paths below the repository."""
    for pattern in PAGES:
        for file in sorted(ROOT.glob(pattern)):
            yield file.relative_to(ROOT)


def stage() -> None:
    """Copy the pages. The builder knows only one word after the fence of a block."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in pages():
        target = SOURCE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = (ROOT / path).read_bytes()
        if path.suffix == ".md":
            content = content.replace(b"```python no-run\n", b"```python\n")
        target.write_bytes(content)


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        link = values.get("href") if tag in {"a", "link"} else values.get("src")
        if link:
            self.links.add(link)


def broken_links(site: Path) -> Iterator[str]:
    """Every link of the built pages that leads nowhere. Links to other sites are left to `make check-links`."""
    parsed = {file: Page(file) for file in sorted(site.rglob("*.html"))}
    for file, page in parsed.items():
        # The page for missing addresses is shown at any of them, so its links begin at the root of the site.
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            below = site if path.startswith("/") else file.parent
            target = (below / path.lstrip("/")).resolve() if path else file
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{file.relative_to(site)}: {link}: {path} does not exist"
            elif parts.fragment and target.suffix == ".html":
                anchors = parsed[target].anchors if target in parsed else set()
                if unquote(parts.fragment) not in anchors:
                    yield f"{file.relative_to(site)}: {link}: the anchor does not exist"


def main() -> int:
    """Build and check the site. Return the exit code."""
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = Path(sys.executable).parent / "zensical"
    done = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT, check=False)  # noqa: S603
    if done.returncode:
        return done.returncode
    for path in pages():
        if path.suffix == ".md":
            shutil.copyfile(SOURCE / path, SITE / path)
    shutil.copyfile(SOURCE / "docs" / "llms.txt", SITE / "docs" / "llms.txt")
    broken = list(broken_links(SITE))
    for line in broken:
        print(f"onceward: {line}", file=sys.stderr)
    count = len(list(SITE.rglob("*.html")))
    print(f"onceward: {count} pages in {SITE.relative_to(ROOT)}, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
