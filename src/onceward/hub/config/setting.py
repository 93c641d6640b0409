"""Types of settings: each type parses a value from TOML or text, and describes what it expects."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from onceward.store.redis import REDIS_SCHEMES

# Units of a duration, in seconds.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([smhd]?)", re.ASCII)
_WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_SECRETS = re.compile(r"([?&][^=&?]{0,200}(?:password|secret|token)[^=&?]{0,200}=)[^&#]*", re.IGNORECASE)


class SettingType(Protocol):
    """Type of a setting. `read` raises `ValueError` for a value that does not match `expected`."""

    @property
    def expected(self) -> str: ...

    def read(self, value: object, *, as_text: bool) -> object:
        """Parse a value. `as_text` means that it came from the environment or a flag, where everything is text."""

    def write(self, value: object) -> str:
        """Format the value as TOML, with passwords masked."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text that `accepts` approves. Surrounding spaces are removed."""

    expected: str = "text"
    accepts: Callable[[str], bool] = bool

    def read(self, value: object, *, as_text: bool) -> str:  # noqa: ARG002  # the same for TOML and text
        if not isinstance(value, str) or not value.isprintable() or not self.accepts(value.strip()):
            raise ValueError
        return value.strip()

    def write(self, value: object) -> str:
        return quoted(without_password(str(value)))


@dataclass(frozen=True, slots=True)
class WebhookUrl(Text):
    """URL of a webhook. Only its server is shown: chat services put the secret into the path."""

    def write(self, value: object) -> str:
        parts = urlsplit(str(value))
        if not parts.path.strip("/") and not parts.query:
            return quoted(without_password(str(value)))
        return quoted(without_password(f"{parts.scheme}://{parts.netloc}/***"))


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number within its range."""

    low: int
    high: int

    @property
    def expected(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, value: object, *, as_text: bool) -> int:
        if as_text and isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise ValueError
        return value

    def write(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """A boolean."""

    expected: str = "true or false"

    def read(self, value: object, *, as_text: bool) -> bool:
        if as_text and isinstance(value, str):
            value = _TRUTH.get(value.strip().lower())
        if not isinstance(value, bool):
            raise ValueError  # noqa: TRY004  # the same error for every invalid value
        return value

    def write(self, value: object) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration, which is stored in `unit`. A number without a unit is in `unit`, too.

    `named`: the name of the setting ends with the unit, so that the value is shown as a bare number.
    """

    low: float
    high: float
    unit: str = "s"
    named: bool = True

    @property
    def expected(self) -> str:
        unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[self.unit]
        return (
            f'a number of {unit} from {self.low:.15g} to {self.high:.15g}, or a duration like "30s", "5m", "24h", "7d"'
        )

    def read(self, value: object, *, as_text: bool) -> float:  # noqa: ARG002  # the same for TOML and text
        if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
            number, unit = found.groups()
            value = float(number) * (_UNITS[unit] / _UNITS[self.unit] if unit else 1.0)
        # Compared first: an integer may be too large for a float. NaN is not in any range.
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise ValueError
        return float(value)

    def write(self, value: object) -> str:
        number = value if isinstance(value, int | float) else 0.0
        if self.named:
            return f"{number:.15g}"
        unit = next(unit for unit in "dhms" if number % _UNITS[unit] == 0 or unit == "s")
        return quoted(f"{number / _UNITS[unit]:.15g}{unit}")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(quoted(word) for word in self.words)

    def read(self, value: object, *, as_text: bool) -> str:
        word = value.strip().lower() if as_text and isinstance(value, str) else value
        if word not in self.words:
            raise ValueError
        return str(word)

    def write(self, value: object) -> str:
        return quoted(str(value))


@dataclass(frozen=True, slots=True)
class TextList:
    """A list of texts, separated by commas if it comes as text."""

    each: Text

    @property
    def expected(self) -> str:
        return f"a list in which each item is {self.each.expected}"

    def read(self, value: object, *, as_text: bool) -> tuple[str, ...]:
        if as_text and isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise ValueError  # noqa: TRY004  # the same error for every invalid value
        return tuple(self.each.read(part, as_text=as_text) for part in value)

    def write(self, value: object) -> str:
        parts = value if isinstance(value, tuple) else ()
        return "[" + ", ".join(self.each.write(part) for part in parts) + "]"


@dataclass(frozen=True, slots=True)
class CipherKeys:
    """Encryption keys in base64. They are never shown."""

    sizes: tuple[int, ...]

    @property
    def expected(self) -> str:
        return f"a list of keys in base64, each with a length of {', '.join(map(str, self.sizes))} bytes"

    def read(self, value: object, *, as_text: bool) -> tuple[bytes, ...]:
        if as_text and isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
            raise ValueError
        keys = tuple(base64.b64decode(part.strip(), validate=True) for part in value)
        if not all(len(key) in self.sizes for key in keys):
            raise ValueError
        return keys

    def write(self, value: object) -> str:
        keys = value if isinstance(value, tuple) else ()
        return "[" + ", ".join(quoted("***") for _ in keys) + "]"


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """A key of Standard Webhooks: `whsec_` and base64. It is never shown."""

    expected: str = '"whsec_" and 24 to 64 bytes in base64'

    def read(self, value: object, *, as_text: bool) -> bytes:  # noqa: ARG002  # the same for TOML and text
        if value in {"", b""}:
            return b""
        prefix, key = "whsec_", b""
        if isinstance(value, str) and value.strip().startswith(prefix):
            key = base64.b64decode(value.strip().removeprefix(prefix), validate=True)
        if not 24 <= len(key) <= 64:  # noqa: PLR2004  # the sizes of Standard Webhooks
            raise ValueError
        return key

    def write(self, value: object) -> str:
        return quoted("***" if value else "")


def quoted(text: str) -> str:
    """Format text as a TOML string. Settings hold only printable text, so nothing else needs an escape."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def without_password(url: str) -> str:
    """Replace the password in a URL by `***`. In ambiguous URLs, more is hidden rather than less."""
    before, at, after = url.rpartition("@")
    if at:
        scheme, separator, user = before.partition("://")
        name, colon, _ = user.partition(":")
        before = scheme + separator + name + (":***" if colon else "") if separator else "***"
    return _SECRETS.sub(r"\1***", before + at + after)


def is_host(text: str) -> bool:
    """Return whether the text is a host name or address without a port."""
    if ":" not in text:
        return bool(text) and not re.search(r"[\s/@\[\]]", text)
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_network(text: str) -> bool:
    """Return whether the text is an address or a network. A network of all addresses would let everybody forge one."""
    try:
        return ipaddress.ip_network(text).prefixlen > 0
    except ValueError:
        return False


def is_database(url: str) -> bool:
    return not url or _is_sqlite(url) or _is_server(url, ("postgresql", "postgres", "postgresql+psycopg"))


def is_ledger(url: str) -> bool:
    servers = ("postgresql", "postgres", "postgresql+psycopg", *REDIS_SCHEMES)
    return not url or url.rstrip("/").lower() == "memory:" or _is_sqlite(url) or _is_server(url, servers)


def is_blobs(url: str) -> bool:
    return not url or (url.startswith("file:///") and len(url) > len("file:///")) or _is_server(url, ("s3",))


def is_webhook(url: str) -> bool:
    """Return whether the text is empty or an http or https URL with a host and without a fragment."""
    try:
        parts = urlsplit(url)
        return not url or (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and "#" not in url
        )
    except ValueError:
        return False


def is_origin(text: str) -> bool:
    """Return whether the text is an origin as in a browser's `Origin` header: scheme, host and optional port."""
    return bool(re.fullmatch(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:\d{1,5})?", text))


def _is_sqlite(url: str) -> bool:
    path = url.removeprefix("sqlite:///")
    return path not in {url, "", "/", ":memory:"} and not re.search(r"[?#]", path)


def _is_server(url: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in schemes and "://" in url and bool(parts.netloc or parts.path.strip("/"))


def is_media_range(text: str) -> bool:
    kind, slash, subkind = text.partition("/")
    return bool(slash) and bool(kind) and bool(subkind) and text.isascii() and not set(text) & set(' ;,\t\n"')


def is_brain(text: str) -> bool:
    module, _, name = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *name.split(".")))
