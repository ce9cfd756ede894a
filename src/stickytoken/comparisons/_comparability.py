"""What can be compared between runs and what cannot, in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Any, NamedTuple

from stickytoken.comparisons.compared_run import ComparedRun, Examined
from stickytoken.detection.schema import LoadingRecord

# Below this share of anchors in common, two runs measured on different texts.
_SAME_TEXTS = 0.9
_SEED = "seed"


class Measure(StrEnum):
    """What a comparison puts side by side."""

    WORST = "worst lift"
    SHARE = "sticky tokens per 10,000"
    COPIES = "copies until serious"


class Answer(StrEnum):
    """Whether a measure can be compared, the best answer first."""

    YES = "comparable"
    CARE = "with care"
    NO = "not comparable"


_ALL = tuple(Measure)


class Reason(NamedTuple):
    """What stands in the way of a comparison.

    Attributes:
        answer: how much.
        said: one sentence, without a full stop.
        measures: those that it affects.
    """

    answer: Answer
    said: str
    measures: tuple[Measure, ...] = _ALL


class Comparability(NamedTuple):
    """What can be compared between runs.

    Attributes:
        answers: by measure, for all runs together.
        reasons: the gravest first; empty if nothing stands in the way.
    """

    answers: dict[Measure, Answer]
    reasons: tuple[Reason, ...]


def comparability(runs: Sequence[ComparedRun]) -> Comparability:
    """Say for each measure whether it can be compared between the runs, and why not."""
    order = list(Answer)
    found = [reason for find in _REASONS for reason in find(runs)]
    answers = {
        measure: max(
            (each.answer for each in found if measure in each.measures), key=order.index, default=Answer.YES
        )
        for measure in Measure
    }
    return Comparability(answers, tuple(sorted(found, key=lambda each: -order.index(each.answer))))


def _methods(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    if groups := _differing(runs, lambda each: each.run.record.method):
        yield Reason(
            Answer.NO,
            f"the methods differ ({groups}), and their verdicts follow different rules: compare only which "
            "tokens they flag",
        )
    without = [each.name for each in runs if each.scale is None]
    if without:
        yield Reason(
            Answer.NO,
            f"the method of {_listed(without)} has no scale that models share",
            (Measure.WORST, Measure.COPIES),
        )


def _texts(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    """Compare the texts that lifts were measured on: the corpus first, then the anchors themselves."""
    if groups := _differing(runs, lambda each: each.run.record.corpus.source):
        yield Reason(Answer.NO, f"the runs used different texts ({groups}), and a lift depends on the texts")
        return
    if len({each.run.record.method for each in runs}) > 1:  # each takes its own fingerprint of a corpus
        return
    if _differing(runs, lambda each: str(each.run.record.identity_parts.get("corpus"))):
        source = runs[0].run.record.corpus.source
        said = f"the sentences from {source} were not the same, and a lift depends on them"
        yield Reason(Answer.NO, said)
        return
    anchors = [set(each.run.method.texts(each.plan).anchors) for each in runs]
    shared = len(set.intersection(*anchors)) / max(1, min(map(len, anchors)))
    if shared < _SAME_TEXTS:
        groups = "; ".join(_listed(names) for names in _alike(runs, anchors))
        yield Reason(
            Answer.CARE,
            f"lifts were measured on different choices of the same texts ({groups}); {shared:.0%} of these "
            "are the same",
        )


def _alike(runs: Sequence[ComparedRun], anchors: Sequence[set[str]]) -> list[list[str]]:
    """Group names of runs that share most anchors with the first run of their group."""
    groups: list[tuple[set[str], list[str]]] = []
    for each, own in zip(runs, anchors, strict=True):
        for first, names in groups:
            if len(first & own) >= _SAME_TEXTS * min(len(first), len(own)):
                names.append(each.name)
                break
        else:
            groups.append((own, [each.name]))
    return [names for _, names in groups]


def _settings(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    """Name the settings of one method that differ between its runs."""
    if len({each.run.record.method for each in runs}) > 1:
        return
    method = runs[0].run.method
    names = sorted({name for each in runs for name in each.run.settings.values})
    for name in names:
        groups = _differing(runs, lambda each, name=name: each.run.settings.text(name))  # type: ignore[misc]
        if not groups:
            continue
        if name == _SEED:
            said = f"the runs made different random choices (seed: {groups}): small differences mean nothing"
            yield Reason(Answer.CARE, said)
        elif name in method.effort:
            said = f"the runs measured with different effort ({name.replace('_', ' ')}: {groups})"
            yield Reason(Answer.CARE, said)
        else:
            said = f"the settings differ ({name.replace('_', ' ')}: {groups}): detect with the same settings"
            yield Reason(Answer.NO, said)


def _examined(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    worst = (Measure.WORST, Measure.COPIES)
    for each in runs:
        count = f"{len(each.run.tokens):,} of {each.run.available:,} available tokens"
        if each.examined is Examined.SAMPLE:
            yield Reason(
                Answer.CARE,
                f"{each.name}: only a random sample, {count}, was examined, so there may be a worse token",
                worst,
            )
            yield Reason(
                Answer.CARE,
                f"{each.name}: the share is estimated from a random sample, {count}",
                (Measure.SHARE,),
            )
        elif each.examined is Examined.CHOSEN:
            yield Reason(
                Answer.NO,
                f"{each.name}: only chosen tokens, {count}, were examined; they say nothing of the others",
            )


def _vocabularies(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    if _differing(runs, lambda each: str(each.encoder.get("tokenizer"))):
        sizes = [each.run.available for each in runs]
        yield Reason(
            Answer.CARE,
            f"the vocabularies differ ({min(sizes):,} to {max(sizes):,} available tokens), and a share of a "
            "vocabulary is not a share of text",
            (Measure.SHARE,),
        )


def _versions(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    if groups := _differing(runs, lambda each: str(each.run.record.identity_parts.get("version"))):
        yield Reason(
            Answer.CARE,
            f"the runs were computed by different versions of the method ({groups}), which give somewhat "
            "different numbers: detect again to rely on small differences",
        )


def _use(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    """Say how the models were used differently."""
    if groups := _differing(runs, _prompt):
        yield Reason(
            Answer.CARE, f"the prompts differ ({groups}): a prompt is part of the model that was measured"
        )
    if groups := _differing(runs, lambda each: str(each.encoder.get("dtype"))):
        yield Reason(Answer.CARE, f"the models computed in different precisions ({groups})")
    for first, second in combinations(runs, 2):
        ours, theirs = first.encoder, second.encoder
        if not ours or ours.get("weights") != theirs.get("weights"):
            continue
        used = [name for name in ("dimension", "modules", "max_length") if ours.get(name) != theirs.get(name)]
        names = {"dimension": "length of the vectors", "modules": "pooling or other modules"}
        if used:
            said = ", ".join(names.get(name, name.replace("_", " ")) for name in used)
            yield Reason(
                Answer.CARE,
                f"{first.name} and {second.name} have the same weights, used differently ({said})",
            )
    for each in runs:
        loading = each.run.record.model.loading
        if loading is not None and loading.endpoint is not None:
            yield Reason(
                Answer.CARE,
                f"{each.name} was measured through an endpoint, whose vectors may be rounded and may change",
            )


def _missing(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    for each in runs:
        if each.scale is not None and each.run.evidence is None:
            yield Reason(
                Answer.NO,
                f"{each.name} has no symptom curves: the same `stickytoken detect` command adds them",
                (Measure.COPIES,),
            )


_REASONS: tuple[Callable[[Sequence[ComparedRun]], Iterator[Reason]], ...] = (
    _methods,
    _texts,
    _settings,
    _examined,
    _versions,
    _use,
    _vocabularies,
    _missing,
)


def _prompt(each: ComparedRun) -> str:
    """Describe the prompt of a run: its name, its text, or none."""
    loading: LoadingRecord | None = each.run.record.model.loading
    if loading is not None and loading.prompt:
        extra = " with token prepending" if loading.token_prepending else ""
        return f"{loading.prompt}{extra}{' with contrast' if loading.contrast else ''}"
    stored: Any = each.encoder.get("prompt")
    return "none" if not stored else stored if isinstance(stored, str) else json.dumps(stored)


def _differing(runs: Sequence[ComparedRun], value: Callable[[ComparedRun], str]) -> str:
    """Group the runs by a value; an empty text if all have the same."""
    groups: dict[str, list[str]] = {}
    for each in runs:
        groups.setdefault(value(each), []).append(each.name)
    if len(groups) < 2:
        return ""
    return "; ".join(f"{found}: {_listed(names)}" for found, names in groups.items())


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
