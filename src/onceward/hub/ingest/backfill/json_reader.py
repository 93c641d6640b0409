"""Streaming JSON reader: reads a file of any size value by value, never as a whole."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from onceward.core.canonical import Json
from onceward.core.json_text import refused

PIECE = 1024 * 1024
# Longer than any message, or any other field of a chat.
VALUE_LENGTH_MAX = 64 * 1024 * 1024
_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[-+0-9.eE]+")
_decoder = json.JSONDecoder()


class JsonReader:
    """A forward-only reader. `InvalidInput` names the file if it is not valid JSON or is truncated."""

    def __init__(self, file: BinaryIO, name: str, piece: int = PIECE) -> None:
        self._file = file
        self._text = io.TextIOWrapper(file, "utf-8-sig", errors="replace", newline="")
        self._name = name
        self._piece = piece
        self._buffer = ""
        self._at = 0
        self._ended = False

    @property
    def done(self) -> int:
        """The approximate number of bytes read from the file."""
        return self._file.tell()

    def peek(self) -> str:
        """Return the next character that is not white space; empty at the end."""
        while True:
            found = _BLANK.match(self._buffer, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._buffer) or not self._more():
                return self._buffer[self._at : self._at + 1]

    def take(self, character: str) -> None:
        if self.peek() != character:
            raise self._broken(f"{character!r} is missing")
        self._at += 1

    def value(self) -> Json:
        """Read the next value completely."""
        self.peek()
        while True:
            # A number at the end of the buffer may continue in the next piece.
            number = _NUMBER.match(self._buffer, self._at)
            if number and number.end() == len(self._buffer) and self._more():
                continue
            try:
                value, self._at = _decoder.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                reason = error.msg
            except RecursionError:
                raise self._broken("it is nested too deeply") from None
            except ValueError:
                raise self._broken("a number has too many digits") from None
            else:
                return value  # type: ignore[no-any-return]  # a decoded value is always `Json`
            if len(self._buffer) - self._at > VALUE_LENGTH_MAX:
                raise self._broken("a value is too large")
            if not self._more():
                raise self._broken(reason)

    def names(self) -> Iterator[str]:
        """Yield the field names of an object. After each name the caller reads the value."""
        self.take("{")
        while self.peek() != "}":
            name = self.value()
            if not isinstance(name, str):
                raise self._broken("a field name is missing")
            self.take(":")
            yield name
            self._comma("}")
        self.take("}")

    def elements(self) -> Iterator[None]:
        """Yield once for each element of an array, which the caller reads."""
        self.take("[")
        while self.peek() != "]":
            yield
            self._comma("]")
        self.take("]")

    def _comma(self, closing: str) -> None:
        if self.peek() != closing:
            self.take(",")
            if self.peek() == closing:
                raise self._broken("trailing comma")

    def _more(self) -> bool:
        if self._ended:
            return False
        piece = self._text.read(self._piece)
        self._ended = not piece
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        return bool(piece)

    def _broken(self, why: str) -> Exception:
        return refused(self._name, f"is not valid JSON, before byte {self.done}: {why}")
