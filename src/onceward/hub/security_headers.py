"""Security headers of responses: what a browser may load, and what it may do with a response of the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

EVERY_RESPONSE = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
_EVERY_PAGE = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
            b" form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        ),
    ),
    (b"referrer-policy", b"no-referrer"),
)


def browser_headers(own: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the security headers that the response does not set itself.

    A page can load only files of the hub, and no other site can frame it.
    """
    is_page = own.get(b"content-type", b"").startswith(b"text/html")
    for name, value in (*EVERY_RESPONSE, *_EVERY_PAGE) if is_page else EVERY_RESPONSE:
        if name not in own:
            yield name, value
