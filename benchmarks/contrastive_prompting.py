"""Contrastive prompting: what it costs beside the prompt alone, and what it gains on real weights.

python benchmarks/contrastive_prompting.py                       # costs, a random 12-layer Llama; a minute
python benchmarks/contrastive_prompting.py --quick               # seconds, on a small model; no bars
python benchmarks/contrastive_prompting.py --model FOLDER --dev dev.jsonl --test test.jsonl --name NAME

Costs are CPU seconds of one thread: the least of runs that take turns. Scores: layers are chosen on a sample
of the development set, one setting at a time; then test pairs in random order are encoded in every way, for
as many minutes as given. Intervals are paired: every way has the same pairs in each bootstrap sample.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from checks import Check, show, write
from stickytoken.encoders import Prompting, load_encoder
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import Contrast, ContrastRule, find_prompt
from stickytoken.errors import StickyTokenError
from stickytoken.evaluation import Tried, layers_scored, read_similarity
from stickytoken.impacts.statistics import bootstrap_samples, contrast_intervals, resampled
from stickytoken.tasks.files import SimilarityTask
from token_prepending import Bench, cpu_seconds

LAYER, BAR = 4, 1.5
EXITS = (2, 4, 6, 9, 12)
CONTRAST_LAYERS = (1, 2, 3, 4, 6, 8)
OTHER_STRENGTH = 2.0
CHUNK, SAMPLES = 50, 2000
PLAIN, PREPENDING, CONTRAST, BOTH = "prompt", "prompt + TP", "prompt + CP", "prompt + TP + CP"


class Costs(Bench):
    """Encoders on a random Llama, over sentences of twelve tokens."""

    def __init__(self, layers: int, width: int, sentences: int, rounds: int) -> None:
        super().__init__(layers, width, sentences, rounds)
        qwen = self.model.config
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=qwen.vocab_size,
            hidden_size=width,
            intermediate_size=qwen.intermediate_size,
            num_hidden_layers=layers,
            num_attention_heads=qwen.num_attention_heads,
            num_key_value_heads=qwen.num_attention_heads,
        )
        model: Any = transformers.LlamaModel(config)
        self.model = model.eval()

    def contrast(self) -> list[Check]:
        """The prompt with contrast, alone and with token prepending, against the same without."""
        layer, checks = min(LAYER, self.layers - 1), []
        for prompt in ("prompteol", "ke"):
            span = TokenPrepending(1, max(2, round(7 * self.layers / 32)))
            for name, prepending in ((prompt, None), (f"{prompt} with token prepending", span)):
                ratio = self._ratio(Reading(find_prompt(prompt), prepending, -1), layer)
                checks.append(_ratio_check(f"{name}: encoder", ratio))
        modules = [
            self._module(Reading(find_prompt("prompteol"), None, -1, contrast))
            for contrast in (None, Contrast(layer))
        ]
        runs = [partial(each.encode, self.longer, batch_size=32) for each in modules]
        plain, own = cpu_seconds(*runs, rounds=self.rounds)
        return [*checks, _ratio_check("prompteol: sentence-transformers module", own / plain)]

    def _ratio(self, reading: Reading, layer: int) -> float:
        encoders = [
            CausalPromptEncoder(self.model, self.tokenizer, "random", replace(reading, contrast=contrast))
            for contrast in (None, Contrast(layer))
        ]
        plain, own = cpu_seconds(
            *(partial(each.encode, self.sentences) for each in encoders), rounds=self.rounds
        )
        return own / plain

    def _module(self, reading: Reading) -> SentenceTransformer:
        return CausalPromptEncoder(self.model, self.tokenizer, "random", reading).sentence_transformer()


def _ratio_check(name: str, ratio: float) -> Check:
    return Check(name, f"at most {BAR} times", f"{ratio:.2f} times", ratio <= BAR, {"ratio": ratio})


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


def scores(arguments: argparse.Namespace) -> tuple[list[Check], dict[str, Any]]:
    """Choose on the development set, then score on the test set."""
    generator = np.random.default_rng(0)
    dev, test = read_similarity(arguments.dev), read_similarity(arguments.test)
    loaded: Any = load_encoder(arguments.model, device="cpu", prompt=Prompting("prompteol"))
    picked = sample(dev, generator.choice(dev.units, arguments.pairs, replace=False))
    readings, tried = chosen(loaded, picked, arguments.exits, arguments.contrast_layers)
    encoders = {name: loaded.reread(reading) for name, reading in readings.items()}
    checks: list[Check] = []
    order, found, done = generator.permutation(test.units), [], 0
    more = {"dev_pairs": arguments.pairs, "tried": [asdict(row) for row in tried]}
    started = time.monotonic()
    while done < test.units and (not done or time.monotonic() - started < 60 * arguments.minutes):
        part = sample(test, order[done : done + CHUNK])
        texts = [*part.first, *part.second]
        vectors = [own.encode(texts).astype(np.float64) for own in encoders.values()]
        units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in vectors]
        found.append(np.stack([(own[: part.units] * own[part.units :]).sum(1) for own in units]))
        done += part.units
        cosines = np.concatenate(found, axis=1)
        checks = _table(readings, sample(test, order[:done]), cosines, test.units)
        # A run that is cut off leaves the result on the pairs so far.
        write(checks, arguments.name, "cpu", **more, test_pairs=done)
        print(f"test: {done} of {test.units} pairs", file=sys.stderr, flush=True)
    return checks, {**more, "test_pairs": done}


def _table(
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
        checks.append(
            Check(
                f"{name}: {_told(reading)}",
                f"none; {pairs.units:,} of {whole:,} test pairs" if not place else "none",
                told,
                True,
                {"reading": asdict(reading), "score": score._asdict(), "gain": gain._asdict()},
            )
        )
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and few sentences")
    parser.add_argument("--sentences", type=int, default=192, help="for costs")
    parser.add_argument("--rounds", type=int, default=5, help="runs of which the least counts")
    parser.add_argument("--model", help="folder or name of a language model: scores in place of costs")
    parser.add_argument("--dev", type=Path, help="pairs to choose layers on")
    parser.add_argument("--test", type=Path, help="pairs to score")
    parser.add_argument("--pairs", type=int, default=300, help="pairs of --dev that are used")
    parser.add_argument(
        "--exits", type=int, nargs="+", default=EXITS, help="of token prepending, to choose from"
    )
    parser.add_argument(
        "--contrast-layers", type=int, nargs="+", default=CONTRAST_LAYERS, help="to choose from"
    )
    parser.add_argument("--minutes", type=float, default=60, help="time for the test pairs")
    parser.add_argument("--name", default="contrastive_prompting", help="name of the result file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    more: dict[str, Any] = {}
    if arguments.model:
        if arguments.dev is None or arguments.test is None:
            parser.error("--model needs --dev and --test")
        try:
            checks, more = scores(arguments)
        except StickyTokenError as error:
            parser.error(str(error))
    else:
        checks = (
            Costs(3, 64, 64, 1) if arguments.quick else Costs(12, 384, arguments.sentences, arguments.rounds)
        ).contrast()
    write(checks, arguments.name, "cpu", **more)
    show(checks, arguments.name)
    if not arguments.quick and not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
