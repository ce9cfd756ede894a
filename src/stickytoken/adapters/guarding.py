"""A SentenceTransformer that cleans its inputs before it tokenizes them.

Inputs are cleaned only in ``preprocess``, because ``encode`` and its variants, worker processes, evaluators
and trainers all call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modality import infer_modality

from stickytoken.cleaning import Cleaned, Cleaner, CleanerSource, open_cleaner
from stickytoken.errors import InputError
from stickytoken.validation import require_callable, shown

_TEXT_KEYS = ("text", "content")

Model = TypeVar("Model", bound=SentenceTransformer)
OnFound = Callable[[str, Cleaned], None]


def guard(
    model: SentenceTransformer, cleaner: CleanerSource, *, on_found: OnFound | None = None
) -> GuardedModel:
    """Return a model that cleans every text before encoding it.

    The returned model can replace ``model``, because it is an instance of the class of ``model`` and has the
    weights, modules, prompts and methods of ``model``. ``model`` itself does not change. Texts inside pairs,
    messages and multimodal inputs are cleaned too. Prompts, images, audio and video are not changed.

    Args:
        model: A SentenceTransformer.
        cleaner: A cleaner; a run or its folder; or a file that `Cleaner.save` wrote.
        on_found: Called with each text that has findings, and with the result of cleaning it.

    Raises:
        InputError: The model is not a SentenceTransformer, or the cleaner is not valid.
        RunError: The folder is not a run, is damaged or is not finished.

    Examples:
        >>> guarded = stickytoken.guard(model.model, run)
        >>> bool((guarded.encode("a [SEP] bird") == model.model.encode("a bird")).all())
        True
    """
    if not isinstance(model, SentenceTransformer):
        raise InputError(f"model is {shown(model)}: pass a loaded SentenceTransformer")
    if on_found is not None:
        require_callable("on_found", on_found)
    opened_cleaner = open_cleaner(cleaner)
    guarded = _copy_as(_make_guarded_class(_find_class_without_guard(type(model))), model)
    guarded.cleaner = opened_cleaner
    guarded.on_found = on_found
    return guarded


class GuardedModel(SentenceTransformer):
    """A SentenceTransformer that cleans texts before it tokenizes them.

    `guard` creates a guarded model from a plain model; the two share their modules.
    """

    cleaner: Cleaner
    on_found: OnFound | None  # called with each text that has findings, and the result

    @property
    def unguarded(self) -> SentenceTransformer:
        """A model with the same modules that does not clean its inputs."""
        return _copy_as(_find_class_without_guard(type(self)), self)

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Clean the inputs, then preprocess them as the unguarded model does; the prompt is not cleaned."""
        modalities = self.modalities
        cleaned_inputs = []
        for value in inputs:
            is_path = False  # whether the value is the path of an image, a recording or a video
            if isinstance(value, str):
                is_path = infer_modality(value, supported_modalities=modalities) != "text"
            cleaned_inputs.append(value if is_path else self._clean_input(value))
        return super().preprocess(cleaned_inputs, prompt=prompt, **kwargs)

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Save the model without its guard."""
        self.unguarded.save(path, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is created at run time, so pickle cannot find it by name. Instead, pickle calls
        # `_make_empty` with the plain class, and then sets the attributes.
        return _make_empty, (_find_class_without_guard(type(self)),), vars(self).copy()

    def _clean_input(self, value: Any) -> Any:
        """Return an input of the model with all of its texts cleaned."""
        if isinstance(value, dict):  # a message
            cleaned_message = dict(value)
            for key in _TEXT_KEYS:
                if key in value:
                    cleaned_message[key] = self._clean_input(value[key])
            return cleaned_message
        if isinstance(value, (list, tuple)):
            cleaned_items = [self._clean_input(item) for item in value]
            return cleaned_items if isinstance(value, list) else tuple(cleaned_items)
        if not isinstance(value, str):
            return value  # such as an image
        cleaned = self.cleaner.clean(value)
        if self.on_found is not None and (cleaned.removals or cleaned.reported):
            self.on_found(value, cleaned)
        return cleaned.text


def _copy_as(model_class: type[Model], model: SentenceTransformer) -> Model:
    """Return an instance of a class with the attributes of a model, whose modules it shares."""
    copied = model_class.__new__(model_class)
    for name, value in vars(model).items():
        # Dictionaries, such as that of the modules, are copied, so that replacing a module in one model does
        # not replace it in the other. Setting the attribute would make torch register the modules again.
        copied.__dict__[name] = copy(value) if isinstance(value, dict) else value
    return copied


def _find_class_without_guard(model_class: type[SentenceTransformer]) -> type[SentenceTransformer]:
    return next(
        ancestor
        for ancestor in model_class.__mro__
        if issubclass(ancestor, SentenceTransformer) and not issubclass(ancestor, GuardedModel)
    )


@cache
def _make_guarded_class(plain_class: type[SentenceTransformer]) -> type[GuardedModel]:
    if plain_class is SentenceTransformer:
        return GuardedModel
    # The model stays an instance of its class, which may have methods of its own.
    name = f"Guarded{plain_class.__name__}"
    return type(name, (GuardedModel, plain_class), {"__doc__": GuardedModel.__doc__})


def _make_empty(plain_class: type[SentenceTransformer]) -> GuardedModel:
    guarded_class = _make_guarded_class(plain_class)
    return guarded_class.__new__(guarded_class)
