"""Language models: what prompts, token prepending, contrast and reuse cost, and what they score.

python benchmarks/prompts.py prepending        # costs, a random 12-layer Qwen2; minutes
python benchmarks/prompts.py prepending-scores MODEL TASKS    # the paper's table, of real weights
python benchmarks/prompts.py contrast          # costs, a random 12-layer Llama; a minute
python benchmarks/prompts.py contrast-scores MODEL dev.jsonl test.jsonl
python benchmarks/prompts.py reuse             # common beginnings computed once; two minutes

Costs are CPU seconds of one thread: the least of runs that take turns. --quick takes a small model and few
sentences, and no bars.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from bench import Check, by_turns, check, commands, finish, units, write
from stickytoken.data.metrics import SimilarityTask
from stickytoken.encoders import Prompting, load_encoder
from stickytoken.encoders.compute.prefixes import REUSE, ReuseLimits
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layers import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import (
    PLACEHOLDER,
    PROMPTS,
    SENTENCE,
    Contrast,
    ContrastRule,
    find_prompt,
)
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import StickyTokenError
from stickytoken.evaluation import Score, Tried, compare, layers_scored, read_similarity
from stickytoken.impacts.statistics import bootstrap_samples, contrast_intervals, resampled

WORDS, SENTENCE_WORDS = 2000, 11  # the full stop is the twelfth token
LONGER_WORDS = 24  # of the sentences that token prepending is timed on
EARLY = 27 / 32  # share of the layers behind which the paper reads early
TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR")
# Spearman x 100, mean over the seven sets (Fu et al., ACL 2025, tables 1, 2): plain, with token prepending.
PUBLISHED = {
    "Llama-2-7b prompteol": (70.03, 77.19),
    "Llama-2-7b metaeol": (75.96, 77.91),
    "Llama-2-7b cot": (76.86, 77.54),
    "Llama-2-7b ke": (77.14, 77.54),
    "Llama-2-13b cot": (73.34, 74.62),
    "Llama-3-8b cot": (76.09, 76.78),
    "Qwen2-7B cot": (72.94, 75.11),
    "gemma-2-9b cot": (77.02, 77.52),
}


def word_tokenizer(words: Sequence[str], *, closing: bool = False) -> Any:
    """A tokenizer that reads w0, w1, ... and further words as a token each; with closing, and adds EOS."""
    entries = dict.fromkeys(["<eos>", *(f"w{place}" for place in range(WORDS)), *words])
    vocabulary = {entry: place for place, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if closing:
        tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 0)])
    wrapped: Any = transformers.PreTrainedTokenizerFast
    return wrapped(tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>")


def random_decoder(family: str, layers: int, width: int, entries: int) -> Any:
    """A Qwen2 or Llama with random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=entries,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
    )
    return getattr(transformers, f"{family}Model")(config).eval()


class Bench:
    """Encoders on one random model, over sentences of twelve tokens."""

    def __init__(self, family: str, layers: int, width: int, sentences: int, rounds: int) -> None:
        torch.set_num_threads(1)
        templates = [template for prompt in PROMPTS.values() for template in prompt.templates]
        text = " ".join(templates).replace(PLACEHOLDER, "").replace(SENTENCE, ' ." ')
        self.tokenizer = word_tokenizer([*re.findall(r"\w+|[^\w\s]+", text), '"', ".", '."'])
        self.model = random_decoder(family, layers, width, len(self.tokenizer))
        self.layers, self.rounds = layers, rounds
        # The span of the paper at this depth.
        self.span = TokenPrepending(1, max(2, round(7 * layers / 32)))
        self.sentences, self.longer = (
            [
                " ".join(f"w{number}" for number in row)
                for row in np.random.default_rng(0).integers(0, WORDS, (sentences, words)).tolist()
            ]
            for words in (SENTENCE_WORDS, LONGER_WORDS)
        )

    def encoder(
        self,
        prompt: str,
        span: TokenPrepending | None = None,
        layer: int = -1,
        contrast: Contrast | None = None,
        reuse: ReuseLimits | None = None,
    ) -> CausalPromptEncoder:
        reading = Reading(find_prompt(prompt), span, layer, contrast)
        return CausalPromptEncoder(self.model, self.tokenizer, "random", reading, reuse=reuse)

    def least(self, *runs: Callable[[], object]) -> list[float]:
        """The least CPU time of each, after a round that counts for nothing."""
        ways = {str(place): run for place, run in enumerate(runs)}
        found = by_turns(ways, self.rounds, time.process_time, warm=True)
        return [min(seconds) for seconds in found.values()]

    def plainly(self, prompt: str) -> Callable[[], object]:
        """The same prompts as transformers alone would run them: padded batches of 16, all layers."""
        pieces = PROMPTS[prompt].pieces(PROMPTS[prompt].templates[0], prepending=False)
        texts = [f"{pieces[0]}{sentence}.{pieces[1]}" for sentence in self.sentences]

        def run() -> None:
            with torch.inference_mode():
                for start in range(0, len(texts), 16):
                    ids = torch.tensor(self.tokenizer(texts[start : start + 16])["input_ids"])
                    self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)

        return run

    def against_vanilla(self) -> list[Check]:
        """Token prepending in full and with early exit, against the plain prompt behind the last layer."""
        early = round(EARLY * self.layers)
        encoders = [self.encoder("prompteol", *given) for given in ((), (self.span,), (self.span, early))]
        vanilla, full, short = self.least(*(partial(own.encode, self.longer) for own in encoders))
        name = f"token prepending, read after layer {early} of {self.layers}"
        return [
            ratio("token prepending, same layer", full / vanilla, 1.05),
            ratio(name, short / vanilla, 0.9),
        ]

    def with_and_without(self, prompt: str) -> list[CausalPromptEncoder]:
        return [self.encoder(prompt, reuse=reuse) for reuse in (None, REUSE)]

    def reuse(self, prompt: str, bar: float) -> list[Check]:
        """Plain prompts, their beginning reused: against our own path without it, and transformers alone."""
        plain, reusing = self.with_and_without(prompt)
        difference = float(np.abs(plain.encode(self.sentences) - reusing.encode(self.sentences)).max())
        own, reused = (partial(each.encode, self.sentences) for each in (plain, reusing))
        slow, fast, library = self.least(own, reused, self.plainly(prompt))
        prompts = plain.prompted.prompts[0]
        tokens = prompts.length(SENTENCE_WORDS)
        saved = f"{tokens} tokens, {tokens - prompts.fixed} with the beginning reused"
        times, gain = library / fast, slow / fast
        bar_of_ours = f"tokens: {tokens / (tokens - prompts.fixed):.2f}"
        return [
            check(
                f"{prompt}: transformers alone / ours ({saved})",
                f"at least {bar} times",
                f"{times:.2f} times",
                times >= bar,
                ratio=times,
            ),
            check(
                f"{prompt}: our path without reuse / with it", bar_of_ours, f"{gain:.2f} times", ratio=gain
            ),
            same(f"{prompt}: difference of reuse", difference),
        ]

    def probes(self) -> list[Check]:
        """What detection encodes: one to eight copies of a token behind a sentence, as trees."""
        plain, reusing = self.with_and_without("prompteol")
        carriers = [text.ids for text in plain.tokenize(self.sentences[:4])]
        contents = copies_behind(carriers, len(self.sentences) // 16)
        difference = float(np.abs(plain.encode_ids(contents) - reusing.encode_ids(contents)).max())
        own, reused = self.least(*(partial(each.encode_ids, contents) for each in (plain, reusing)))
        name = "prompteol, 1 to 8 copies behind a sentence: without reuse / with it"
        return [
            check(name, "", f"{own / reused:.2f} times", ratio=own / reused),
            same("the same: difference of reuse", difference),
        ]

    def contrast(self) -> list[Check]:
        """The prompt with contrast, alone and with token prepending, against the same without."""
        contrast, checks = Contrast(min(LAYER, self.layers - 1)), []
        for prompt in ("prompteol", "ke"):
            for name, span in ((prompt, None), (f"{prompt} with token prepending", self.span)):
                pair = [self.encoder(prompt, span, contrast=each) for each in (None, contrast)]
                plain, own = self.least(*(partial(each.encode, self.sentences) for each in pair))
                checks.append(ratio(f"{name}: encoder", own / plain, 1.5))
        modules = [
            self.encoder("prompteol", contrast=each).sentence_transformer() for each in (None, contrast)
        ]
        plain, own = self.least(*(partial(each.encode, self.longer, batch_size=32) for each in modules))
        return [*checks, ratio("prompteol: sentence-transformers module", own / plain, 1.5)]


def ratio(name: str, times: float, most: float) -> Check:
    return check(name, f"at most {most} times", f"{times:.2f} times", times <= most, ratio=times)


def same(name: str, difference: float) -> Check:
    return check(name, "at most 1e-5", f"{difference:.1e}", difference <= 1e-5)


def copies_behind(carriers: Sequence[Sequence[int]], tokens: int) -> list[tuple[int, ...]]:
    """1 to 8 copies of each of the first tokens behind every carrier."""
    return [
        (*carrier, *(token,) * count)
        for token in range(1, tokens + 1)
        for carrier in carriers
        for count in range(1, 9)
    ]


def prepending(quick: bool = False, rounds: int = 5, name: str = "token_prepending") -> None:
    """What token prepending, early exit and reuse cost."""
    bench = Bench("Qwen2", 2, 64, 64, 1) if quick else Bench("Qwen2", 12, 384, 192, rounds)
    checks = [
        *bench.against_vanilla(),
        *bench.reuse("prompteol", 1.5),
        *bench.reuse("ke", 3),
        *bench.probes(),
    ]
    finish(checks, name, strict=not quick)


def contrast(
    quick: bool = False, sentences: int = 192, rounds: int = 5, name: str = "contrastive_prompting"
) -> None:
    """What contrastive prompting costs beside the prompt alone."""
    bench = Bench("Llama", 3, 64, 64, 1) if quick else Bench("Llama", 12, 384, sentences, rounds)
    finish(bench.contrast(), name, strict=not quick)


def reuse(quick: bool = False, name: str = "causal_reuse") -> None:
    """Copies behind a carrier on a causal model: common beginnings computed once, against the plain path."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    layers, width, tokens = (2, 128, 20) if quick else (12, 384, 100)
    generator, checks = np.random.default_rng(0), []
    contents = copies_behind(generator.integers(1, WORDS, (4, 24)).tolist(), tokens)
    for closing in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = word_tokenizer([], closing=closing)
            tokenizer.save_pretrained(folder)
            random_decoder("Qwen2", layers, width, len(tokenizer)).save_pretrained(folder)
            module = Transformer(folder)
            pooling = Pooling(module.get_embedding_dimension(), "lasttoken")
            model = SentenceTransformer(modules=[module, pooling])
        title = f"{layers} layers, {width} wide, {'with' if closing else 'without'} EOS"
        seconds, vectors = {}, {}
        for way, limits in (("reuse", REUSE), ("plain", None)):
            encoder = SentenceTransformerEncoder(model, title, reuse=limits)
            encoder.encode_ids(contents[:16])  # loads kernels, tries reuse out
            started = time.perf_counter()
            vectors[way] = units(encoder.encode_ids(contents))
            seconds[way] = time.perf_counter() - started
        times, difference = (
            seconds["plain"] / seconds["reuse"],
            np.abs(vectors["reuse"] - vectors["plain"]).max(),
        )
        told = f"{times:.1f} times ({seconds['plain']:.1f} s to {seconds['reuse']:.1f} s)"
        checks.append(
            check(
                f"{title}: {len(contents):,} inputs",
                "8 times fewer seconds, equal to 1e-4",
                f"{told}, differ by {difference:.1e}",
                times >= 8 and difference <= 1e-4,
                seconds=seconds,
            )
        )
    finish(checks, name, strict=not quick)


def prepending_scores(
    model: str,
    tasks: Path,
    prompt: list[str] | None = None,
    device: str | None = None,
    name: str = "token_prepending_scores",
) -> None:
    """The paper's table for one model: every set that is there, plain and prepended at the same layer.

    TASKS is a folder with STS12.jsonl ... SICKR.jsonl: sentence1, sentence2, score. Times are shares of the
    first row's, on the sets that both ran. What cannot be run is said, and the rest runs.
    """
    checks = []
    first: dict[str, float] = {}
    for each in prompt or ("prompteol", "metaeol", "cot", "ke"):
        rows, missing = scored_sets(model, tasks, each, device)
        not_run = ", ".join(f"{task} ({reason})" for task, reason in missing.items()) or "none"
        known = (own for title, own in PUBLISHED.items() if is_published(title, model, each))
        for (encoding, layer), found in rows.items():
            seconds = {task: row.seconds for task, row in found.items()}
            first = first or seconds
            values = [row.scores["spearman"] for row in found.values()]
            mean = (
                "-" if None in values else f"{np.mean([value for value in values if value is not None]):.2f}"
            )
            shared = [task for task in found if task in first]
            times = sum(seconds[task] for task in shared) / (sum(first[task] for task in shared) or 1.0)
            checks.append(
                check(
                    f"{each}, {encoding}, layer {layer}",
                    f"published {published}" if (published := next(known, None)) else "nothing published",
                    f"{mean} over {len(values)} sets, {times:.2f} times; not run: {not_run}",
                    spearman=dict(zip(found, values, strict=True)),
                    seconds=seconds,
                    times=times,
                    missing=missing,
                )
            )
        if not rows:
            checks.append(check(each, "", f"not run: {not_run}", missing=missing))
    finish(checks, name, device or "cpu")


def is_published(title: str, model: str, prompt: str) -> bool:
    family, _, own = title.partition(" ")
    return own == prompt and family.lower() in Path(model).name.lower()


def scored_sets(
    model: str, folder: Path, prompt: str, device: str | None
) -> tuple[dict[tuple[str, int | None], dict[str, Score]], dict[str, str]]:
    """Scores by encoding and layer and then by set, and why sets are not among them."""
    rows: dict[tuple[str, int | None], dict[str, Score]] = {}
    missing: dict[str, str] = {}
    encoder = load_encoder(
        model, device=device, prompt=Prompting(prompt, token_prepending=not find_prompt(prompt).echoes)
    )
    encoder.encode(["weights are packed before a time is taken"])
    for task in TASKS:
        path = folder / f"{task}.jsonl"
        try:
            found = compare(encoder, read_similarity(path)).scores if path.is_file() else []
        except StickyTokenError as error:
            found, missing[task] = [], str(error)
        if not path.is_file():
            missing[task] = "no file"
        for row in found:
            rows.setdefault((row.encoding, row.layer), {})[task] = row
    return rows, missing


LAYER = 4
OTHER_STRENGTH = 2.0
CHUNK, SAMPLES = 50, 2000
PLAIN, PREPENDING, CONTRAST, BOTH = "prompt", "prompt + TP", "prompt + CP", "prompt + TP + CP"


def contrast_scores(
    model: str,
    dev: Path,
    test: Path,
    pairs: int = 300,
    exits: str = "2,4,6,9,12",
    contrast_layers: str = "1,2,3,4,6,8",
    minutes: float = 60,
    name: str = "contrastive_prompting_scores",
) -> None:
    """What contrast gains on real weights.

    Layers are chosen on so many --pairs of the development set, one setting at a time, among --exits of token
    prepending and --contrast-layers; then test pairs in random order are encoded in every way, for so many
    --minutes. Intervals are paired: every way has the same pairs in each bootstrap sample.
    """
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    tuning, tested = read_similarity(dev), read_similarity(test)
    loaded: Any = load_encoder(model, device="cpu", prompt=Prompting("prompteol"))
    picked = sample(tuning, generator.choice(tuning.units, pairs, replace=False))
    stops, places = ([int(each) for each in text.split(",")] for text in (exits, contrast_layers))
    readings, tried = chosen(loaded, picked, stops, places)
    encoders = [loaded.reread(reading) for reading in readings.values()]
    more: dict[str, Any] = {"dev_pairs": pairs, "tried": [asdict(row) for row in tried]}
    checks: list[Check] = []
    order, found, done, started = generator.permutation(tested.units), [], 0, time.monotonic()
    while done < tested.units and (not done or time.monotonic() - started < 60 * minutes):
        part = sample(tested, order[done : done + CHUNK])
        vectors = [units(own.encode([*part.first, *part.second])) for own in encoders]
        found.append(np.stack([(own[: part.units] * own[part.units :]).sum(1) for own in vectors]))
        done += part.units
        cosines = np.concatenate(found, axis=1)
        checks = table(readings, sample(tested, order[:done]), cosines, tested.units)
        # A run that is cut off leaves the result on the pairs so far.
        write(checks, name, **more, test_pairs=done)
        print(f"test: {done} of {tested.units} pairs", file=sys.stderr, flush=True)
    finish(checks, name, **more, test_pairs=done)


def sample(task: SimilarityTask, places: NDArray[np.intp]) -> SimilarityTask:
    """Some pairs of a task."""
    pick = places.tolist()
    first, second, gold = ([values[k] for k in pick] for values in (task.first, task.second, task.gold))
    return SimilarityTask(task.name, tuple(first), tuple(second), tuple(gold))


def chosen(
    encoder: CausalPromptEncoder, task: SimilarityTask, exits: Sequence[int], layers: Sequence[int]
) -> tuple[dict[str, Reading], list[Tried]]:
    """The best reading of each kind on the development set, and all that were tried."""
    tried: list[Tried] = []

    def best(*settings: tuple[TokenPrepending | None, Contrast | None]) -> Reading:
        scored = []
        for span, contrast in settings:
            rows = layers_scored(encoder, task, span, contrast)
            tried.extend(rows)
            scored += [(row.spearman or 0.0, -row.layer, span, contrast) for row in rows]
            print(f"dev: {max(rows, key=lambda row: row.spearman or 0.0)}", file=sys.stderr, flush=True)
        _, layer, span, contrast = max(scored, key=lambda each: each[:2])
        return replace(encoder.reading, prepending=span, contrast=contrast, layer=-layer)

    contrasts = [Contrast(layer) for layer in layers if layer < encoder.layers - 1]
    plain = best((None, None))
    prepending = best(*((TokenPrepending(1, stop), None) for stop in exits if stop < encoder.layers))
    alone = best(*((None, each) for each in contrasts))
    place = LAYER if alone.contrast is None else alone.contrast.layer
    others = Contrast(place, OTHER_STRENGTH), Contrast(place, None, ContrastRule.SUB_HEAD_NORM)
    by_rule = best(*((None, each) for each in others))
    alone = _better(alone, by_rule, tried)
    both = best(*((prepending.prepending, each) for each in contrasts))
    return {PLAIN: plain, PREPENDING: prepending, CONTRAST: alone, BOTH: both}, tried


def _better(one: Reading, other: Reading, tried: Sequence[Tried]) -> Reading:
    def score(reading: Reading) -> float:
        contrast = reading.contrast
        settings = () if contrast is None else (contrast.layer, contrast.strength, str(contrast.rule))
        return max(
            row.spearman or 0.0
            for row in tried
            if (row.contrast_layer, row.contrast_strength, row.contrast_rule) == settings
            and row.layer == reading.layer
            and row.start is None
        )

    return other if score(other) > score(one) else one


def table(
    readings: dict[str, Reading], pairs: SimilarityTask, cosines: NDArray[np.float64], whole: int
) -> list[Check]:
    """One row per way of encoding; cosines of shape (ways, pairs)."""
    samples = bootstrap_samples(pairs.units, SAMPLES, (0,))
    drawn = 100 * resampled(partial(pairs.scores, "spearman", cosines[:, :, None]), samples)
    checks = []
    for place, (name, reading) in enumerate(readings.items()):
        weights = np.zeros((2, len(readings)))
        weights[:, place] = 1
        weights[1, 0] -= 1
        score, gain = contrast_intervals(drawn, weights, 0.95)
        told = f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"
        if place:
            told += f"; {gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}] beside the prompt alone"
        bar = "none" if place else f"none; {pairs.units:,} of {whole:,} test pairs"
        detail = {"score": score._asdict(), "gain": gain._asdict()}
        checks.append(check(f"{name}: {_told(reading)}", bar, told, reading=asdict(reading), **detail))
    return checks


def _told(reading: Reading) -> str:
    span, contrast = reading.prepending, reading.contrast
    parts = [f"layer {reading.layer}"]
    if span is not None:
        parts.append(f"start {span.start}, exit {span.exit}")
    if contrast is not None:
        strength = "" if contrast.strength is None else f", strength {contrast.strength:g}"
        parts.append(f"contrast in layer {contrast.layer}, {contrast.rule}{strength}")
    return "; ".join(parts)


if __name__ == "__main__":
    commands(__doc__, prepending, prepending_scores, contrast, contrast_scores, reuse)
