"""The prompts that turn a language model into a sentence encoder. Pure.

PromptEOL: Jiang et al. 2023 (arXiv 2307.16645). Pretended chain of thought and knowledge enhancement: Zhang
et al. 2024 (2404.03921); the mean of both: Cheng et al., ACL 2025 (2505.12831). MetaEOL: Lei et al. 2024
(2402.18458). Echo: Springer et al. 2024 (2402.15449). The position of the placeholder: Fu et al., ACL 2025
(2412.11556).
"""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.errors import InputError

PLACEHOLDER = "<PST>"
SENTENCE = "{sentence}"
# The published code's mark for the sentence.
_PUBLISHED_SENTENCE = "*sent 0*"
_QUOTED = f'"{SENTENCE}"'
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Prompt:
    """One or more templates; the vector of a sentence is the mean over them.

    Attributes:
        name: name of a known prompt, or ``own``.
        templates: texts with one `SENTENCE`, or two for an echo, and at most one `PLACEHOLDER`.
    """

    name: str
    templates: tuple[str, ...]

    @property
    def source(self) -> str:
        """The argument of `find_prompt` for this prompt: its name, or the template."""
        return self.name if self.name in PROMPTS else self.templates[0]

    @property
    def echoes(self) -> bool:
        """Whether the prompt repeats the sentence, so that the vector is the mean over the second copy."""
        return self.templates[0].count(SENTENCE) > 1

    @property
    def quoted(self) -> bool:
        """Whether the prompt quotes the sentence, which must then be cleaned."""
        return all(_QUOTED in _without_placeholder(template) for template in self.templates)

    def pieces(self, template: str, *, prepending: bool) -> tuple[str, ...]:
        """Split a template at the places of the sentence.

        Args:
            template: one of the templates.
            prepending: keep the placeholder, or insert one before the (quoted) sentence if the template has
                none; False removes it.
        """
        if not prepending:
            template = _without_placeholder(template)
        elif PLACEHOLDER not in template:
            place = _QUOTED if _QUOTED in template else SENTENCE
            template = template.replace(place, f"{PLACEHOLDER} {place}", 1)
        return tuple(template.strip().split(SENTENCE))


def _without_placeholder(template: str) -> str:
    return template.replace(f"{PLACEHOLDER} ", "").replace(PLACEHOLDER, "")


def find_prompt(prompt: str | Prompt) -> Prompt:
    """Return a known prompt by name, or a prompt with the user's own template.

    Args:
        prompt: ``prompteol``, ``cot``, ``ke``, ``ck``, ``metaeol``, ``echo``, or a text with ``{sentence}``
            in it.

    Raises:
        InputError: The prompt is neither, or its template cannot be filled.
    """
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
    """Check whether a text is the name of a known prompt or has a place for the sentence."""
    return prompt.lower() in PROMPTS or SENTENCE in prompt or _PUBLISHED_SENTENCE in prompt


_END = f'{PLACEHOLDER} "{SENTENCE}" means in one word:"'
_CLASSIFY = (
    "In this task, you're presented with a text excerpt. Your task is to categorize the excerpt into a broad "
    "category such as 'Education', 'Technology', 'Health', 'Business', 'Environment', 'Politics', or "
    "'Culture'. These categories help in organizing content for better accessibility and targeting. For this "
    "task,"
)
_OPINION = (
    "In this task, you're given a statement and you need to determine whether it's presenting an 'Opinion' "
    "or a 'Fact'. This distinction is vital for information verification, educational purposes, and content "
    "analysis. For this task,"
)
_REVIEW = (
    "In this task, you're given a review from an online platform. Your task is to generate a rating for the "
    "product based on the review on a scale of 1-5, where 1 means 'extremely negative' and 5 means "
    "'extremely positive'. For this task,"
)
_EMOTION = (
    "In this task, you're reading a personal diary entry. Your task is to identify the predominant emotion "
    "expressed, such as joy, sadness, anger, fear, or love. For this task,"
)
_SAME_MEANING = (
    "In this task, you're presented with two sentences. Your task is to assess whether the sentences convey "
    "the same meaning. Use 'identical', 'similar', 'different', or 'unrelated' to describe the relationship. "
    "To enhance the performance of this task,"
)
_SYNONYM = (
    "In this task, you're given a sentence and a phrase. Your task is to determine if the phrase can be a "
    "contextual synonym within the given sentence. Options include 'yes', 'no', or 'partially'. To enhance "
    "the performance of this task,"
)
_NEWS = (
    "In this task, you're examining a news article. Your task is to extract the most critical fact from the "
    "article. For this task,"
)
_ABSTRACT = (
    "In this task, you're reviewing a scientific abstract. Your task is to identify the main entities (e.g., "
    "proteins, diseases) and their relations (e.g., causes, treats). For this task,"
)
_TASKS = (
    (_CLASSIFY, "should be classified under one general category"),
    (_OPINION, "discriminates between opinion and fact"),
    (_REVIEW, "reflects the sentiment"),
    (_EMOTION, "conveys the emotion"),
    (_SAME_MEANING, "means"),
    (_SYNONYM, "means"),
    (_NEWS, "encapsulates the key fact"),
    (_ABSTRACT, "highlights the primary entity or relation"),
)

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
                for task, asks in _TASKS
            ),
        ),
        Prompt("echo", (f"Rewrite the sentence: {SENTENCE}, rewritten sentence: {SENTENCE}",)),
    )
}
