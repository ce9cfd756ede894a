"""The prompts that turn a language model into a sentence encoder. Pure.

PromptEOL: Jiang et al. 2023 (arXiv 2307.16645). Pretended chain of thought and knowledge enhancement: Zhang
et al. 2024 (2404.03921); the mean of both: Cheng et al., ACL 2025 (2505.12831). MetaEOL: Lei et al. 2024
(2402.18458). Echo: Springer et al. 2024 (2402.15449). The position of the placeholder: Fu et al., ACL 2025
(2412.11556).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stickytoken.encoders.protocol import LayerChoice, Prompting
from stickytoken.errors import InputError

PLACEHOLDER = "<PST>"
SENTENCE = "{sentence}"
# The published code's mark for the sentence.
_PUBLISHED_SENTENCE = "*sent 0*"
_QUOTED = f'"{SENTENCE}"'
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Prompt:
    """One or more templates; the vector of a sentence is the mean over them."""

    name: str  # of a known prompt, or ``own``
    templates: tuple[str, ...]  # with one `SENTENCE`, or two for an echo, and at most one `PLACEHOLDER`

    @property
    def echoes(self) -> bool:
        """Whether the prompt repeats the sentence, so that the vector is the mean over the second copy."""
        return self.templates[0].count(SENTENCE) > 1

    @property
    def quoted(self) -> bool:
        """Whether the prompt quotes the sentence, which must then be cleaned."""
        return all(_QUOTED in _without_placeholder(template) for template in self.templates)

    def pieces(self, template: str, *, prepending: bool) -> tuple[str, ...]:
        if not prepending:
            template = _without_placeholder(template)
        elif PLACEHOLDER not in template:
            place = _QUOTED if _QUOTED in template else SENTENCE
            template = template.replace(place, f"{PLACEHOLDER} {place}", 1)
        return tuple(template.strip().split(SENTENCE))


def _without_placeholder(template: str) -> str:
    return template.replace(f"{PLACEHOLDER} ", "").replace(PLACEHOLDER, "")


def find_prompt(prompt: str | Prompt) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if prompt.lower() in PROMPTS:
        return PROMPTS[prompt.lower()]
    template = prompt.replace(_PUBLISHED_SENTENCE, SENTENCE)
    shown = repr(prompt if len(prompt) <= _SHOWN else prompt[: _SHOWN - 1] + "…")
    places = template.count(SENTENCE)
    if places == 0:
        raise InputError(
            f"the prompt {shown} is not one of {', '.join(PROMPTS)} and has no place for the sentence: "
            f"write {SENTENCE} where the sentence goes"
        )
    if places > 2:
        raise InputError(
            f"the prompt {shown} has {places} places for the sentence: use one, or two to echo it"
        )
    if template.count(PLACEHOLDER) > 1:
        raise InputError(f"the prompt {shown} has more than one {PLACEHOLDER}: use only one")
    return Prompt("own", (template,))


def is_template(prompt: str) -> bool:
    return prompt.lower() in PROMPTS or SENTENCE in prompt or _PUBLISHED_SENTENCE in prompt


_END = f'{PLACEHOLDER} "{SENTENCE}" means in one word:"'
# The tasks of MetaEOL, and what the sentence does in each.
_TASKS = {
    "In this task, you're presented with a text excerpt. Your task is to categorize the excerpt into a broad "
    "category such as 'Education', 'Technology', 'Health', 'Business', 'Environment', 'Politics', or "
    "'Culture'. These categories help in organizing content for better accessibility and targeting. For this "
    "task,": "should be classified under one general category",
    "In this task, you're given a statement and you need to determine whether it's presenting an 'Opinion' "
    "or a 'Fact'. This distinction is vital for information verification, educational purposes, and content "
    "analysis. For this task,": "discriminates between opinion and fact",
    "In this task, you're given a review from an online platform. Your task is to generate a rating for the "
    "product based on the review on a scale of 1-5, where 1 means 'extremely negative' and 5 means "
    "'extremely positive'. For this task,": "reflects the sentiment",
    "In this task, you're reading a personal diary entry. Your task is to identify the predominant emotion "
    "expressed, such as joy, sadness, anger, fear, or love. For this task,": "conveys the emotion",
    "In this task, you're presented with two sentences. Your task is to assess whether the sentences convey "
    "the same meaning. Use 'identical', 'similar', 'different', or 'unrelated' to describe the relationship. "
    "To enhance the performance of this task,": "means",
    "In this task, you're given a sentence and a phrase. Your task is to determine if the phrase can be a "
    "contextual synonym within the given sentence. Options include 'yes', 'no', or 'partially'. To enhance "
    "the performance of this task,": "means",
    "In this task, you're examining a news article. Your task is to extract the most critical fact from the "
    "article. For this task,": "encapsulates the key fact",
    "In this task, you're reviewing a scientific abstract. Your task is to identify the main entities (e.g., "
    "proteins, diseases) and their relations (e.g., causes, treats). "
    "For this task,": "highlights the primary entity or relation",
}

_THOUGHT = f"After thinking step by step , this sentence : {_END}"
_KNOWLEDGE = (
    "The essence of a sentence is often captured by its main subjects and actions, while descriptive terms "
    f"provide additional but less central details. With this in mind , this sentence : {_END}"
)

PROMPTS = {
    prompt.name: prompt
    for prompt in (
        Prompt("prompteol", (f"This sentence : {_END}",)),
        Prompt("cot", (_THOUGHT,)),
        Prompt("ke", (_KNOWLEDGE,)),
        Prompt("ck", (_THOUGHT, _KNOWLEDGE)),
        Prompt(
            "metaeol",
            tuple(
                f'{task} this sentence : {PLACEHOLDER} "{SENTENCE}" {asks} in one word:"'
                for task, asks in _TASKS.items()
            ),
        ),
        Prompt("echo", (f"Rewrite the sentence: {SENTENCE}, rewritten sentence: {SENTENCE}",)),
    )
}


AUXILIARY = Prompt(
    "auxiliary", (f'The irrelevant information of this sentence : "{SENTENCE}" means in one word:"',)
)
DEFAULT_STRENGTH = 0.5


class ContrastRule(StrEnum):
    """What replaces the values A of the prompt's last token, given the values B of the auxiliary prompt's."""

    SCALED = "scaled"
    """c (A - B), the published default."""
    NORM = "norm"
    """(A - B) |A| / |A - B|: the difference with the norm of A."""
    SCALED_NORM = "scaled_norm"
    """c (A - B) |A| / |A - B|."""
    SUB_HEAD_NORM = "sub_head_norm"
    """As NORM, for every attention head by itself."""

    @property
    def scales(self) -> bool:
        return self in (ContrastRule.SCALED, ContrastRule.SCALED_NORM)


@dataclass(frozen=True, slots=True)
class Contrast:
    layer: int  # whose attention is changed, from 0
    strength: float | None = DEFAULT_STRENGTH  # the factor c; None for a rule without one
    rule: ContrastRule = ContrastRule.SCALED

    def __post_init__(self) -> None:
        _require_values(self.layer, self.strength, self.rule)
        if self.rule.scales and self.strength is None:
            raise InputError(f"the contrast rule {self.rule} needs a strength: pass a number from 0")


def require_contrast_options(options: Prompting) -> ContrastRule:
    """Check the options of contrast before a model is loaded, and return the rule."""
    given = [name for name in options.given if name.startswith("contrast_")]
    if given and not options.contrast:
        raise InputError(f"{', '.join(given)} would have no effect, since contrast is off: turn it on")
    try:
        rule = ContrastRule(options.contrast_rule or ContrastRule.SCALED)
    except ValueError as error:
        raise InputError(
            f"the contrast rule {options.contrast_rule!r} is unknown: use one of {', '.join(ContrastRule)}"
        ) from error
    _require_values(options.contrast_layer, options.contrast_strength, rule)
    return rule


def _require_values(layer: int | None, strength: float | None, rule: ContrastRule) -> None:
    if layer is not None and layer < 0:
        raise InputError(f"the contrast layer is {layer}: layers are counted from 0")
    if strength is not None and not rule.scales:
        raise InputError(
            f"the contrast rule {rule} has no strength, got {strength}: leave the strength out, or use "
            f"{ContrastRule.SCALED} or {ContrastRule.SCALED_NORM}"
        )
    if strength is not None and not (math.isfinite(strength) and strength >= 0):
        raise InputError(f"the contrast strength is {strength}: pass a finite number from 0")


# Templates that the settings were published for.
_TEMPLATES = ("prompteol", "cot", "ke", "ck", "metaeol")
# Prompts that are read after the last layer but one, also where the others are not.
_READ_LATER = ("ke", "ck")
_LLAMA_3_VOCABULARY = 128_000


@dataclass(frozen=True, slots=True)
class Preset:
    """Layers to overwrite, from ``start`` to before ``exit``, and the layer to read."""

    start: int
    exit: int
    layer: int
    contrast_layer: int | None = None  # None is 4/32 of the depth
    contrast_strength: float = DEFAULT_STRENGTH
    published: bool = True  # or derived from the setting of Llama 2 7B


def preset_for(config: Any, layers: int, prompt: Prompt) -> Preset:
    """Return the published setting of a model family, or that of Llama 2 7B at the same relative depth."""
    match config.model_type, layers:
        case "llama", 32 if config.vocab_size >= _LLAMA_3_VOCABULARY:  # Llama 3 8B
            return Preset(1, 3, -2, 6, 0.25)
        case "llama", 32:  # Llama 2 7B
            return Preset(1, 7, -2 if prompt.name in _READ_LATER else 27, 4)
        case "llama", 40:  # Llama 2 13B
            return Preset(1, 7, -2)
        case ("qwen2", 28) | ("gemma2", 42):  # Qwen2 7B, Gemma 2 9B
            return Preset(1, 6, -2)
    # 7/32 and 27/32 of the depth, not measured on this model.
    end, read = (max(least, round(part * layers / 32)) for least, part in ((2, 7), (1, 27)))
    return Preset(min(1, layers - 1), end, read, published=False)


def layer_for(preset: Preset, prompt: Prompt, given: int | None, *, steered: bool) -> tuple[int, LayerChoice]:
    """Choose the layer to read, and say where the choice comes from."""
    if given is not None:
        return given, LayerChoice.GIVEN
    if preset.published and prompt.name in _TEMPLATES:
        # The plain prompt too, so that the two can be compared.
        return preset.layer, LayerChoice.PUBLISHED
    return (preset.layer, LayerChoice.SCALED) if steered else (-1, LayerChoice.LAST)


def contrast_layer_for(preset: Preset, layers: int, number: int, possible: Sequence[int]) -> int:
    """Choose the layer of contrast: that of the preset, or the nearest one that can be changed."""
    wanted = round(4 * layers / 32) if preset.contrast_layer is None else preset.contrast_layer
    earlier = [layer for layer in possible if layer < number]
    return min(earlier, key=lambda layer: abs(layer - wanted), default=min(wanted, number - 1))


_OTHER_SPACE = re.compile(r"\s{2,}|[^\S ]")


def join_words(text: str) -> str:
    return " ".join(text.split())


def clean_sentence(text: str) -> str:
    """End a sentence with a full stop and replace its double quotation marks.

    Follows the published code, in its order: append a full stop unless the text ends with ``.``, ``?``,
    ``"`` or ``'``; replace every ``"`` with ``'``; replace a final question mark with a full stop. An empty
    sentence stays empty.
    """
    if text and not text.endswith((".", "?", '"', "'")):
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text.endswith("?") else text


def reachable_text(text: str, *, quoted: bool) -> str:
    """Return what remains of a piece of text anywhere inside a cleaned sentence, so with punctuation."""
    text = _OTHER_SPACE.sub(" ", text)
    return text.replace('"', "'") if quoted else text
