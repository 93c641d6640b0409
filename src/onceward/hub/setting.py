"""What one setting may hold: its kind reads the value, from TOML or from text, and says what it expects otherwise."""

from __future__ import annotations

import base64
import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

# What a duration may end in, in seconds.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([smhd]?)", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_SECRETS = re.compile(r"([?&][^=&?]{0,200}(?:password|secret|token)[^=&?]{0,200}=)[^&#]*", re.IGNORECASE)


class Kind(Protocol):
    """`read` raises `ValueError` for a value that is not what `expected` says."""

    @property
    def expected(self) -> str: ...

    def read(self, value: object, *, as_text: bool) -> object:
        """The value to keep. `as_text`: it came from the environment or a flag, where everything is text."""

    def write(self, value: object) -> str:
        """The value as TOML, fit to be shown: without passwords."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text that a rule accepts; surrounding blanks are no part of it."""

    expected: str = "text"
    accepts: Callable[[str], bool] = bool

    def read(self, value: object, *, as_text: bool) -> str:  # noqa: ARG002  # text is text wherever it comes from
        if not isinstance(value, str) or not value.isprintable() or not self.accepts(value.strip()):
            raise ValueError
        return value.strip()

    def write(self, value: object) -> str:
        return quoted(without_password(str(value)))


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within its range."""

    low: int
    high: int

    @property
    def expected(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, value: object, *, as_text: bool) -> int:
        if as_text and isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise ValueError
        return value

    def write(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    expected: str = "true or false"

    def read(self, value: object, *, as_text: bool) -> bool:
        if as_text and isinstance(value, str):
            value = _TRUTH.get(value.strip().lower())
        if not isinstance(value, bool):
            raise ValueError  # noqa: TRY004  # one error for every value that is refused
        return value

    def write(self, value: object) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Duration:
    """A span of time, kept in the unit that a bare number is in: the one in the setting's name, or seconds."""

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

    def read(self, value: object, *, as_text: bool) -> float:  # noqa: ARG002  # the same text works everywhere
        if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
            number, unit = found.groups()
            value = float(number) * (_UNITS[unit] / _UNITS[self.unit] if unit else 1.0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError
        if not self.low <= value <= self.high:
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
    """One of a few words."""

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
class Several:
    """A list; in text its parts have commas between them."""

    each: Text

    @property
    def expected(self) -> str:
        return f"a list, each of it {self.each.expected}"

    def read(self, value: object, *, as_text: bool) -> tuple[str, ...]:
        if as_text and isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise ValueError  # noqa: TRY004  # one error for every value that is refused
        return tuple(self.each.read(part, as_text=as_text) for part in value)

    def write(self, value: object) -> str:
        parts = value if isinstance(value, tuple) else ()
        return "[" + ", ".join(self.each.write(part) for part in parts) + "]"


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a cipher as base64; they are never shown."""

    sizes: tuple[int, ...]

    @property
    def expected(self) -> str:
        return f"a list of keys in base64, each of {', '.join(map(str, self.sizes))} bytes"

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


def quoted(text: str) -> str:
    """Text as TOML has it. Settings hold only printable text, so nothing else needs an escape."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def without_password(url: str) -> str:
    """A URL with `***` for its password. When in doubt what is one, more is hidden, not less."""
    before, at, after = url.rpartition("@")
    if at:
        scheme, separator, user = before.partition("://")
        name, colon, _ = user.partition(":")
        before = scheme + separator + name + (":***" if colon else "") if separator else "***"
    return _SECRETS.sub(r"\1***", before + at + after)


def is_host(text: str) -> bool:
    """A name or address to listen on, without a port."""
    if ":" not in text:
        return bool(text) and not re.search(r"[\s/@\[\]]", text)
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_database(url: str) -> bool:
    return not url or _is_sqlite(url) or _is_server(url, ("postgresql", "postgres", "postgresql+psycopg"))


def is_ledger(url: str) -> bool:
    servers = ("postgresql", "postgres", "postgresql+psycopg", "redis", "rediss", "redis+cluster", "rediss+cluster")
    return not url or url.rstrip("/").lower() == "memory:" or _is_sqlite(url) or _is_server(url, servers)


def is_blobs(url: str) -> bool:
    return not url or (url.startswith("file:///") and len(url) > len("file:///")) or _is_server(url, ("s3",))


def is_origin(text: str) -> bool:
    """Scheme, host and perhaps a port, as a browser's `Origin` header has them."""
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
