"""TLS of the hub: its certificate and private key, checked before anything is served.

TLS 1.2 is the oldest accepted version. The hub does not send `Strict-Transport-Security`: browsers apply it to all ports
of a host, and the hub knows nothing about the other ones. A renewed certificate is loaded at the next start.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from onceward.errors import InvalidConfig
from onceward.hub.config.config import Config


def tls_context(config: Config) -> ssl.SSLContext | None:
    """Load the certificate and the key of a configuration, or return None without TLS. Raises `InvalidConfig`."""
    cert, key = config.hub.tls_cert, config.hub.tls_key
    if not cert and not key:
        return None
    if not cert or not key:
        given, missing = ("tls_cert", "tls_key") if cert else ("tls_key", "tls_cert")
        raise InvalidConfig(
            f"hub.{given} is set without hub.{missing}; TLS needs both a certificate and its private key"
        )
    for name, file in (("tls_cert", cert), ("tls_key", key)):
        try:
            with Path(file).open("rb"):
                pass
        except OSError as error:
            raise InvalidConfig(f"hub.{name}: the file {file!r} cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password function, OpenSSL would ask for the password on the terminal.
        context.load_cert_chain(cert, key, _refuse_password)
    except _EncryptedKeyError:
        raise InvalidConfig(
            f"hub.tls_key: the private key in {key!r} is encrypted with a password; store it without one, readable by"
            " the hub's user only"
        ) from None
    except ssl.SSLError as error:
        raise InvalidConfig(_explain_error(error, cert, key)) from None
    return context


class _EncryptedKeyError(Exception):
    """The private key needs a password."""


def _refuse_password() -> str:
    raise _EncryptedKeyError


def _explain_error(error: ssl.SSLError, cert: str, key: str) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"hub.tls_key: the private key in {key!r} does not belong to the certificate in {cert!r}"
    reason = f" ({error.reason})" if error.reason else ""
    return (
        f"hub.tls_cert: {cert!r} and {key!r} are not a certificate and its private key in PEM format{reason}; check that"
        " the files are not swapped"
    )


def is_key_readable_by_others(config: Config) -> bool:
    """Return whether other users of this machine may read the private key."""
    return bool(config.hub.tls_key) and bool(Path(config.hub.tls_key).stat().st_mode & 0o004)
