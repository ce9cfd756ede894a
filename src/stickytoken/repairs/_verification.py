"""Verify a repaired model: detect again, on other texts and with another seed, and compare the rest."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from stickytoken.data import as_read, tasks, text_kinds
from stickytoken.data.metrics import Outcomes
from stickytoken.encoders.loading.resolution import tokenizer_folder
from stickytoken.impacts.statistics import bootstrap_samples, contrast_intervals, prepare, resampled
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.engine import Progress
from stickytoken.methods import Verdict, base
from stickytoken.repairs import result
from stickytoken.validation import visible

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
    from stickytoken.repairs import Job


# Texts whose vectors and ids are compared.
_TEXTS = 256
_SHOWN, _SHOWN_TEXT = 300, 60
_MINUS = "\N{MINUS SIGN}"


Check: TypeAlias = tuple[bool, str]  # whether it passed, and what was found, in one sentence
# A token, the vocabulary string of the repaired token that it is near, and its verdict in the run.
Neighbour: TypeAlias = tuple[Token, str, str | None]


def as_text(encoder: SentenceTransformerEncoder, tokens: Sequence[Token]) -> base.Tokens:
    """Copies as text: apart, unless more of them are read as the entry when they are joined."""
    found = base.Tokens([], [], [])
    for each in tokens:
        bare = each.text.strip()
        texts = ["the river" + 4 * copy for copy in (each.text, f" {bare}")]
        joined, apart = encoder.tokenizer.encode_many(texts)
        if joined.count(each.id) > apart.count(each.id):
            found.glued.append(each)
        else:
            found.written.append(Token(each.id, bare))
    return found


@dataclass(frozen=True)
class Verification:
    job: Job
    repaired: SentenceTransformerEncoder
    after: base.Recheck  # the repaired model on texts that the run has not used
    tokens: Sequence[result.RepairedTokenRecord]
    neighbours: Sequence[Neighbour]

    def run(self) -> tuple[result.VerificationRecord, list[result.RepairedTokenRecord]]:
        # Copies go in as text where the tokenizer changes, and else as ids.
        sides: tuple[list[Token], list[Token]] = [], []
        for repaired in self.tokens:
            sides[repaired.strategy in result.TOKENIZER].append(Token(repaired.token_id, repaired.text))
        asked = as_text(self.job.encoder, sides[1])._replace(as_ids=sides[0])
        every = asked._replace(as_ids=[*asked.as_ids, *(token for token, _, _ in self.neighbours)])
        judged = self.after.judged(every, self.job.flagged)

        def record(
            side: base.Recheck, lift: float, contraction: float, **verdict: str
        ) -> result.MeasuredRecord:
            deviations = (lift - judged.ordinary_lift) / side.similarity_spread
            return result.MeasuredRecord(lift=lift, deviations=deviations, contraction=contraction, **verdict)

        after = {
            key: record(self.after, judged.lifts[key], contraction, verdict=verdict)
            for key, contraction, verdict in judged.rows[["token_id", "contraction", "verdict"]].iter_rows()
        }
        original = self.job.original.measured(every)  # the model as it was, on the same texts
        before = {
            token_id: record(self.job.original, lift, contraction)
            for token_id, (lift, contraction) in original.items()
        }
        vocabulary = self.after.vocabulary
        neighbours = []
        for each, near, verdict in self.neighbours:
            key, name = each.id, vocabulary.tokens[vocabulary.place(each.id)]
            neighbour = result.NeighbourRecord(
                token_id=key, token=name, near=near, in_run=verdict, before=before[key], after=after[key]
            )
            neighbours.append(neighbour)
        # Curves of the repaired tokens beside the mean of ordinary ones.
        ordinary = base.Tokens(self.after.ordinary((*self.job.flagged, *asked.ids), 8), [], [])
        old, new = self.job.original.curves(asked), self.after.curves(asked)
        lines = zip(*self.after.curves(ordinary).values(), strict=True)
        copies, mean = [0, *self.after.copies], [sum(line) / len(line) for line in lines]
        tokens = []
        for token in self.tokens:
            key = token.token_id
            curve = result.CurveRecord(copies=copies, before=old[key], after=new[key], ordinary=mean)
            measured = {"before": before[key], "after": after[key], "curve": curve}
            tokens.append(token.model_copy(update=measured))
        scores, kept_score = self._scores()
        self.job.progress(Progress("compare", 0, 1))
        # Texts to compare the models on: the bundled kinds of text, and the corpus.
        kinds = as_read(text_kinds(), self.job.encoder.tokenizer)
        texts = list(dict.fromkeys((*kinds.texts, *self.job.corpus.texts)))
        checks = {
            "repaired tokens": _mended({token.token: after[token.token_id] for token in tokens}),
            "neighbours": _neighbours_unharmed(neighbours),
            "other texts": self._other_texts(texts),
            **self._unreachable(texts),
            **self._loads_anywhere(texts),
            "scores": kept_score,
        }
        self.job.progress(Progress("compare", 1, 1, 1))
        verification = result.VerificationRecord(
            ordinary_lift=judged.ordinary_lift,
            similarity_spread=self.after.similarity_spread,
            ordinary_contraction=judged.ordinary_contraction,
            carriers=self.after.carriers,
            anchors=self.after.anchors,
            source=self.job.corpus.source,
            neighbours=neighbours,
            scores=scores,
            checks=[
                result.CheckRecord(name=name, passed=passed, finding=finding)
                for name, (passed, finding) in checks.items()
            ],
        )
        return verification, tokens

    def _other_texts(self, texts: Sequence[str]) -> Check:
        repaired = {token.token_id for token in self.tokens}
        read = zip(texts, self.job.encoder.content_ids(texts), self.repaired.content_ids(texts), strict=True)
        kept = [
            text
            for text, old, new in read
            if old == new and repaired.isdisjoint(old) and self.job.encoder.fits(old)
        ][:_TEXTS]
        before, after = (each.encode(kept) for each in (self.job.encoder, self.repaired))
        same = bool(np.array_equal(before, after))
        largest = float(np.abs(before.astype(np.float64) - after).max(initial=0.0))
        finding = f"the vectors of {len(kept)} texts without a repaired token are "
        finding += "identical" if same else f"not identical: they differ by up to {largest:.2g}"
        return same and bool(kept), finding

    def _unreachable(self, texts: Sequence[str]) -> dict[str, Check]:
        gone = {each.token_id: each for each in self.tokens if each.strategy in result.TOKENIZER}
        if not gone:
            return {}
        every = [*texts, *(text for each in gone.values() for text in _spellings(each.text))]
        for text, found in zip(every, self.repaired.tokenizer.encode_many(every), strict=True):
            hit = next((gone[token_id].token for token_id in found if token_id in gone), None)
            if hit is not None:
                return {
                    "unreachable": (False, f"{visible(text[:_SHOWN_TEXT])!r} still becomes {visible(hit)!r}")
                }
        counted = "the entry" if len(gone) == 1 else f"any of the {len(gone)} entries"
        said = f"none of {len(every):,} texts, spellings of the tokens among them, produces {counted}"
        return {"unreachable": (True, said)}

    def _loads_anywhere(self, texts: Sequence[str]) -> dict[str, Check]:
        sample = [*(text for each in self.tokens for text in _spellings(each.text)), *texts[:_TEXTS]]
        read = zip(texts, self.repaired.content_ids(texts), strict=True)
        fitting = [text for text, ids in read if self.repaired.fits(ids)][:24]
        given = {
            "folder": str(self.job.place.absolute()),
            "tokenizer": str(tokenizer_folder(self.job.place, self.job.place.name).absolute()),
            "prompt": self.job.encoder.prompt,
            "texts": sample,
            "encoded": fitting,
        }
        with tempfile.TemporaryDirectory(prefix="stickytoken-") as elsewhere:
            done = subprocess.run(
                [sys.executable, "-c", _SCRIPT],
                cwd=elsewhere,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
                input=json.dumps(given).encode(),
                capture_output=True,
                check=False,
            )
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1][:_SHOWN] if lines else f"the process ended with {done.returncode}"
            said = f"a process without stickytoken cannot load the folder: {visible(reason)}"
            return {"fresh process": (False, said)}
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        ours = self.repaired.encode(fitting).astype(np.float64)
        theirs = np.array(found["vectors"], dtype=np.float64)
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        least = float(((ours * theirs).sum(axis=1) / norms).min())
        loaded = (
            f"a process without stickytoken loads the folder with sentence-transformers {found['version']} "
            f"and computes the same vectors (least cosine {least:.6f} of {len(fitting)} texts)"
        )
        said = f"{', '.join(found['loaders'])} give equal ids for {len(sample):,} texts"
        for kind, text in list(found["unequal"].items())[:1]:
            shown = visible(text[:_SHOWN_TEXT])
            said = f"{kind} tokenizes {shown!r} differently than sentence-transformers"
        equal = not found["unequal"]
        return {"fresh process": (least >= 0.999, loaded), "tokenizers": (equal, said)}

    def _scores(self) -> tuple[list[result.ScoreRecord], Check]:
        self.job.progress(Progress("score", 0, 2))
        before, old = _scored(self.job.encoder, self.job.task, self.job.settings.seed)
        self.job.progress(Progress("score", 1, 2))
        after, new = _scored(self.repaired, self.job.task, self.job.settings.seed)
        self.job.progress(Progress("score", 2, 2, 2))
        task = self.job.task
        texts = 0 if isinstance(task, tasks.MtebTask) else sum(map(len, task.texts.values()))
        records = [
            result.ScoreRecord(task=task.name, metric=metric, texts=texts, before=value, after=after[metric])
            for metric, value in before.items()
        ]
        return records, _kept_score(records[0], task, old, new, self.job.settings.seed)


def _mended(measured: Mapping[str, result.MeasuredRecord]) -> Check:
    sticky = {name: after for name, after in measured.items() if after.verdict == Verdict.STICKY}
    if sticky:
        named = [f"{name!r} ({after.deviations:.2f} SD)" for name, after in sticky.items()]
        said = f"{len(sticky)} of {len(measured)} repaired tokens are still sticky: {', '.join(named[:5])}"
        return False, said
    worst = max(after.deviations for after in measured.values())
    counted = "repaired token is" if len(measured) == 1 else f"{len(measured)} repaired tokens are"
    said = f"the {counted} not sticky: at most {worst:.2f} SD beyond an ordinary token"
    return True, said.replace("-", _MINUS)


def _neighbours_unharmed(neighbours: list[result.NeighbourRecord]) -> Check:
    sticky = [each for each in neighbours if each.after.verdict == Verdict.STICKY]
    # One whose lift rises by less, in standard deviations, has not changed.
    harmed = [each for each in sticky if each.after.deviations > each.before.deviations + 0.1]
    counted = f"{len(neighbours)} nearest neighbours of repaired tokens"
    if harmed:
        names = ", ".join(repr(each.token) for each in harmed[:5])
        return False, f"of the {counted}, some became sticky: {names}"
    said = f"none of the {counted} became sticky"
    if sticky:
        names = ", ".join(repr(each.token) for each in sticky[:5])
        said += f"; {len(sticky)} lift as they did before, and are worth a repair of their own: {names}"
    return True, said


def _spellings(text: str) -> list[str]:
    bare = text.strip()
    forms = dict.fromkeys((text, bare, bare.lower(), bare.upper(), bare.capitalize()))
    frames = ("{}", "river {} stone", "{} {} {}", "river{}stone", "({}).", "\n{}\t{}")
    return [frame.replace("{}", form) for form in forms for frame in frames]


# Reads {folder, tokenizer, prompt, texts, encoded}, and prints {version, vectors, unequal, loaders} last.
# Everything that is not asked for, such as remote code, stays off.
_SCRIPT = """
import json, sys
sys.modules["stickytoken"] = None
given = json.loads(sys.stdin.buffer.read())
import sentence_transformers
from pathlib import Path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
model = SentenceTransformer(given["folder"], device="cpu")
texts, tokenizer = given["texts"], Path(given["tokenizer"])
def of_raw(raw):
    raw.no_truncation()
    raw.no_padding()
    return [each.ids for each in raw.encode_batch(texts, add_special_tokens=True)]
def of_transformers(kind):
    return kind(texts, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
own = model.tokenizer
found = {"sentence-transformers": of_raw(own) if isinstance(own, Tokenizer) else of_transformers(own)}
if (tokenizer / "tokenizer.json").is_file():
    found["tokenizers"] = of_raw(Tokenizer.from_file(str(tokenizer / "tokenizer.json")))
    if (tokenizer / "tokenizer_config.json").is_file():
        found["PreTrainedTokenizerFast"] = of_transformers(PreTrainedTokenizerFast.from_pretrained(tokenizer))
if (tokenizer / "tokenizer_config.json").is_file():
    found["AutoTokenizer"] = of_transformers(AutoTokenizer.from_pretrained(tokenizer))
first = found["sentence-transformers"]
unequal = {
    name: texts[place]
    for name, ids in found.items()
    for place in reversed(range(len(texts)))
    if list(ids[place]) != list(first[place])
}
vectors = model.encode(given["encoded"], prompt=given["prompt"] or None, show_progress_bar=False)
answer = {
    "version": sentence_transformers.__version__,
    "vectors": [[float(value) for value in row] for row in vectors],
    "unequal": unequal,
    "loaders": sorted(found),
}
print()
print(json.dumps(answer))
"""


# Largest loss of a score, of 1, and the largest that is excused because chance alone may explain it.
_TOLERANCE, _EXCUSED = 0.005, 0.02


def _scored(
    encoder: SentenceTransformerEncoder, task: tasks.AnyTask, seed: int
) -> tuple[dict[str, float], Outcomes | None]:
    if isinstance(task, tasks.MtebTask):
        tasks.load_data(task)
        return {"main_score": tasks.evaluate(encoder.model, task)}, None
    vectors = {
        role: encoder.encode([each.text for each in prepare(encoder, texts, 0, Insertion.TEXT, task.name)])
        for role, texts in task.texts.items()
    }
    outcomes = task.outcomes(vectors, seed)
    scores = ((metric, float(task.scores(metric, outcomes[None])[0])) for metric in task.metrics)
    return {metric: value for metric, value in scores if math.isfinite(value)}, outcomes


def _kept_score(
    main: result.ScoreRecord, task: tasks.AnyTask, before: Outcomes | None, after: Outcomes | None, seed: int
) -> Check:
    change, chance = main.after - main.before, False
    said = f"{task.name}, {main.metric}: {100 * main.before:.2f} before, {100 * main.after:.2f} after"
    if not change:
        return True, f"{said} (no change)"
    said += f": it {'rose' if change > 0 else 'fell'} by {100 * abs(change):.2f} points"
    if not isinstance(task, tasks.MtebTask) and before is not None and after is not None:
        # Where the change lies with other texts.
        both = np.stack([before, after])
        samples = bootstrap_samples(task.units, 400, (seed,))
        drawn = resampled(lambda sample: task.scores(main.metric, both, sample), samples)
        (interval,) = contrast_intervals(drawn, np.array([[-1.0, 1.0]]), 0.95)
        if interval.low is not None and interval.high is not None:
            chance = interval.low <= 0 <= interval.high
            ends = (f"{100 * end:+.2f}".replace("-", _MINUS) for end in (interval.low, interval.high))
            said += f" (with other {task.unit}, {' to '.join(ends)}"
            said += "; chance alone may explain it)" if chance else ")"
    return change >= -(_EXCUSED if chance else _TOLERANCE), said
