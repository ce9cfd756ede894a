"""Measures what prompts, token prepending and reuse cost on language models, and what they score.

The commands `prepending` and `reuse` use models with random weights, since costs do not depend on the
weights. With --quick, they use a small model and few sentences, and missed bars do not fail the command. In
`prepending`, costs are CPU seconds of one thread, the minimum over several rounds. Both take minutes; run one
with `python benchmarks/prompts.py COMMAND`.

The command `prepending-scores` needs a language model with real weights, and labelled pairs of sentences.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench import Results, by_turns, commands, units
from models import pooled, random_decoder, word_tokenizer
from stickytoken import load_encoder
from stickytoken.data.metrics import SimilarityTask
from stickytoken.encoders import Prompting
from stickytoken.encoders.compute.prefixes import REUSE
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.evaluation import Tried, read_similarity, tune
from stickytoken.intervals import bootstrap_samples, contrast_intervals, resampled
from stickytoken.language_models.encoder import CausalPromptEncoder
from stickytoken.language_models.prompts import (
    PLACEHOLDER,
    PROMPTS,
    SENTENCE,
    find_prompt,
)
from stickytoken.language_models.reading import Reading, TokenPrepending

WORDS = [f"w{index}" for index in range(2000)]
# The full stop is the twelfth token of a sentence.
SENTENCE_WORDS = 11
# Number of words in the sentences on which token prepending and the sentence-transformers module are timed.
LONGER_WORDS = 24
# Share of the layers after which the paper on token prepending reads the vector early.
EARLY = 27 / 32
# Number of bootstrap samples.
SAMPLES = 2000
# Largest difference between two vectors that counts as rounding.
ROUNDING = 1e-5


class CostBench:
    """Measures costs of encoders on one random model, and records them as checks.

    Args:
        results: where the checks are recorded.
        family: family of the model, ``Qwen2`` or ``Llama``.
        quick: whether to use a small model, few sentences and one round.
        sentence_count: number of sentences, unless ``quick``.
        rounds: number of rounds over which the minimum is taken, unless ``quick``.

    Attributes:
        layers: number of layers of the model.
        span: the layers of token prepending; as large a share of this model as in the paper.
        sentences: sentences of twelve tokens.
        longer_sentences: sentences of 24 words.
    """

    def __init__(
        self, results: Results, family: str, quick: bool, sentence_count: int = 192, rounds: int = 5
    ) -> None:
        torch.set_num_threads(1)
        self.results = results
        if quick:
            self.layers = 3
            width = 64
            sentence_count = 64
            self.rounds = 1
        else:
            self.layers = 12
            width = 384
            self.rounds = rounds
        self.tokenizer = word_tokenizer([*WORDS, *words_of_prompts(), '"', ".", '."'])
        self.model = random_decoder(family, self.layers, width, len(self.tokenizer))
        self.span = TokenPrepending(1, max(2, round(7 * self.layers / 32)))
        self.sentences = random_sentences(sentence_count, SENTENCE_WORDS)
        self.longer_sentences = random_sentences(sentence_count, LONGER_WORDS)

    def encoder(
        self,
        prompt: str,
        span: TokenPrepending | None = None,
        layer: int = -1,
        **options: Any,
    ) -> CausalPromptEncoder:
        """Return an encoder that reads the random model with these settings; ``layer`` -1 is the last."""
        reading = Reading(find_prompt(prompt), span, layer)
        return CausalPromptEncoder(self.model, self.tokenizer, "random", reading, **options)

    def minimum_seconds(self, *functions: Callable[[], object]) -> list[float]:
        """Return the minimum CPU seconds of each function, after a first round that is not counted."""
        numbered = {str(index): function for index, function in enumerate(functions)}
        seconds_of_functions = by_turns(numbered, self.rounds, time.process_time, warm=True)
        return [min(seconds) for seconds in seconds_of_functions.values()]

    def check_ratio(self, name: str, ratio: float, maximum: float) -> None:
        """Record a ratio of costs, which passes up to a maximum."""
        self.results.check(name, f"at most {maximum} times", f"{ratio:.2f} times", ratio <= maximum)

    def check_equal(self, name: str, first: NDArray[Any], second: NDArray[Any]) -> None:
        """Record the largest difference between two arrays of vectors, which passes if it is rounding."""
        difference = float(np.abs(first - second).max())
        self.results.check(name, "at most 1e-5", f"{difference:.1e}", difference <= ROUNDING)

    def check_prepending(self) -> None:
        """Compare token prepending with the prompt alone.

        The prompt alone is read after all layers, and token prepending after all layers or earlier.
        """
        early_layer = round(EARLY * self.layers)
        plain = self.encoder("prompteol")
        prepending = self.encoder("prompteol", self.span)
        early = self.encoder("prompteol", self.span, early_layer)
        plain_seconds, prepending_seconds, early_seconds = self.minimum_seconds(
            partial(plain.encode, self.longer_sentences),
            partial(prepending.encode, self.longer_sentences),
            partial(early.encode, self.longer_sentences),
        )
        self.check_ratio("token prepending, same layer", prepending_seconds / plain_seconds, 1.05)
        name = f"token prepending, read after layer {early_layer} of {self.layers}"
        self.check_ratio(name, early_seconds / plain_seconds, 0.9)

    def run_transformers(self, prompt: str) -> None:
        """Run the prompts with transformers alone, in padded batches of 16 and through all layers."""
        pieces = PROMPTS[prompt].split_template(PROMPTS[prompt].templates[0], prepending=False)
        texts = [f"{pieces[0]}{sentence}.{pieces[1]}" for sentence in self.sentences]
        with torch.inference_mode():
            for start in range(0, len(texts), 16):
                ids = torch.tensor(self.tokenizer(texts[start : start + 16])["input_ids"])
                self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)

    def check_reuse(self, prompt: str, bar: float) -> None:
        """Compare prompts whose common beginning is computed once with two ways that do not reuse it.

        The other ways are stickytoken's encoder without reuse, and transformers alone.

        Args:
            prompt: name of the prompt.
            bar: how many times faster than transformers the encoder must be.
        """
        plain = self.encoder(prompt, reuse=None)
        reusing = self.encoder(prompt, reuse=REUSE)
        encode_plain = partial(plain.encode, self.sentences)
        encode_reusing = partial(reusing.encode, self.sentences)
        plain_seconds, reusing_seconds, transformers_seconds = self.minimum_seconds(
            encode_plain, encode_reusing, partial(self.run_transformers, prompt)
        )
        tokenized_prompt = plain.prompted.prompts[0]
        all_tokens = tokenized_prompt.length(SENTENCE_WORDS)
        tokens_with_reuse = all_tokens - tokenized_prompt.prefix_length
        times_faster = transformers_seconds / reusing_seconds
        self.results.check(
            f"{prompt}: transformers alone / ours "
            f"({all_tokens} tokens, {tokens_with_reuse} with the beginning reused)",
            f"at least {bar} times",
            f"{times_faster:.2f} times",
            times_faster >= bar,
        )
        self.results.check(
            f"{prompt}: our path without reuse / with it",
            f"tokens: {all_tokens / tokens_with_reuse:.2f}",
            f"{plain_seconds / reusing_seconds:.2f} times",
        )
        self.check_equal(f"{prompt}: difference of reuse", encode_plain(), encode_reusing())

    def check_probe_reuse(self) -> None:
        """Compare an encoder with reuse and one without it on texts like those of detection.

        Each text is a sentence followed by 1 to 8 copies of a token.
        """
        plain = self.encoder("prompteol", reuse=None)
        reusing = self.encoder("prompteol", reuse=REUSE)
        carriers = [text.ids for text in plain.tokenize(self.sentences[:4])]
        contents = carriers_with_copies(carriers, len(self.sentences) // 16)
        encode_plain = partial(plain.encode_ids, contents)
        encode_reusing = partial(reusing.encode_ids, contents)
        plain_seconds, reusing_seconds = self.minimum_seconds(encode_plain, encode_reusing)
        name = "prompteol, 1 to 8 copies behind a sentence: without reuse / with it"
        self.results.check(name, "", f"{plain_seconds / reusing_seconds:.2f} times")
        self.check_equal("the same: difference of reuse", encode_plain(), encode_reusing())


def words_of_prompts() -> list[str]:
    """Return the words and punctuation marks of all prompts, which the tokenizer must know."""
    templates = [template for prompt in PROMPTS.values() for template in prompt.templates]
    text = " ".join(templates).replace(PLACEHOLDER, "").replace(SENTENCE, ' ." ')
    return re.findall(r"\w+|[^\w\s]+", text)


def random_sentences(count: int, words: int) -> list[str]:
    """Return ``count`` sentences of so many random words; equal arguments give equal sentences."""
    rows = np.random.default_rng(0).choice(WORDS, (count, words)).tolist()
    return [" ".join(row) for row in rows]


def carriers_with_copies(carriers: Sequence[Sequence[int]], token_count: int) -> list[tuple[int, ...]]:
    """Return each carrier followed by 1 to 8 copies of each of the first tokens, as token ids.

    The tokens are 1 to ``token_count``.
    """
    combinations = product(range(1, token_count + 1), carriers, range(1, 9))
    return [(*carrier, *(token,) * copies) for token, carrier, copies in combinations]


def prepending(quick: bool = False, rounds: int = 5) -> None:
    """Measure what token prepending, early reading and reuse cost, on a random Qwen2.

    This takes some minutes. With --quick, the model is small, and missed bars do not fail the command. Each
    time is the minimum over --rounds.
    """
    bench = CostBench(Results("token_prepending"), "Qwen2", quick, rounds=rounds)
    bench.check_prepending()
    bench.check_reuse("prompteol", 1.5)
    bench.check_reuse("ke", 3)
    bench.check_probe_reuse()
    bench.results.finish(strict=not quick)


def reuse(quick: bool = False) -> None:
    """Compare a causal model that computes common beginnings once with the same model without reuse.

    The model is a random Qwen2, with and without a closing token. The inputs are texts of 24 tokens, each
    followed by 1 to 8 copies of a token. With --quick, the model is small, and missed bars do not fail the
    command.
    """
    if quick:
        layers = 2
        width = 128
        token_count = 20
    else:
        layers = 12
        width = 384
        token_count = 100
    results = Results("causal_reuse")
    carriers = np.random.default_rng(0).integers(1, len(WORDS), (4, 24)).tolist()
    contents = carriers_with_copies(carriers, token_count)
    for has_closing_token in (False, True):
        tokenizer = word_tokenizer(WORDS, closing=has_closing_token)
        model = pooled(random_decoder("Qwen2", layers, width, len(tokenizer)), tokenizer, "lasttoken")
        title = f"{layers} layers, {width} wide, {'with' if has_closing_token else 'without'} EOS"
        seconds = {}
        vectors = {}
        for way, limits in (("reuse", REUSE), ("plain", None)):
            encoder = SentenceTransformerEncoder(model, title, EncoderSpec(model=title), reuse=limits)
            encoder.encode_ids(contents[:16])  # builds kernels, and tests whether reuse is exact
            started = time.perf_counter()
            vectors[way] = units(encoder.encode_ids(contents))
            seconds[way] = time.perf_counter() - started
        times_faster = seconds["plain"] / seconds["reuse"]
        difference = np.abs(vectors["reuse"] - vectors["plain"]).max()
        ours = f"{times_faster:.1f} times ({seconds['plain']:.1f} s to {seconds['reuse']:.1f} s)"
        ours += f", differ by {difference:.1e}"
        results.check(
            f"{title}: {len(contents):,} inputs",
            "8 times fewer seconds, equal to 1e-4",
            ours,
            times_faster >= 8 and difference <= 1e-4,
            seconds=seconds,
        )
    results.finish(strict=not quick)


def prepending_scores(
    model: str, dev: Path, test: Path, pairs: int = 300, name: str = "token_prepending_scores"
) -> None:
    """Measure what token prepending gains on a model with real weights.

    The settings are those that `stickytoken tune` chooses on so many random --pairs of DEV, and the scores
    are Spearman correlations on TEST. The intervals are paired: each bootstrap sample has the same pairs of
    TEST for all settings. The results are written to NAME.json.
    """
    torch.set_num_threads(1)
    dev_task = sampled_task(read_similarity(dev), pairs)
    encoder: Any = load_encoder(model, device="cpu", prompt=Prompting("prompteol"))
    tuning = tune(encoder, dev_task)
    results = Results(name, tried=[asdict(tried) for tried in tuning.tried])
    readings = {
        "prompt": reading_of(encoder, tuning.plain),
        "prompt + TP": reading_of(encoder, tuning.best),
    }
    check_test_scores(results, encoder, readings, read_similarity(test))
    results.finish()


def sampled_task(task: SimilarityTask, pairs: int) -> SimilarityTask:
    """Return a task of so many random pairs of a task, or of all if it has fewer."""
    count = min(pairs, task.units)
    indices = np.random.default_rng(0).choice(task.units, count, replace=False).tolist()
    return SimilarityTask(
        task.name,
        tuple(task.first[index] for index in indices),
        tuple(task.second[index] for index in indices),
        tuple(task.gold[index] for index in indices),
    )


def check_test_scores(
    results: Results, encoder: Any, readings: Mapping[str, Reading], task: SimilarityTask
) -> None:
    """Record the score of each reading on a task, and its gain over the first reading, with intervals.

    Args:
        results: where the checks are recorded.
        encoder: the language model, with any reading.
        readings: readings of the model, keyed by title. The first one is the prompt alone.
        task: the test pairs.
    """
    cosines = []
    for reading in readings.values():
        vectors = units(encoder.reread(reading).encode([*task.first, *task.second]))
        first = vectors[: task.units]
        second = vectors[task.units :]
        cosines.append((first * second).sum(axis=1))
    samples = bootstrap_samples(task.units, SAMPLES, (0,))
    outcomes = np.array(cosines)[:, :, None]
    scores = 100 * resampled(partial(task.scores, "spearman", outcomes), samples)
    for index, (title, reading) in enumerate(readings.items()):
        is_prompt_alone = index == 0
        # The first contrast is the score of the reading, the second its difference from the prompt alone.
        weights = np.zeros((2, len(readings)))
        weights[:, index] = 1
        weights[1, 0] -= 1
        score, gain = contrast_intervals(scores, weights, 0.95)
        ours = f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"
        if not is_prompt_alone:
            ours += f"; {gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}] beside the prompt alone"
        bar = f"none; {task.units:,} test pairs" if is_prompt_alone else "none"
        results.check(f"{title}: {in_words(reading)}", bar, ours, reading=asdict(reading))


def reading_of(encoder: CausalPromptEncoder, tried: Tried) -> Reading:
    """Return the encoder's reading with the settings that were tried."""
    span = None
    if tried.start is not None and tried.exit is not None:
        span = TokenPrepending(tried.start, tried.exit)
    return replace(encoder.reading, prepending=span, layer=tried.layer)


def in_words(reading: Reading) -> str:
    """Return the settings of a reading in words, without its prompt."""
    span = reading.prepending
    phrases = [f"layer {reading.layer}"]
    if span is not None:
        phrases.append(f"start {span.start}, exit {span.exit}")
    return "; ".join(phrases)


if __name__ == "__main__":
    commands(__doc__, prepending, prepending_scores, reuse)
