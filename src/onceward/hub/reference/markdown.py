"""Descriptions of an OpenAPI document as HTML: paragraphs, lists, emphasis, code and links, and nothing that can run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

# Headings would break the outline of the page, and images are requests to other hosts.
_LEFT_OUT = ("heading", "lheading", "image", "hr", "html_block", "html_inline")


def block(text: str | None) -> Markup:
    """Render a text of several paragraphs."""
    return Markup(_parser().render(text)) if text else Markup("")  # noqa: S704  # the parser escapes HTML


def line(text: str | None) -> Markup:
    """Render a text without paragraphs, for a summary or a cell of a table."""
    return Markup(_parser().renderInline(text)) if text else Markup("")  # noqa: S704  # the parser escapes HTML


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).disable(_LEFT_OUT)
    parser.add_render_rule("link_open", _link_open)
    return parser


def _link_open(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
    """Open a link that tells its target nothing. The parser has already dropped `javascript:` and similar addresses."""
    tokens[index].attrSet("rel", "noreferrer noopener")
    text: str = renderer.renderToken(tokens, index, options, env)
    return text
