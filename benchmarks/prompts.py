"""Language models: what prompts, token prepending, contrast and reuse cost, and what they score.

Costs are CPU seconds of one thread: the least of runs that take turns. --quick takes a small model and few
sentences, and no bars.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import Results, by_turns, commands, units
from models import pooled, random_decoder, word_tokenizer
from stickytoken.bootstrap import bootstrap_samples, contrast_intervals, resampled
from stickytoken.data.metrics import SimilarityTask
from stickytoken.encoders import Prompting, load_encoder
from stickytoken.encoders.compute.prefixes import REUSE
from stickytoken.encoders.prompted import (
    PLACEHOLDER,
    PROMPTS,
    SENTENCE,
    Contrast,
    TokenPrepending,
    find_prompt,
)
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.evaluation import Tried, Tuning, read_similarity, tune, tune_contrast
from stickytoken.settings.prompting import ContrastRule

WORDS = [f"w{place}" for place in range(2000)]
SENTENCE_WORDS = 11  # the full stop is the twelfth token
LONGER_WORDS = 24  # of the sentences that token prepending is timed on
EARLY = 27 / 32  # share of the layers behind which the paper reads early
CONTRAST_LAYER = 4
SAMPLES = 2000


class Bench:
    """Encoders on one random model, over sentences of twelve tokens; their costs become checks."""

    def __init__(
        self, results: Results, family: str, quick: bool, sentences: int = 192, rounds: int = 5
    ) -> None:
        torch.set_num_threads(1)
        self.results = results
        self.layers, width = (3, 64) if quick else (12, 384)
        sentences, self.rounds = (64, 1) if quick else (sentences, rounds)
        templates = [template for prompt in PROMPTS.values() for template in prompt.templates]
        text = " ".join(templates).replace(PLACEHOLDER, "").replace(SENTENCE, ' ." ')
        self.tokenizer = word_tokenizer([*WORDS, *re.findall(r"\w+|[^\w\s]+", text), '"', ".", '."'])
        self.model = random_decoder(family, self.layers, width, len(self.tokenizer))
        # The span of the paper at this depth.
        self.span = TokenPrepending(1, max(2, round(7 * self.layers / 32)))
        self.sentences, self.longer = (
            [" ".join(row) for row in np.random.default_rng(0).choice(WORDS, (sentences, words)).tolist()]
            for words in (SENTENCE_WORDS, LONGER_WORDS)
        )

    def encoder(
        self,
        prompt: str,
        span: TokenPrepending | None = None,
        layer: int = -1,
        contrast: Contrast | None = None,
        **options: Any,
    ) -> CausalPromptEncoder:
        reading = Reading(find_prompt(prompt), span, layer, contrast)
        return CausalPromptEncoder(self.model, self.tokenizer, "random", reading, **options)

    def least(self, *runs: Callable[[], object]) -> list[float]:
        """The least CPU time of each, after a round that counts for nothing."""
        ways = {str(place): run for place, run in enumerate(runs)}
        found = by_turns(ways, self.rounds, time.process_time, warm=True)
        return [min(seconds) for seconds in found.values()]

    def ratio(self, name: str, times: float, most: float) -> None:
        self.results.check(name, f"at most {most} times", f"{times:.2f} times", times <= most)

    def prepending(self) -> None:
        """Token prepending in full and with early exit, against the plain prompt behind the last layer."""
        early = round(EARLY * self.layers)
        encoders = [self.encoder("prompteol", *given) for given in ((), (self.span,), (self.span, early))]
        vanilla, full, short = self.least(*(partial(own.encode, self.longer) for own in encoders))
        self.ratio("token prepending, same layer", full / vanilla, 1.05)
        self.ratio(f"token prepending, read after layer {early} of {self.layers}", short / vanilla, 0.9)

    def plainly(self, prompt: str) -> None:
        """Run the same prompts as transformers alone would: padded batches of 16, all layers."""
        pieces = PROMPTS[prompt].pieces(PROMPTS[prompt].templates[0], prepending=False)
        texts = [f"{pieces[0]}{sentence}.{pieces[1]}" for sentence in self.sentences]
        with torch.inference_mode():
            for start in range(0, len(texts), 16):
                ids = torch.tensor(self.tokenizer(texts[start : start + 16])["input_ids"])
                self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)

    def reused(self, prompt: str, bar: float) -> None:
        """Plain prompts, their beginning reused: against our own path without it, and transformers alone."""
        plain, reusing = (self.encoder(prompt, reuse=reuse) for reuse in (None, REUSE))
        own, reused = (partial(each.encode, self.sentences) for each in (plain, reusing))
        slow, fast, library = self.least(own, reused, partial(self.plainly, prompt))
        prompts = plain.prompted.prompts[0]
        tokens = prompts.length(SENTENCE_WORDS)
        saved = f"{tokens} tokens, {tokens - prompts.prefix_length} with the beginning reused"
        ours, passed = f"{library / fast:.2f} times", library / fast >= bar
        name = f"{prompt}: transformers alone / ours ({saved})"
        self.results.check(name, f"at least {bar} times", ours, passed)
        most, gain = f"tokens: {tokens / (tokens - prompts.prefix_length):.2f}", f"{slow / fast:.2f} times"
        self.results.check(f"{prompt}: our path without reuse / with it", most, gain)
        self.same(f"{prompt}: difference of reuse", own(), reused())

    def probes(self) -> None:
        """What detection encodes: one to eight copies of a token behind a sentence, as trees."""
        plain, reusing = (self.encoder("prompteol", reuse=reuse) for reuse in (None, REUSE))
        carriers = [text.ids for text in plain.tokenize(self.sentences[:4])]
        contents = copies_behind(carriers, len(self.sentences) // 16)
        own, reused = (partial(each.encode_ids, contents) for each in (plain, reusing))
        slow, fast = self.least(own, reused)
        name = "prompteol, 1 to 8 copies behind a sentence: without reuse / with it"
        self.results.check(name, "", f"{slow / fast:.2f} times")
        self.same("the same: difference of reuse", own(), reused())

    def same(self, name: str, first: Any, second: Any) -> None:
        difference = float(np.abs(first - second).max())
        self.results.check(name, "at most 1e-5", f"{difference:.1e}", difference <= 1e-5)

    def contrast(self) -> None:
        """The prompt with contrast, alone and with token prepending, against the same without."""
        ways = (None, Contrast(min(CONTRAST_LAYER, self.layers - 1)))
        for prompt in ("prompteol", "ke"):
            for name, span in ((prompt, None), (f"{prompt} with token prepending", self.span)):
                pair = [self.encoder(prompt, span, contrast=each) for each in ways]
                plain, own = self.least(*(partial(each.encode, self.sentences) for each in pair))
                self.ratio(f"{name}: encoder", own / plain, 1.5)
        modules = [self.encoder("prompteol", contrast=each).sentence_transformer() for each in ways]
        plain, own = self.least(*(partial(each.encode, self.longer, batch_size=32) for each in modules))
        self.ratio("prompteol: sentence-transformers module", own / plain, 1.5)


def copies_behind(carriers: Sequence[Sequence[int]], tokens: int) -> list[tuple[int, ...]]:
    """1 to 8 copies of each of the first tokens behind every carrier."""
    every = product(range(1, tokens + 1), carriers, range(1, 9))
    return [(*carrier, *(token,) * count) for token, carrier, count in every]


def prepending(quick: bool = False, rounds: int = 5) -> None:
    """What token prepending, early exit and reuse cost, on a random Qwen2; minutes."""
    bench = Bench(Results("token_prepending"), "Qwen2", quick, rounds=rounds)
    bench.prepending()
    bench.reused("prompteol", 1.5)
    bench.reused("ke", 3)
    bench.probes()
    bench.results.finish(strict=not quick)


def contrast(quick: bool = False, sentences: int = 192, rounds: int = 5) -> None:
    """What contrastive prompting costs beside the prompt alone, on a random Llama; a minute."""
    bench = Bench(Results("contrastive_prompting"), "Llama", quick, sentences, rounds)
    bench.contrast()
    bench.results.finish(strict=not quick)


def reuse(quick: bool = False) -> None:
    """Copies behind a carrier on a causal model: common beginnings computed once, against the plain path."""
    layers, width, tokens = (2, 128, 20) if quick else (12, 384, 100)
    results, generator = Results("causal_reuse"), np.random.default_rng(0)
    contents = copies_behind(generator.integers(1, len(WORDS), (4, 24)).tolist(), tokens)
    for closing in (False, True):
        tokenizer = word_tokenizer(WORDS, closing=closing)
        model = pooled(random_decoder("Qwen2", layers, width, len(tokenizer)), tokenizer, "lasttoken")
        title = f"{layers} layers, {width} wide, {'with' if closing else 'without'} EOS"
        seconds, vectors = {}, {}
        for way, limits in (("reuse", REUSE), ("plain", None)):
            encoder = SentenceTransformerEncoder(model, title, reuse=limits)
            encoder.encode_ids(contents[:16])  # loads kernels, tries reuse out
            started = time.perf_counter()
            vectors[way] = units(encoder.encode_ids(contents))
            seconds[way] = time.perf_counter() - started
        times = seconds["plain"] / seconds["reuse"]
        difference = np.abs(vectors["reuse"] - vectors["plain"]).max()
        told = f"{times:.1f} times ({seconds['plain']:.1f} s to {seconds['reuse']:.1f} s)"
        told, passed = f"{told}, differ by {difference:.1e}", times >= 8 and difference <= 1e-4
        what, bar = f"{title}: {len(contents):,} inputs", "8 times fewer seconds, equal to 1e-4"
        results.check(what, bar, told, passed, seconds=seconds)
    results.finish(strict=not quick)


def contrast_scores(
    model: str, dev: Path, test: Path, pairs: int = 300, name: str = "contrastive_prompting_scores"
) -> None:
    """What contrast gains on real weights, with what `stickytoken tune` finds on so many --pairs of DEV.

    Intervals are paired: every way has the same pairs of TEST in each bootstrap sample.
    """
    torch.set_num_threads(1)
    task = read_similarity(dev)
    some = np.random.default_rng(0).choice(task.units, min(pairs, task.units), replace=False).tolist()
    first, second, gold = (tuple(values[k] for k in some) for values in (task.first, task.second, task.gold))
    picked = SimilarityTask(task.name, first, second, gold)
    encoder: Any = load_encoder(model, device="cpu", prompt=Prompting("prompteol"))
    prepended = tune(encoder, picked)
    contrasted = [tune_contrast(encoder, picked, rule=rule) for rule in ContrastRule]
    alone = max(contrasted, key=lambda found: found.best.spearman or 0.0)
    with_prepending = encoder.reread(read_as(encoder, prepended.best))
    both = tune_contrast(with_prepending, picked)
    tunings: list[Tuning] = [prepended, *contrasted, both]
    results = Results(name, tried=[asdict(row) for each in tunings for row in each.tried])
    readings = {
        "prompt": read_as(encoder, prepended.plain),
        "prompt + TP": read_as(encoder, prepended.best),
        "prompt + CP": read_as(encoder, alone.best),
        "prompt + TP + CP": read_as(encoder, both.best),
    }
    tested = read_similarity(test)
    cosines = []
    for reading in readings.values():
        vectors = units(encoder.reread(reading).encode([*tested.first, *tested.second]))
        cosines.append((vectors[: tested.units] * vectors[tested.units :]).sum(axis=1))
    samples = bootstrap_samples(tested.units, SAMPLES, (0,))
    drawn = 100 * resampled(partial(tested.scores, "spearman", np.array(cosines)[:, :, None]), samples)
    for place, (title, reading) in enumerate(readings.items()):
        weights = np.zeros((2, len(readings)))
        weights[:, place] = 1
        weights[1, 0] -= 1
        score, gain = contrast_intervals(drawn, weights, 0.95)
        told = f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"
        if place:
            told += f"; {gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}] beside the prompt alone"
        bar = "none" if place else f"none; {tested.units:,} test pairs"
        results.check(f"{title}: {described(reading)}", bar, told, reading=asdict(reading))
    results.finish()


def read_as(encoder: CausalPromptEncoder, tried: Tried) -> Reading:
    """The reading with these settings."""
    span = None if tried.start is None or tried.exit is None else TokenPrepending(tried.start, tried.exit)
    contrast = None
    if tried.contrast_layer is not None and tried.contrast_rule is not None:
        rule = ContrastRule(tried.contrast_rule)
        contrast = Contrast(tried.contrast_layer, tried.contrast_strength, rule)
    return replace(encoder.reading, prepending=span, contrast=contrast, layer=tried.layer)


def described(reading: Reading) -> str:
    span, contrast = reading.prepending, reading.contrast
    parts = [f"layer {reading.layer}"]
    if span is not None:
        parts.append(f"start {span.start}, exit {span.exit}")
    if contrast is not None:
        strength = "" if contrast.strength is None else f", strength {contrast.strength:g}"
        parts.append(f"contrast in layer {contrast.layer}, {contrast.rule}{strength}")
    return "; ".join(parts)


if __name__ == "__main__":
    commands(__doc__, prepending, contrast, contrast_scores, reuse)
