"""The category that a user types."""

from __future__ import annotations

from stickytoken.errors import InputError


def known_category(category: str | None) -> str | None:
    """The category in capitals; None stays None.

    Raises:
        InputError: there is no such category.
    """
    from stickytoken.vocabulary.categories import Category

    if category is None:
        return None
    known = [each.value for each in Category]
    if category.upper() not in known:
        raise InputError(f"category {category!r} is unknown: use one of {', '.join(known)}")
    return category.upper()
