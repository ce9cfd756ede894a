"""The class behind `guard`: a SentenceTransformer whose inputs are cleaned where it tokenizes them.

Everything that encodes goes through ``preprocess``: ``encode`` and its variants, several processes,
evaluators and trainers. Inputs are cleaned there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modality import infer_modality

from stickytoken.cleaning.cleaner import Cleaned, Cleaner
from stickytoken.errors import RefusedTextError

_TEXT_KEYS = ("text", "content")
_SHOWN = 60

Model = TypeVar("Model", bound=SentenceTransformer)
OnFound = Callable[[str, Cleaned], None]


class GuardedModel(SentenceTransformer):
    """A SentenceTransformer that cleans texts before it tokenizes them; made by `guard`.

    It shares its modules with the model that it was made from.
    """

    cleaner: Cleaner
    on_found: OnFound | None  # told each text in which something was found, and what became of it

    @property
    def unguarded(self) -> SentenceTransformer:
        """The same model without the guard."""
        return _shared(self, _plain_class(type(self)))

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Clean inputs, then preprocess them as the model does; the prompt stays as it is."""
        modalities = self.modalities
        # A string may also say where an image, a recording or a film lies.
        cleaned = [
            each
            if isinstance(each, str) and infer_modality(each, supported_modalities=modalities) != "text"
            else self._cleaned(each)
            for each in inputs
        ]
        return super().preprocess(cleaned, prompt=prompt, **kwargs)

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Save the model without the guard, which is no part of its files."""
        self.unguarded.save(path, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let other processes and copies make the class, which has no name of its own to be found by."""
        return _empty, (_plain_class(type(self)),), vars(self).copy()

    def _cleaned(self, value: Any) -> Any:
        """Clean the texts in an input: itself, both of a pair, or what stands under keys for text."""
        if isinstance(value, dict):
            return {key: self._cleaned(part) if key in _TEXT_KEYS else part for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            parts = [self._cleaned(part) for part in value]
            return parts if isinstance(value, list) else tuple(parts)
        if not isinstance(value, str):
            return value
        try:
            cleaned = self.cleaner.clean(value)
        except RefusedTextError as error:
            raise RefusedTextError(f"{value[:_SHOWN]!r}: {error}") from error
        if self.on_found is not None and (cleaned.removals or cleaned.reported):
            self.on_found(value, cleaned)
        return cleaned.text


def guarded_model(model: SentenceTransformer, cleaner: Cleaner, on_found: OnFound | None) -> GuardedModel:
    guarded = _shared(model, _guarded_class(_plain_class(type(model))))
    guarded.cleaner = cleaner
    guarded.on_found = on_found
    return guarded


def _shared(model: SentenceTransformer, kind: type[Model]) -> Model:
    """Return a model of a class with the modules of another; what is added to one is not added to both."""
    made = kind.__new__(kind)
    made.__dict__.update(
        (name, copy(value) if isinstance(value, dict) else value) for name, value in vars(model).items()
    )
    return made


def _plain_class(kind: type[SentenceTransformer]) -> type[SentenceTransformer]:
    plain = (each for each in kind.__mro__ if not issubclass(each, GuardedModel))
    return next(each for each in plain if issubclass(each, SentenceTransformer))


@cache
def _guarded_class(plain: type[SentenceTransformer]) -> type[GuardedModel]:
    """Return a class of guarded models that is also the class of the model."""
    if plain is SentenceTransformer:
        return GuardedModel
    return type(f"Guarded{plain.__name__}", (GuardedModel, plain), {"__doc__": GuardedModel.__doc__})


def _empty(plain: type[SentenceTransformer]) -> GuardedModel:
    kind = _guarded_class(plain)
    return kind.__new__(kind)
