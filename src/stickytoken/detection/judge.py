"""Judge the tokens of a finished run on another corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from stickytoken.corpora import load_sentences
from stickytoken.corpora.choice import SentenceSource, readable
from stickytoken.detection.model_files import encoder_for, restored_settings
from stickytoken.detection.run import Run, open_run
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.views import view_encoders, views_of
from stickytoken.errors import InputError
from stickytoken.measurement.stage import ProgressCallback, ignore_progress
from stickytoken.methods.job import Job
from stickytoken.methods.protocol import Judgement
from stickytoken.validation import Numbers, distinct_numbers, require_callable, whole_number
from stickytoken.vocabulary import categorize, written

ANCHORS = 2000


def judge(
    run: Run | str | Path,
    sentences: SentenceSource,
    *,
    column: str | None = None,
    encoder: AnyModel | None = None,
    anchors: int = ANCHORS,
    dimensions: Numbers = (),
    layers: Numbers = (),
    progress: ProgressCallback = ignore_progress,
) -> Judgement:
    """Measure what the tokens of a finished run do to the texts of a corpus.

    Only texts of the corpus are encoded, a few random tokens in them, and the tokens that may matter there:
    all other lifts are computed from the pulls and contractions that the run measured. A run made on the
    corpus, with ``detect(..., sentences=...)``, measures every token on it and takes minutes.

    Args:
        run: a finished run, or its folder.
        sentences: the corpus: a list of texts, or anything that `load_sentences` takes.
        column: the column with the texts, for files and Hub datasets.
        encoder: the run's model; None loads the one that the run names, as it was loaded.
        anchors: random texts of the corpus to compare with, at most.
        dimensions: also judge by so many first components of the vectors; the run must have measured them.
        layers: also judge by the vectors after so many layers; the run must have measured them.
        progress: told of every step.

    Raises:
        InputError: the corpus cannot be used, or the run's method cannot judge.
        ModelError: the model cannot be found or used.
        RunError: the folder is no finished run, is damaged, or its model is another.
    """
    opened = open_run(run)
    opened.method.require_judging(opened)
    require_callable("progress", progress)
    anchors = whole_number("anchors", anchors, 2)
    numbers = {
        name: distinct_numbers(name, given, 1)
        for name, given in (("dimensions", dimensions), ("layers", layers))
    }
    if any(numbers.values()):
        require_measured(opened, numbers)
    corpus = load_sentences(sentences, column)
    model = encoder_for(encoder, opened, "judge")
    corpus = readable(corpus, model.tokenizer, model.name)
    settings = restored_settings(opened)
    vocabulary = written(categorize(model.tokenizer), model.tokenizer, settings.insertion)
    measured = set(opened.tokens["token_id"].to_list())
    tokens = [token for token in vocabulary.available if token.id in measured]
    restricted = len(tokens) < len(vocabulary.available)
    job = Job(model, settings, corpus, vocabulary, tokens, restricted, not restricted)
    if not any(numbers.values()):
        return opened.method.judge(job, opened, anchors, progress)
    return _in_views(job, opened, anchors, progress, numbers)


def require_measured(run: Run, numbers: Mapping[str, Sequence[int]]) -> None:
    """Refuse dimensions and layers that a run did not measure."""
    for name, asked in numbers.items():
        measured = run.settings.values.get(name) or []
        if missing := [number for number in asked if number not in measured]:
            known = f"has {name} {', '.join(map(str, measured))}" if measured else f"was made without {name}"
            raise InputError(
                f"{name} include {missing[0]}, but the run in {run.path} {known}: detect with "
                f"--{name} {','.join(map(str, dict.fromkeys([*measured, *asked])))} into another folder"
            )


def _in_views(
    job: Job[Any], run: Run, anchors: int, progress: ProgressCallback, numbers: Mapping[str, Sequence[int]]
) -> Judgement:
    """Judge by the model as it is, and by some of the views that the run measured, from one encoding."""
    settings = job.settings
    views = views_of(job.encoder, settings.dimensions, settings.layers)
    named = product(settings.layers or (None,), settings.dimensions or (views.own.dimension,))
    asked = [
        view
        for view, (layer, dimension) in zip(views.asked, named, strict=True)
        if dimension in (numbers["dimensions"] or (dimension,)) and layer in (numbers["layers"] or (layer,))
    ]
    encoders = view_encoders(job.encoder, replace(views, asked=tuple(asked)))
    found = {
        view: run.method.judge(
            replace(job, encoder=encoder), run, anchors, progress, None if view == views.own else view
        )
        for view, encoder in encoders.items()
    }
    return replace(found[views.own], others={view: found[view] for view in asked})


class NextStep(NamedTuple):
    """Something to do after a detection.

    Attributes:
        purpose: what it is good for; reads on after "to", without a full stop.
        command: the command line; names in capitals are for the user to fill in.
    """

    purpose: str
    command: str


def next_steps(run: Run) -> tuple[NextStep, ...]:
    """Return what a user of the model can do about what the run found.

    Rows of a vocabulary can be repaired only where sentence-transformers loads the model by itself; behind
    an endpoint or a prompt, documents are what can be cleaned.
    """
    folder = quote(str(run.path))
    if run.sticky.is_empty():
        return (
            NextStep(
                "see what tokens do among your own documents",
                f"stickytoken judge {folder} --sentences DOCUMENTS",
            ),
            NextStep(
                "find documents that repeat a word or contain special tokens",
                f"stickytoken scan {folder} DOCUMENTS",
            ),
        )
    scan = f"stickytoken scan {folder} DOCUMENTS --effect"
    clean = NextStep("take the copies out of those documents", f"stickytoken clean {folder} DOCUMENTS")
    found = "find the documents that contain copies"
    loading = run.record.model.loading
    if loading is not None and (loading.endpoint is not None or loading.layer is not None):
        return NextStep(found, scan), clean
    return (
        NextStep(
            "write a repaired, verified copy of the model, then encode your documents with it",
            f"stickytoken repair {folder} --out FOLDER",
        ),
        NextStep(f"{found}, if the model has to stay", scan),
        clean,
        NextStep("check the model that you ship, in CI", "stickytoken check FOLDER"),
    )
