"""The page of the API reference: rendered once, and readable without script."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from html import escape
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from onceward.hub.console.assets import asset_url
from onceward.hub.reference.markdown import block, line
from onceward.hub.reference.operations import DocumentedOperation, operations_of

# Stands for the address of the hub, which differs from request to request.
_ADDRESS = "HUB-ADDRESS"


class ReferencePage:
    """The page for one document, rendered with the first request."""

    def __init__(self) -> None:
        self._source: Mapping[str, Any] | None = None
        self._text = ""

    def text(self, document: Mapping[str, Any], address: str) -> str:
        """Return the page.

        Args:
            document: The OpenAPI document. The same object gives the same page.
            address: The address of the hub, for the commands.

        Returns:
            The page as HTML.
        """
        if document is not self._source:
            self._text, self._source = render(document), document
        return self._text.replace(_ADDRESS, escape(address.rstrip("/")))


def render(document: Mapping[str, Any]) -> str:
    """Render a document to a page, in which `HUB-ADDRESS` stands for the address of the hub."""
    groups: dict[str, list[DocumentedOperation]] = {}
    for one in operations_of(document):
        groups.setdefault(one.group, []).append(one)
    info = document.get("info") or {}
    return (
        _environment()
        .get_template("reference.html")
        .render(
            title=str(info.get("title") or "API"),
            version=str(info.get("version") or ""),
            about=block(info.get("description")),
            groups=groups,
            count=sum(map(len, groups.values())),
            address=_ADDRESS,
        )
    )


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("onceward.hub.reference", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update(asset=asset_url)
    made.filters.update(line=line)
    return made
