"""A model that cleans texts before it encodes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.cleaning.cleaner import Cleaner, CleanerSource, open_cleaner, summary
from stickytoken.errors import InputError, RefusedTextError
from stickytoken.validation import require_callable, shown

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.adapters._guarded_model import GuardedModel
    from stickytoken.cleaning.cleaner import Cleaned


NOTE = "stickytoken"
"""The key under which a document says what was found in it."""


class CleanText(NamedTuple):
    text: str
    changed: bool
    note: str  # how much was found, by kind, without the text of it; empty if nothing was


def cleaned_text(cleaner: Cleaner, text: str, name: str) -> CleanText:
    if not isinstance(text, str):
        raise InputError(f"the text of {name} is {shown(text)}: it must be a string")
    try:
        cleaned = cleaner.clean(text)
    except RefusedTextError as error:
        raise RefusedTextError(f"{name}: {error}") from error
    return CleanText(cleaned.text, cleaned.text != text, summary(cleaned))


def guard(
    model: SentenceTransformer,
    cleaner: CleanerSource,
    *,
    on_found: Callable[[str, Cleaned], None] | None = None,
) -> GuardedModel:
    """Return a model that cleans every text before it encodes it.

    It takes the place of the model: it is an instance of the same class and has the same weights, modules,
    prompts and methods. The model itself does not change. Prompts are not cleaned, nor are images, audio and
    video; of pairs, messages and inputs of several kinds the texts are.

    Args:
        model: A SentenceTransformer.
        cleaner: A cleaner; a run or its folder; or a file that `Cleaner.save` wrote.
        on_found: Called with each text in which something was found, and what became of it.

    Raises:
        InputError: The model is no SentenceTransformer, or the cleaner is none.
        RunError: The folder is not a run, is damaged or is not finished.
    """
    from sentence_transformers import SentenceTransformer

    if not isinstance(model, SentenceTransformer):
        raise InputError(f"model is {shown(model)}: pass a loaded SentenceTransformer")
    if on_found is not None:
        require_callable("on_found", on_found)
    opened = open_cleaner(cleaner)
    from stickytoken.adapters._guarded_model import guarded_model

    return guarded_model(model, opened, on_found)
