"""Previews: images, and the beginning of a text, for types whose bytes no browser runs.

The list of safe types is that of the API, and the type is the one that was detected from the bytes. A text is part of the
page, so it is escaped like every value. PDF viewers do not run in the sandbox of the content, so a PDF is downloaded.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Literal

from onceward.errors import OncewardError
from onceward.hub.blobs import BlobStore
from onceward.hub.media.hierarchy import is_text
from onceward.hub.tasks import Content, TaskAttachment
from onceward.hub.web.download import is_inline

# A larger image takes long to load on a phone. A link opens it.
IMAGE_BYTES_MAX = 5 * 1024 * 1024
# A few screens of text.
TEXT_BYTES_MAX = 16 * 1024
# Control characters except tab and line feed. Bidirectional controls make a text read as another one.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of an attachment.

    Attributes:
        kind: An image, a text, or a problem: the bytes cannot be read.
        text: The beginning of the text, or the problem.
        is_cut: Whether the text goes on.
    """

    kind: Literal["image", "text", "problem"]
    text: str = ""
    is_cut: bool = False


def preview_kind(attachment: TaskAttachment) -> Literal["image", "text", ""]:
    """Return how an attachment can be shown in a page; empty if it cannot."""
    if attachment.media_type is None or not is_inline(attachment):
        return ""
    if attachment.media_type.startswith("image/"):
        return "image" if (attachment.size_bytes or 0) <= IMAGE_BYTES_MAX else ""
    return "text" if is_text(attachment.media_type) else ""


def preview_of(content: Content, store: BlobStore) -> Preview | None:
    """Return the preview of stored content, or None if its type has none. It reads the bytes of a text."""
    match preview_kind(content.attachment):
        case "image":
            return Preview("image")
        case "text":
            end = min(content.size_bytes, TEXT_BYTES_MAX)
            try:
                data = b"".join(content.read(store, 0, end)) if end else b""
            except OncewardError as error:
                return Preview("problem", str(error))
            return Preview("text", excerpt(data, is_cut=end < content.size_bytes), is_cut=end < content.size_bytes)
        case _:
            return None


def excerpt(data: bytes, *, is_cut: bool) -> str:
    """Decode the beginning of a text. A character that is cut in two at its end is left out."""
    encoding = "utf-8"
    for mark, name in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            data, encoding = data.removeprefix(mark), name
            break
    text = codecs.getincrementaldecoder(encoding)("replace").decode(data, final=not is_cut)
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))
