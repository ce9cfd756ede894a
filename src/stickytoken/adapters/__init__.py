"""Clean texts inside other libraries: in front of a model, or as a step in their pipelines.

Each module is for one library and needs its extra; none of them is imported here.
"""

from collections import Counter

from stickytoken.cleaning.cleaner import Cleaner, counts_in_words
from stickytoken.errors import InputError, RefusedTextError
from stickytoken.validation import shown

NOTE = "stickytoken"  # the key under which a document says what was found in it


def cleaned_text(cleaner: Cleaner, text: str, name: str) -> tuple[str, str]:
    """Return the cleaned text and a note: counts of findings by kind, without their text; empty for none."""
    if not isinstance(text, str):
        raise InputError(f"the text of {name} is {shown(text)}: it must be a string")
    try:
        cleaned = cleaner.clean(text)
    except RefusedTextError as error:
        raise RefusedTextError(f"{name}: {error}") from error
    removed = Counter(removal.kind for removal in cleaned.removals)
    return cleaned.text, counts_in_words(removed, Counter(span.kind for span in cleaned.reported))
