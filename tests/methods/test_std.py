"""The paper's method: published thresholds and defaults, settings, and encoders that no token moves."""

import math
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import planted
import tiny
from naming import naming
from stickytoken import detect, load_encoder
from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import Insertion, Placement
from stickytoken.methods.std import (
    Metric,
    ScoreConstants,
    StdSettings,
    candidate_threshold,
    distances,
    outlier_threshold,
)
from stickytoken.methods.std._scores import SCORE_CONSTANTS, SCORING_WEIGHTS, VALIDATION_WEIGHTS
from stickytoken.methods.std._wording import describe_figures
from word_bag import WordBag


class Deaf(WordBag):
    """Reads only the words of the corpus: other tokens change nothing."""

    def encode(self, texts):
        words = {word for sentence in tiny.sentences(60) for word in sentence.replace(".", " .").split()}
        return super().encode([" ".join(word for word in text.split() if word in words) for text in texts])


@pytest.mark.slow
def test_candidates_with_equal_rates_are_benign_and_a_note_says_that_the_rule_has_no_width(tmp_path):
    encoder = Deaf(tiny.wordpiece_tokenizer())
    options = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "out": tmp_path / "run"}
    run = detect(encoder, tokens=list("bcdfghjkqxz"), **options)
    assert run.sticky.is_empty()
    assert run.tokens["validation_rate"].drop_nulls().n_unique() == 1
    assert any("validation rate" in note for note in run.description.notes)


@pytest.mark.parametrize(
    ("scores", "sampled", "column", "shown"),
    [
        ([1.0, 2.0], [None, None], "sticky_score", "all examined tokens"),  # a run by an older version
        ([1.0, None], [1.0, None], "sampled_score", "random tokens"),
    ],
)
def test_the_caption_says_whose_scores_the_figure_shows(scores, sampled, column, shown):
    tokens = pl.DataFrame({"sticky_score": scores, "sampled_score": sampled})
    thresholds = SimpleNamespace(score_threshold=1.5, rate_threshold=0.5)
    figure = describe_figures(SimpleNamespace(tokens=tokens, result=thresholds))[0]
    assert figure.column.key == column
    assert figure.reading.startswith(f"Scores of {shown} in the paper's first stage")


def test_the_std_method_refuses_a_model_that_nothing_moves(tmp_path):
    constant = load_encoder(lambda texts: np.ones((len(texts), 4)), tokenizer=tiny.wordpiece_tokenizer())
    with pytest.raises(InputError, match="mean"):
        detect(constant, sentences=planted.small_corpus(), settings=planted.SMALL, out=tmp_path / "run")


def test_the_published_rates_give_exactly_the_published_sticky_tokens(shared):
    rows = pl.read_csv(shared / "paper" / "minilm_candidates.csv", infer_schema=False).to_dicts()
    rates = {int(row["token_id"]): float(row["validation_rate_cosine"]) for row in rows}
    published = {int(row["token_id"]) for row in rows if row["sticky"] == "True"}
    threshold = outlier_threshold(list(rates.values()), StdSettings().outlier_range)
    assert {token_id for token_id, rate in rates.items() if rate > threshold} == published
    assert len(published) == 21


# Published with fewer candidates than two in a hundred of their available tokens.
FEWER_CANDIDATES = {"SFR-Embedding-2_R", "gte-Qwen2-1.5B-instruct"}


def test_the_default_share_gives_the_published_numbers_of_candidates(shared):
    counts = {
        (int(row["available_tokens"]), int(row["candidates"]))
        for row in pl.read_csv(shared / "paper" / "models.csv", infer_schema=False).to_dicts()
        if row["model_name"] not in FEWER_CANDIDATES
    }
    assert (23_699, 474) in counts
    for available, candidates in counts:
        scores = np.random.default_rng(4).permutation(available) / 3
        threshold = candidate_threshold(scores.tolist(), StdSettings().candidate_share)
        assert (scores >= threshold).sum() == candidates


@pytest.mark.parametrize("zero_first", [True, False])
def test_a_zero_vector_is_refused(zero_first):
    zero = np.zeros((2, 3))
    other = np.ones((2, 3))
    zero[1] = 1.0  # one good row beside the bad one
    with pytest.raises(EncodingError, match="zero"):
        distances(*((zero, other) if zero_first else (other, zero)))


def test_the_defaults_are_the_published_values():
    defaults = StdSettings()
    assert (defaults.sentence_count, defaults.pair_count) == (1000, 1000)
    assert (defaults.scoring_pairs, defaults.validation_pairs) == (5, 250)
    assert (defaults.copies, defaults.seed) == (8, 42)
    assert (defaults.candidate_share, defaults.outlier_range) == (0.02, 0.7)
    assert defaults.insertion is Insertion.TEXT
    # Spellings of the same values are the same settings, whose text is a part of a run's identity.
    spelled = {
        "outlier_range": np.float64(0.7),
        "insertion": "text",
        "copies": np.uint8(8),
        "pair_count": 1000.0,
    }
    assert repr(StdSettings(**spelled)) == repr(StdSettings())


def test_the_constants_are_the_published_values():
    assert [SCORING_WEIGHTS[placement] for placement in Placement] == [0.35, 0.35, 0.30]
    assert [VALIDATION_WEIGHTS[placement] for placement in Placement] == [4 / 11, 4 / 11, 3 / 11]
    for metric in (Metric.COSINE, Metric.EUCLIDEAN):
        assert SCORE_CONSTANTS[metric] == ScoreConstants(0.1, 0.05, 0.01)
    assert SCORE_CONSTANTS[Metric.MANHATTAN] == ScoreConstants(1.0, 0.5, 0.1)


@pytest.mark.parametrize(
    ("field", "least", "below"),
    [
        *(
            ("sentence_count", 2, 1),
            ("pair_count", 1, 0),
            ("scoring_pairs", 1, 0),
            ("validation_pairs", 1, 0),
        ),
        *(("copies", 1, 0), ("seed", 0, -1), ("seed", 0, 0.1), ("candidate_share", 1.0, 1.0001)),
        *(("candidate_share", 1.0, 0.0), ("candidate_share", 1.0, math.nan), ("outlier_range", 0, -0.001)),
        *(("outlier_range", 0, math.inf), ("insertion", Insertion.IDS, "sideways")),
    ],
)
def test_settings_are_taken_to_their_bounds_and_refused_beyond(field, least, below):
    assert getattr(StdSettings(**{field: least}), field) == least
    with pytest.raises(InputError, match=naming(field, below)):
        StdSettings(**{field: below})
