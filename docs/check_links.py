"""Follow the links of the documents to other sites: `make check-links`. The tests check all other links, offline.

A site that refuses programs (403, 429) or asks for a login (401) counts as there. Anything else that is not a success is
printed, and the exit code is 1.
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATTERNS = ("*.md", "docs/**/*.md", "bench/*.md", "examples/**/*.md", "src/**/*.md")
LINK = re.compile(r"\[[^\]]*\]\((https?://[^)\s]+)\)")
TIMEOUT_SECONDS = 20.0
REFUSES_PROGRAMS = (401, 403, 429)


def problem_of(url: str) -> str:
    """Return what is wrong with an address, or an empty text."""
    request = urllib.request.Request(url, headers={"User-Agent": "onceward-check-links"})  # noqa: S310  # https or http
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return "" if error.code in REFUSES_PROGRAMS else str(error)
    except OSError as error:
        return str(error)
    except HTTPException as error:
        return f"{type(error).__name__}: {str(error).strip()}"


def main() -> int:
    """Check every address once. Return the exit code."""
    places = defaultdict[str, set[str]](set)
    for file in {file for pattern in PATTERNS for file in ROOT.glob(pattern)}:
        for url in LINK.findall(file.read_text("utf-8")):
            places[url.partition("#")[0]].add(str(file.relative_to(ROOT)))
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(places, pool.map(problem_of, places), strict=True))
    for url, problem in found.items():
        if problem:
            print(f"{url}: {problem} (in {', '.join(sorted(places[url]))})")
    print(f"onceward: {len(places)} links to other sites, {sum(map(bool, found.values()))} broken")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
