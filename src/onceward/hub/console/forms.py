"""Forms that a browser sends: url-encoded, bounded, and read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from onceward.errors import InvalidInput, TooLarge
from onceward.http.request.headers import media_type_of

# The largest body of a resolution (64 KiB), when every byte is percent-encoded, or a bulk action on 500 operations.
FORM_BYTES_MAX = 1024 * 1024
_FIELDS_MAX = 4000
_MEDIA_TYPE = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form. A field may have several values."""

    fields: Mapping[str, Sequence[str]]

    def text(self, name: str) -> str:
        """Return the first value of a field, without surrounding white space; an empty text if there is none."""
        return self.raw(name).strip()

    def raw(self, name: str) -> str:
        """Return the first value of a field. Browsers send CR LF for each line break; this returns LF."""
        values = self.fields.get(name, ())
        return values[0].replace("\r\n", "\n") if values else ""

    def all(self, name: str) -> Sequence[str]:
        return self.fields.get(name, ())

    def number(self, name: str) -> int:
        """Return a whole number, or raise `InvalidInput`."""
        text = self.text(name)
        if not (text.isascii() and text.isdigit() and len(text) <= 18):  # noqa: PLR2004  # fits into 63 bits
            raise InvalidInput(f"{name} must be a whole number, got {text[:40]!r}", ((name, "must be a whole number"),))
        return int(text)


def problem_of(error: InvalidInput) -> str:
    """Return what is wrong with a form, to be shown above it."""
    return "; ".join(f"{name} {message}" for name, message in error.fields) or str(error)


async def read_form(request: Request) -> Form:
    """Read the form of a request.

    Args:
        request: The request.

    Returns:
        Its fields.

    Raises:
        TooLarge: The body is larger than `FORM_BYTES_MAX`.
        InvalidInput: The body is not a valid form.
        HTTPException: 415, the body has another media type.
    """
    if media_type_of(request.headers.get("content-type", "")) != _MEDIA_TYPE:
        raise HTTPException(415, f"The console accepts forms. Send Content-Type: {_MEDIA_TYPE}.")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES_MAX:
                raise TooLarge(f"the form is limited to {FORM_BYTES_MAX} bytes")
    except ClientDisconnect:
        raise InvalidInput("the client disconnected before the form was complete") from None
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise InvalidInput("the form is not valid: it must be url-encoded UTF-8") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        if "\0" in value:
            raise InvalidInput("the form contains a NUL character, which is not allowed", ((name, "contains NUL"),))
        fields.setdefault(name, []).append(value)
    return Form(fields)
