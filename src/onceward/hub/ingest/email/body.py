"""Body of a mail: its text, and a list of its attachments."""

from __future__ import annotations

from dataclasses import dataclass

from onceward.core.canonical import Json
from onceward.hub.ingest.email.charset import decoded
from onceward.hub.ingest.email.encodings import transfer_decoded, transfer_size
from onceward.hub.ingest.email.headers import first, parameter, with_parameters
from onceward.hub.ingest.email.html_text import text_of_html
from onceward.hub.ingest.email.parser import Mail, MailPart
from onceward.hub.ingest.payload import known

# The longest name that common file systems allow.
NAME_LENGTH_MAX = 255


@dataclass(frozen=True, slots=True)
class MailBody:
    """Text and attachments of a mail. `read_as` is the media type of the text. Unknown values are None."""

    text: str
    read_as: str | None
    attachments: list[Json] | None


def body_of(mail: Mail, *, is_text: bool = False) -> MailBody:
    """Return the text of all plain-text parts, else of all HTML parts; all other parts are attachments.

    Quotations and signatures stay. `is_text` means that the mail arrived as a string: parts without a transfer encoding
    are then UTF-8, whatever charset they declare.
    """
    plain: list[MailPart] = []
    markup: list[MailPart] = []
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
        return MailBody("\n\n".join(text_of_html(_text(part, is_text)) for part in markup), "text/html", attachments)
    return MailBody(text, "text/plain" if plain else None, attachments)


def _text(part: MailPart, is_text: bool) -> str:
    encoding = _encoding(part)
    data = transfer_decoded(part.body, encoding)
    label = "utf-8" if is_text and data is part.body else parameter(part.parameters, "charset")
    return decoded(data, label).removeprefix("\ufeff").replace("\r\n", "\n")


def _attachment(part: MailPart, name: str | None) -> dict[str, Json]:
    return known(
        {
            "name": None if name is None else name[:NAME_LENGTH_MAX],
            "type": part.content_type[:NAME_LENGTH_MAX],
            "bytes": transfer_size(part.body, _encoding(part)),
        }
    )


def _encoding(part: MailPart) -> str:
    return (first(part.headers, "content-transfer-encoding") or "").lower()
