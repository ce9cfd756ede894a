"""The sentences that come with the package: 840 pairs of a sentence and its paraphrase."""

from __future__ import annotations

from importlib.resources import files

import polars as pl

from stickytoken.corpora.corpus import Sentences, collect_sentences

BUNDLED_NAME = "bundled"


def bundled_frame() -> pl.DataFrame:
    """One row a sentence: pair_id, topic, sentence. Two rows share a pair_id."""
    content = files("stickytoken.corpora").joinpath("data/sentences.csv").read_bytes()
    return pl.read_csv(content, schema={"pair_id": pl.Int64, "topic": pl.String, "sentence": pl.String})


def bundled_sentences() -> Sentences:
    """The bundled corpus: 1,680 English sentences on 64 topics."""
    frame = bundled_frame()
    return collect_sentences(
        frame["sentence"].to_list(), "the bundled corpus", topics=frame["topic"].to_list()
    )
