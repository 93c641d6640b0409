"""The package page: the README, with links that work away from the repository, and the project URLs.

On a package page a relative link leads nowhere. With the setting `repository` in pyproject.toml, each becomes a link to
the file at the tag of the version. Without it, only the text of the link stays, and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Code spans and blocks, which stay as they are; or a picture or a link.
_PARTS = re.compile(
    r"^```.*?^```$|`[^`\n]+`|(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL
)


class PackagePage(MetadataHookInterface):
    """Sets the fields of the metadata that need a public address."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = str(self.config.get("repository", "")).rstrip("/")
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": package_page(readme, repository, f"v{metadata['version']}"),
        }
        metadata["urls"] = urls(repository)


def urls(repository: str) -> dict[str, str]:
    """Return the project URLs, none without a repository."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/HEAD/docs/README.md",
        "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def package_page(readme: str, repository: str, tag: str) -> str:
    """Return the README with absolute links. Without a repository, return it without relative links and pictures."""

    def part(found: re.Match[str]) -> str:
        target, text = found["target"], found["text"]
        if target is None or target.startswith("https://"):
            return found[0]
        if not repository:
            return "" if found["picture"] else text
        path = f"README.md{target}" if target.startswith("#") else target
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{text}]({repository}/{kind}/{tag}/{path})"

    return _PARTS.sub(part, readme)
