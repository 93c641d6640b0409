"""What a mail says, and what is attached to it."""

from __future__ import annotations

from dataclasses import dataclass

from onceward.core.canonical import Json
from onceward.ingest.email.charset import decoded
from onceward.ingest.email.header import first, parameter, with_parameters
from onceward.ingest.email.html import text_of_html
from onceward.ingest.email.mail import Mail, Part
from onceward.ingest.email.words import transfer_decoded, transfer_size
from onceward.ingest.payload import known

# What file systems allow a name.
NAME_LENGTH_MAX = 255


@dataclass(frozen=True, slots=True)
class Body:
    """`read_as` is the media type that the text was taken from. What is not known is None."""

    text: str
    read_as: str | None
    attachments: list[Json] | None


def body_of(mail: Mail, *, is_text: bool = False) -> Body:
    """The text of all parts that are plain text, else of all that are HTML; whatever else is there is an attachment.

    Quotations and signatures stay. With `is_text` the mail came as text, which knows no charset: what is not encoded in
    it is UTF-8, whatever it says.
    """
    plain: list[Part] = []
    markup: list[Part] = []
    attachments: list[Json] = []
    for part in mail.parts:
        disposition, parameters = with_parameters(first(part.headers, "content-disposition"))
        name = parameter(parameters, "filename") or parameter(part.parameters, "name")
        is_body = part.is_root or (disposition != "attachment" and name is None)
        if is_body and part.content_type == "text/html":
            markup.append(part)
        elif is_body and (part.content_type == "text/plain" or (part.is_root and part.content_type[:5] == "text/")):
            plain.append(part)
        else:
            attachments.append(_attachment(part, name))
    text = "\n".join(_text(part, is_text) for part in plain)
    if markup and not text.strip():
        return Body("\n\n".join(text_of_html(_text(part, is_text)) for part in markup), "text/html", attachments)
    return Body(text, "text/plain" if plain else None, attachments)


def _text(part: Part, is_text: bool) -> str:
    encoding = _encoding(part)
    data = transfer_decoded(part.body, encoding)
    label = "utf-8" if is_text and data is part.body else parameter(part.parameters, "charset")
    return decoded(data, label).removeprefix("\ufeff").replace("\r\n", "\n")


def _attachment(part: Part, name: str | None) -> dict[str, Json]:
    return known(
        {
            "name": None if name is None else name[:NAME_LENGTH_MAX],
            "type": part.content_type[:NAME_LENGTH_MAX],
            "bytes": transfer_size(part.body, _encoding(part)),
        }
    )


def _encoding(part: Part) -> str:
    return (first(part.headers, "content-transfer-encoding") or "").lower()
