"""Put the block into a model card without touching any other byte."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from stickytoken.errors import InputError, RunError
from stickytoken.measurement.atomic import write_atomically
from stickytoken.model_cards._block import BEGIN, END
from stickytoken.validation import file_path


def _line(marker: str) -> re.Pattern[bytes]:
    return re.compile(rb"^%b[ \t]*\r?$" % re.escape(marker.encode()), re.MULTILINE)


_BEGIN, _END = _line(BEGIN), _line(END)
# Whatever was a marker once.
_LOOSE = re.compile(rb"<!--[ \t]*stickytoken:", re.IGNORECASE)


def with_block(card: bytes, block: str, name: str) -> bytes:
    """Return a model card with the block in place of its earlier one, or at its end.

    Lines of the block end as those of the card. All other bytes stay as they are.

    Args:
        card: the file.
        block: from `card_block`.
        name: of the file, for errors.
    """
    try:
        card.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text ({error}): save it as UTF-8 first") from error
    newline = b"\r\n" if b"\r\n" in card else b"\n"
    written = block.encode("utf-8", "backslashreplace").replace(b"\n", newline)
    place = _place(card, name)
    if place is not None:
        return card[: place[0]] + written + card[place[1] :]
    if not card:
        return written + newline
    gap = newline if card.endswith(b"\n") else 2 * newline
    return card + (b"" if card.endswith(2 * newline) else gap) + written + newline


def write_block(block: str, card: str | Path) -> bool:
    """Put the block into a file, whole or not at all; a file that has it already is not written.

    Args:
        block: from `card_block`.
        card: an existing model card in Markdown.

    Returns:
        Whether the file changed.

    Raises:
        InputError: there is no such file, it is not UTF-8, or its markers are damaged or not one pair.
        RunError: the file cannot be read or written.
    """
    path = file_path("the model card", card)
    try:
        path = path.resolve()  # a link stays a link
        if not path.exists():
            raise InputError(f"there is no model card {card}: create the file first, it may be empty")
        before, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise RunError(f"{card} cannot be read: {error.strerror or error}") from error
    after = with_block(before, block, str(card))
    if after == before:
        return False
    if not os.access(path, os.W_OK):
        raise RunError(f"{card} cannot be written: it is read-only")
    write_atomically(path, after)
    path.chmod(mode)
    return True


def _place(card: bytes, name: str) -> tuple[int, int] | None:
    """Find where the earlier block begins and ends; None if the card has none."""
    begins, ends = list(_BEGIN.finditer(card)), list(_END.finditer(card))
    if not _LOOSE.search(card):
        return None
    whole = len(begins) == len(ends) == 1 and len(_LOOSE.findall(card)) == 2
    if whole and begins[0].start() < ends[0].start():
        return begins[0].start(), ends[0].start() + len(END)
    raise InputError(
        f"the markers of stickytoken in {name} are damaged: it has {len(begins)} whole lines {BEGIN} and "
        f"{len(ends)} whole lines {END}, and needs one of each, in this order, and no other; mend them, or "
        "delete them all with the old block, and a new one goes to the end"
    )
