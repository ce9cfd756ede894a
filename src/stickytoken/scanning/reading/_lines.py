"""Lines of a byte stream, decoded one by one, so that a damaged line does not affect others."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from stickytoken.errors import InputError
from stickytoken.scanning.reading.documents import Meter

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Line(NamedTuple):
    """A line without its end.

    Attributes:
        number: From 1.
        offset: Byte of the file where it begins.
        content: Its bytes.
    """

    number: int
    offset: int
    content: bytes


class UnreadableError(Exception):
    """Bytes that are not text; the message says which byte."""


def lines(stream: BinaryIO, name: str, meter: Meter) -> Iterator[Line]:
    """Yield the lines of a stream, whatever ends them, without a byte-order mark."""
    offset, number = 0, 0
    try:
        for content in stream:
            if not offset:
                _require_bytes(content, name)
            start = len(codecs.BOM_UTF8) if not offset and content.startswith(codecs.BOM_UTF8) else 0
            for part in _split(content[start:]):
                number += 1
                yield Line(number, offset + start, part.rstrip(b"\r\n"))
                start += len(part)
            offset += len(content)
            meter.done += len(content)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error


def decoded(line: Line) -> str:
    """Decode a line as UTF-8."""
    return decoded_bytes(line.content, line.offset)


def decoded_bytes(content: bytes, offset: int = 0) -> str:
    """Decode bytes that begin at an offset of a file; see `decoded`."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        found = content[error.start]
        raise UnreadableError(f"byte {offset + error.start} (0x{found:02x}) is not UTF-8") from None
    if (place := content.find(b"\0")) >= 0:
        raise UnreadableError(f"byte {offset + place} is zero, as in a binary file")
    return text


def _split(content: bytes) -> list[bytes]:
    """Split at carriage returns, where they alone end lines."""
    if b"\r" not in content.removesuffix(b"\r\n"):
        return [content]
    return content.splitlines(keepends=True)


def _require_bytes(content: bytes, name: str) -> None:
    if content.startswith(_UTF_16):
        raise InputError(f"{name} is UTF-16 text: convert it to UTF-8, for example with iconv")
