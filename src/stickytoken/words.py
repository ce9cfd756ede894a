"""Numbers, nouns and names, as they are written in sentences and tables."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from stickytoken.validation import visible

MINUS = "\N{MINUS SIGN}"


def number(value: float, digits: int, unit: str = "") -> str:
    """Format a number with a true minus sign, thousands separators and a unit, such as "−0.53 SD".

    For the unit "%", the value is multiplied by 100. A value that rounds to 0 has no sign.
    """
    value_in_unit = 100 * value if unit == "%" else value
    digits_of_value = f"{value_in_unit:,.{digits}f}"
    is_zero = not digits_of_value.strip("-0.,")
    if is_zero:
        digits_of_value = digits_of_value.lstrip("-")
    separator = "" if unit in ("", "%", "×") else " "
    return f"{digits_of_value}{separator}{unit}".replace("-", MINUS)


def interval(low: float, high: float, digits: int, unit: str = "") -> str:
    """Format an interval, such as "39% to 42%" or "0.49 to 0.63 SD".

    The lower end is rounded down and the upper end up. Otherwise, an interval that begins just below a
    threshold could look as if it began at the threshold.
    """
    decimals = digits + 2 if unit == "%" else digits  # a percentage is a share, with two more decimals
    last_digit = Decimal(1).scaleb(-decimals)  # such as 0.01
    # "39% to 42%", but "0.49 to 0.63 SD".
    unit_of_each = "%" if unit == "%" else ""
    ends = []
    for end, rounding in ((low, ROUND_FLOOR), (high, ROUND_CEILING)):
        # Round the decimal number that Python prints, because the binary number may lie just beside it.
        rounded = Decimal(repr(float(end))).quantize(last_digit, rounding)
        ends.append(number(float(rounded), digits, unit_of_each))
    if unit in ("", "%"):
        return " to ".join(ends)
    separator = "" if unit == "×" else " "
    return f"{' to '.join(ends)}{separator}{unit}"


def percent(share: float) -> str:
    """Format a share as a whole percentage."""
    return number(share, 0, "%")


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count and what is counted: "1 query" or "3 queries".

    Args:
        count: the count.
        one: what follows the number 1, such as ``query`` or ``query is``.
        many: what follows any other number. Default: ``one`` followed by an s.
    """
    if count == 1:
        return f"1 {one}"
    plural = f"{one}s" if many is None else many
    return f"{count:,} {plural}"


def quoted(token: str) -> str:
    """Return a token in quotes, with invisible characters escaped."""
    return visible(repr(token))


def sentence(text: str) -> str:
    """Begin a clause with a capital letter and end it with a full stop."""
    return f"{text[0].upper()}{text[1:]}."
