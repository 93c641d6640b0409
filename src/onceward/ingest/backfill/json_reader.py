"""A JSON file of any size, read value by value: the parts that one wants, and never the whole."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from onceward.core.canonical import Json
from onceward.core.text import refused

PIECE = 1024 * 1024
# No single value is larger: a message, or what a chat says of itself.
VALUE_LENGTH_MAX = 64 * 1024 * 1024
_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[-+0-9.eE]+")
_decoder = json.JSONDecoder()


class JsonReader:
    """Reads forwards only. `InvalidInput` names the file when it is not JSON, or ends too early."""

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
        """How many bytes of the file were read, about."""
        return self._file.tell()

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
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
        """The next value, whole."""
        self.peek()
        while True:
            # A number that ends where the piece ends may go on in the next one.
            number = _NUMBER.match(self._buffer, self._at)
            if number and number.end() == len(self._buffer) and self._more():
                continue
            try:
                value, self._at = _decoder.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                reason = error.msg
            except RecursionError:
                raise self._broken("it is nested too deeply") from None
            else:
                return value  # type: ignore[no-any-return]  # JSON has no other
            if len(self._buffer) - self._at > VALUE_LENGTH_MAX:
                raise self._broken("one value is too large")
            if not self._more():
                raise self._broken(reason)

    def names(self) -> Iterator[str]:
        """The names of the fields of an object. Between two of them the caller reads the value."""
        self.take("{")
        while self.peek() != "}":
            name = self.value()
            if not isinstance(name, str):
                raise self._broken("the name of a field is missing")
            self.take(":")
            yield name
            self._comma("}")
        self.take("}")

    def elements(self) -> Iterator[None]:
        """Once for each element of an array, which the caller reads."""
        self.take("[")
        while self.peek() != "]":
            yield
            self._comma("]")
        self.take("]")

    def _comma(self, closing: str) -> None:
        if self.peek() != closing:
            self.take(",")
            if self.peek() == closing:
                raise self._broken("a comma too many")

    def _more(self) -> bool:
        if self._ended:
            return False
        piece = self._text.read(self._piece)
        self._ended = not piece
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        return bool(piece)

    def _broken(self, why: str) -> Exception:
        return refused(self._name, f"is not the JSON that it should be, before byte {self.done}: {why}")
