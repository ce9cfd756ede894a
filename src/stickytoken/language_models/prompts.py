"""The prompts that turn a language model into a sentence encoder, and the settings that change its states.

PromptEOL was published by Jiang and others in 2023 (arXiv 2307.16645). Pretended chain of thought and
knowledge enhancement were published by Zhang and others in 2024 (2404.03921), and the mean of these two by
Cheng and others at ACL 2025 (2505.12831). MetaEOL was published by Lei and others in 2024 (2402.18458), and
the echo prompt by Springer and others in 2024 (2402.15449). The placeholder is placed as by Fu and others at
ACL 2025 (2412.11556).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stickytoken.encoders.protocol import quote_text
from stickytoken.errors import InputError

# Placeholder for the state of the last token, which represents the whole sentence. Token prepending
# overwrites the state of the placeholder with the state of the last token.
PLACEHOLDER = "<PST>"
# Stands for the sentence in a template.
SENTENCE = "{sentence}"
# Stands for the sentence in the templates of the published code.
_PUBLISHED_SENTENCE = "*sent 0*"
_QUOTED_SENTENCE = f'"{SENTENCE}"'
# Maximum number of characters of a prompt that an error message quotes.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Prompt:
    """One or more templates. The vector of a sentence is the mean over all templates.

    Attributes:
        name: name of a known prompt, or ``own``.
        templates: the templates, each with one `SENTENCE` (two for an echo) and at most one `PLACEHOLDER`.
    """

    name: str
    templates: tuple[str, ...]

    @property
    def echoes(self) -> bool:
        """Whether the sentence occurs twice; if so, the vector is the mean over the second copy's tokens."""
        return self.templates[0].count(SENTENCE) > 1

    @property
    def quoted(self) -> bool:
        """Whether every template quotes the sentence; if so, the sentence must be cleaned."""
        return all(_QUOTED_SENTENCE in _remove_placeholder(template) for template in self.templates)

    def split_template(self, template: str, *, prepending: bool) -> tuple[str, ...]:
        """Return the parts of a template around the sentence.

        There are two parts, or three for an echo, which has the sentence twice. With token prepending, a
        template that has no placeholder gets one before the sentence.
        """
        if not prepending:
            template = _remove_placeholder(template)
        elif PLACEHOLDER not in template:
            # The placeholder goes before the sentence or, if the sentence is quoted, before its quotation
            # mark.
            sentence = _QUOTED_SENTENCE if _QUOTED_SENTENCE in template else SENTENCE
            template = template.replace(sentence, f"{PLACEHOLDER} {sentence}", 1)
        return tuple(template.strip().split(SENTENCE))


def _remove_placeholder(template: str) -> str:
    # A space after the placeholder is removed too.
    return template.replace(f"{PLACEHOLDER} ", "").replace(PLACEHOLDER, "")


def find_prompt(prompt: str | Prompt) -> Prompt:
    """Return the known prompt of this name, or else a new prompt with this text as its template."""
    if isinstance(prompt, Prompt):
        return prompt
    if prompt.lower() in PROMPTS:
        return PROMPTS[prompt.lower()]
    template = prompt.replace(_PUBLISHED_SENTENCE, SENTENCE)
    subject = f"the prompt {quote_text(prompt, _SHOWN_CHARACTERS)}"
    sentence_count = template.count(SENTENCE)
    if sentence_count == 0:
        raise InputError(
            f"{subject} is not one of {', '.join(PROMPTS)} and has no place for the sentence: "
            f"write {SENTENCE} where the sentence goes"
        )
    if sentence_count > 2:
        raise InputError(
            f"{subject} has {sentence_count} places for the sentence: use one, or two to echo it"
        )
    if template.count(PLACEHOLDER) > 1:
        raise InputError(f"{subject} has more than one {PLACEHOLDER}: use only one")
    return Prompt("own", (template,))


def is_template(prompt: str) -> bool:
    """Return whether a prompt is for a language model, rather than text to put before every input."""
    return prompt.lower() in PROMPTS or SENTENCE in prompt or _PUBLISHED_SENTENCE in prompt


_END = f'{PLACEHOLDER} "{SENTENCE}" means in one word:"'
# The tasks of MetaEOL, each mapped to the words that follow the sentence in its template.
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

_TASK_TEMPLATES = tuple(
    f'{task} this sentence : {PLACEHOLDER} "{SENTENCE}" {question} in one word:"'
    for task, question in _TASKS.items()
)
_THOUGHT = f"After thinking step by step , this sentence : {_END}"
_KNOWLEDGE = (
    "The essence of a sentence is often captured by its main subjects and actions, while descriptive terms "
    f"provide additional but less central details. With this in mind , this sentence : {_END}"
)

_KNOWN_PROMPTS = (
    Prompt("prompteol", (f"This sentence : {_END}",)),
    Prompt("cot", (_THOUGHT,)),
    Prompt("ke", (_KNOWLEDGE,)),
    Prompt("ck", (_THOUGHT, _KNOWLEDGE)),
    Prompt("metaeol", _TASK_TEMPLATES),
    Prompt("echo", (f"Rewrite the sentence: {SENTENCE}, rewritten sentence: {SENTENCE}",)),
)
PROMPTS = {prompt.name: prompt for prompt in _KNOWN_PROMPTS}


# Whitespace that is not a single space.
_OTHER_SPACE = re.compile(r"\s{2,}|[^\S ]")


def clean_sentence(text: str) -> str:
    """Clean a sentence in the same way as the published code.

    A question mark at the end becomes a full stop. A full stop is added if the sentence does not end with a
    question mark, a full stop or a quotation mark. Double quotation marks become single ones.
    """
    if text and not text.endswith((".", "?", '"', "'")):
        text += "."
    text = text.replace('"', "'")
    if text.endswith("?"):
        text = text[:-1] + "."
    return text


def clean_inner_text(text: str, *, quoted: bool) -> str:
    """Return a part of a sentence, such as the text of a token, in the form that it has in a cleaned
    sentence.

    ``quoted`` says whether the prompt quotes sentences.
    """
    text = _OTHER_SPACE.sub(" ", text)
    return text.replace('"', "'") if quoted else text
