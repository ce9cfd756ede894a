"""Prompts on language models: what token prepending, early exit and reuse cost; the paper's table.

python benchmarks/token_prepending.py                            # costs, a random 12-layer Qwen2; minutes
python benchmarks/token_prepending.py --quick                    # seconds, on a small model; no bars
python benchmarks/token_prepending.py --model FOLDER --tasks STS # scores of real weights

Costs are CPU seconds of one thread: the least of runs that take turns. The folder of tasks holds STS12.jsonl,
STSB.jsonl, ... with sentence1, sentence2, score.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from checks import Check, show, write
from stickytoken.encoders import Prompting, load_encoder
from stickytoken.encoders.prefixes import REUSE, ReuseLimits
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import PLACEHOLDER, PROMPTS, SENTENCE, find_prompt
from stickytoken.errors import StickyTokenError
from stickytoken.evaluation import Score, compare, read_similarity

WORDS, SENTENCE_WORDS = 2000, 11  # the full stop is the twelfth token
LONGER_WORDS = 24  # of the sentences that token prepending is timed on
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


def random_model(layers: int, width: int) -> tuple[Any, Any]:
    """A Qwen2 with random weights; words w0, w1, ... and those of the prompts are a token each."""
    templates = [template for prompt in PROMPTS.values() for template in prompt.templates]
    text = " ".join(templates).replace(PLACEHOLDER, "").replace(SENTENCE, ' ." ')
    words = re.findall(r"\w+|[^\w\s]+", text)
    entries = ["<eos>", *(f"w{place}" for place in range(WORDS)), *words, '"', ".", '."']
    vocabulary = {entry: place for place, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped: Any = transformers.PreTrainedTokenizerFast
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
    )
    model: Any = transformers.Qwen2Model(config)
    return model.eval(), wrapped(tokenizer_object=tokenizer, eos_token="<eos>")


def cpu_seconds(*runs: Callable[[], object], rounds: int) -> list[float]:
    """The least CPU time of each, after a round that counts for nothing."""
    best = [float("inf")] * len(runs)
    for turn in range(rounds + 1):
        for place, run in enumerate(runs):
            started = time.process_time()
            run()
            if turn:
                best[place] = min(best[place], time.process_time() - started)
    return best


class Bench:
    """Encoders on one random model, over sentences of twelve tokens."""

    def __init__(self, layers: int, width: int, sentences: int, rounds: int) -> None:
        self.model, self.tokenizer = random_model(layers, width)
        self.layers, self.rounds = layers, rounds
        self.sentences, self.longer = (
            [" ".join(f"w{number}" for number in row) for row in self._drawn(sentences, words)]
            for words in (SENTENCE_WORDS, LONGER_WORDS)
        )

    @staticmethod
    def _drawn(sentences: int, words: int) -> list[list[int]]:
        drawn: list[list[int]] = np.random.default_rng(0).integers(0, WORDS, (sentences, words)).tolist()
        return drawn

    def encoder(
        self, prompt: str, *, prepending: bool, layer: int = -1, reuse: ReuseLimits | None = None
    ) -> CausalPromptEncoder:
        """An encoder with the span of the paper at this depth."""
        span = TokenPrepending(1, max(2, round(7 * self.layers / 32))) if prepending else None
        return CausalPromptEncoder(
            self.model, self.tokenizer, "random", Reading(find_prompt(prompt), span, layer), reuse=reuse
        )

    def plainly(self, prompt: str) -> Callable[[], object]:
        """The same prompts as transformers alone would run them: padded batches of 16, all layers."""
        pieces = PROMPTS[prompt].pieces(PROMPTS[prompt].templates[0], prepending=False)
        texts = [f"{pieces[0]}{sentence}.{pieces[1]}" for sentence in self.sentences]

        def run() -> list[torch.Tensor]:
            found = []
            with torch.inference_mode():
                for start in range(0, len(texts), 16):
                    ids = torch.tensor(self.tokenizer(texts[start : start + 16])["input_ids"])
                    states = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
                    found.append(states.last_hidden_state[:, -1])
            return found

        return run

    def against_vanilla(self) -> list[Check]:
        """Token prepending in full and with early exit, against the plain prompt behind the last layer."""
        early = round(27 * self.layers / 32)
        encoders = [
            self.encoder("prompteol", prepending=False),
            self.encoder("prompteol", prepending=True),
            self.encoder("prompteol", prepending=True, layer=early),
        ]
        vanilla, full, short = cpu_seconds(
            *(partial(own.encode, self.longer) for own in encoders), rounds=self.rounds
        )
        return [
            _check(
                "token prepending, same layer", "at most 1.05 times", full / vanilla, full <= 1.05 * vanilla
            ),
            _check(
                f"token prepending, read after layer {early} of {self.layers}",
                "at most 0.9 times",
                short / vanilla,
                short <= 0.9 * vanilla,
            ),
        ]

    def reuse(self, prompt: str, bar: float) -> list[Check]:
        """Plain prompts, their beginning reused: against our own path without it, and transformers alone."""
        plain, reusing = (self.encoder(prompt, prepending=False, reuse=reuse) for reuse in (None, REUSE))
        difference = float(np.abs(plain.encode(self.sentences) - reusing.encode(self.sentences)).max())
        own, reused, library = cpu_seconds(
            lambda: plain.encode(self.sentences),
            lambda: reusing.encode(self.sentences),
            self.plainly(prompt),
            rounds=self.rounds,
        )
        prompts = plain._prompted.prompts[0]
        tokens = prompts.length(SENTENCE_WORDS)
        saved = f"{tokens} tokens, {tokens - prompts.fixed} with the beginning reused"
        return [
            _check(
                f"{prompt}: transformers alone / ours ({saved})",
                f"at least {bar} times",
                library / reused,
                library >= bar * reused,
            ),
            _check(
                f"{prompt}: our path without reuse / with it",
                f"tokens: {tokens / (tokens - prompts.fixed):.2f}",
                own / reused,
                True,
            ),
            Check(
                f"{prompt}: difference of reuse", "at most 1e-5", f"{difference:.1e}", difference <= 1e-5, {}
            ),
        ]

    def probes(self) -> list[Check]:
        """What detection encodes: one to eight copies of a token behind a sentence, as trees."""
        plain, reusing = (self.encoder("prompteol", prepending=False, reuse=reuse) for reuse in (None, REUSE))
        carriers = [text.ids for text in plain.tokenize(self.sentences[:4])]
        contents = [
            (*carrier, *(token,) * count)
            for token in range(1, 1 + len(self.sentences) // 16)
            for carrier in carriers
            for count in range(1, 9)
        ]
        difference = float(np.abs(plain.encode_ids(contents) - reusing.encode_ids(contents)).max())
        own, reused = cpu_seconds(
            lambda: plain.encode_ids(contents), lambda: reusing.encode_ids(contents), rounds=self.rounds
        )
        return [
            _check(
                "prompteol, 1 to 8 copies behind a sentence: without reuse / with it", "", own / reused, True
            ),
            Check(
                "the same: difference of reuse", "at most 1e-5", f"{difference:.1e}", difference <= 1e-5, {}
            ),
        ]


def _check(name: str, bar: str, ratio: float, passed: bool) -> Check:
    return Check(name, bar, f"{ratio:.2f} times", passed, {"ratio": ratio})


def scores(model: str, folder: Path, prompts: list[str], device: str | None) -> list[Check]:
    """The paper's table for one model: every set that is there, plain and prepended at the same layer.

    Times are shares of the first row's, on the sets that both ran. What cannot be run is said, and the
    rest runs.
    """
    checks = []
    first: dict[str, float] = {}
    for prompt in prompts:
        rows, missing = _rows(model, folder, prompt, device)
        published = next((own for name, own in PUBLISHED.items() if _means(name, model, prompt)), None)
        for (encoding, layer), found in rows.items():
            first = first or {task: row.seconds for task, row in found.items()}
            values = {task: row.scores["spearman"] for task, row in found.items()}
            known = [value for value in values.values() if value is not None]
            mean = f"{np.mean(known):.2f}" if len(known) == len(values) else "-"
            shared = [task for task in found if task in first]
            times = sum(found[task].seconds for task in shared) / (sum(first[task] for task in shared) or 1.0)
            checks.append(
                Check(
                    f"{prompt}, {encoding}, layer {layer}",
                    f"published {published}" if published else "nothing published",
                    f"{mean} over {len(values)} sets, {times:.2f} times; not run: {_told(missing)}",
                    True,
                    {
                        "spearman": values,
                        "seconds": {task: row.seconds for task, row in found.items()},
                        "times": times,
                        "missing": missing,
                    },
                )
            )
        if not rows:
            checks.append(Check(prompt, "", f"not run: {_told(missing)}", True, {"missing": missing}))
    return checks


def _rows(
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


def _told(missing: dict[str, str]) -> str:
    return ", ".join(f"{task} ({reason})" for task, reason in missing.items()) or "none"


def _means(name: str, model: str, prompt: str) -> bool:
    family, _, own = name.partition(" ")
    return own == prompt and family.lower() in Path(model).name.lower()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and few sentences")
    parser.add_argument("--rounds", type=int, default=5, help="runs of which the least counts")
    parser.add_argument("--model", help="folder or name of a language model: scores in place of costs")
    parser.add_argument("--tasks", type=Path, help="folder with STS12.jsonl ... SICKR.jsonl")
    parser.add_argument(
        "--prompts", nargs="+", default=["prompteol", "metaeol", "cot", "ke"], choices=list(PROMPTS)
    )
    parser.add_argument("--device", help="where a model for scores computes")
    parser.add_argument("--name", default="token_prepending", help="name of the result file")
    arguments = parser.parse_args()
    if arguments.model:
        if arguments.tasks is None:
            parser.error("--model needs --tasks")
        try:
            checks = scores(arguments.model, arguments.tasks, arguments.prompts, arguments.device)
        except StickyTokenError as error:
            parser.error(str(error))
    else:
        torch.set_num_threads(1)
        bench = Bench(2, 64, 64, 1) if arguments.quick else Bench(12, 384, 192, arguments.rounds)
        checks = [
            *bench.against_vanilla(),
            *bench.reuse("prompteol", 1.5),
            *bench.reuse("ke", 3),
            *bench.probes(),
        ]
        checks.append(Check("scores of real weights", "", "not run: no --model", True, {}))
    write(checks, arguments.name, arguments.device or "cpu")
    show(checks, arguments.name)
    if not arguments.quick and not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
