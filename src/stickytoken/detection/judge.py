"""Judge the tokens of a finished run on another corpus."""

from __future__ import annotations

from pathlib import Path

from stickytoken.corpora import load_sentences
from stickytoken.corpora.choice import SentenceSource
from stickytoken.corpora.readability import readable
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_model import encoder_for, restored_settings
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.measurement.progress import ProgressCallback, ignore_progress
from stickytoken.methods.job import Job
from stickytoken.methods.judgement import Judgement
from stickytoken.validation import require_callable, whole_number
from stickytoken.vocabulary.categories import categorize
from stickytoken.vocabulary.writing import written

ANCHORS = 2000


def judge(
    run: Run | str | Path,
    sentences: SentenceSource,
    *,
    column: str | None = None,
    encoder: AnyModel | None = None,
    anchors: int = ANCHORS,
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
    corpus = load_sentences(sentences, column)
    model = encoder_for(encoder, opened, "judge")
    corpus = readable(corpus, model.tokenizer, model.name)
    settings = restored_settings(opened)
    vocabulary = written(categorize(model.tokenizer), model.tokenizer, settings.insertion)
    measured = set(opened.tokens["token_id"].to_list())
    tokens = [token for token in vocabulary.available if token.id in measured]
    restricted = len(tokens) < len(vocabulary.available)
    job = Job(model, settings, corpus, vocabulary, tokens, restricted, not restricted)
    return opened.method.judge(job, opened, anchors, progress)
