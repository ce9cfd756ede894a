"""Detection by the published method against a slow plain version, and what changes none of its numbers."""

import itertools
import random
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from sentence_transformers import SentenceTransformer
from sklearn.metrics.pairwise import (
    cosine_similarity,
    paired_cosine_distances,
    paired_euclidean_distances,
    paired_manhattan_distances,
)

import planted
import stickytoken
import tiny
from naming import says
from stickytoken import detect, load_encoder, open_run
from stickytoken.data import SentencePair
from stickytoken.detection import probe
from stickytoken.insertion import Insertion
from stickytoken.methods.std import StdSettings

PLACEMENTS = ("prefix", "suffix", "random")
METRICS = {
    "": paired_cosine_distances,
    "_euclidean": paired_euclidean_distances,
    "_manhattan": paired_manhattan_distances,
}
ENDINGS = {"cosine": "", "euclidean": "_euclidean", "manhattan": "_manhattan"}
CONSTANTS = {"": (0.1, 0.05, 0.01), "_euclidean": (0.1, 0.05, 0.01), "_manhattan": (1.0, 0.5, 0.1)}
SCORING_WEIGHTS = {"prefix": 0.35, "suffix": 0.35, "random": 0.3}
VALIDATION_WEIGHTS = {"prefix": 4 / 11, "suffix": 4 / 11, "random": 3 / 11}


class PlainMethod:
    """The published method with plain loops, scikit-learn's distances and the model's own code."""

    def __init__(self, model: SentenceTransformer, insertion: str, copies: int, seed: int):
        self.model = model
        self.tokenizer = model.tokenizer
        self.insertion = insertion
        self.copies = copies
        self.seed = seed
        self.stream = random.Random(seed)
        self.vectors = {}

    def available(self):
        token_ids = range(len(self.tokenizer))
        texts = [
            self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False) for token_id in token_ids
        ]
        ids = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return [(token_id, texts[token_id]) for token_id in token_ids if ids[token_id] == [token_id]]

    def mean_similarity(self):
        vectors = self.encoded(self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer))))
        return cosine_similarity(vectors).mean()

    def chosen(self, pairs, mean, count):
        below = sorted((pair for pair in pairs if pair[2] < mean), key=lambda pair: pair[2])
        low = below[0][2]
        size = min(count, len(below))
        high = low + 0.8 * (mean - low)
        probes = []
        for step in range(size):
            target = low + (high - low) * step / (size - 1)
            probes.append(min(below, key=lambda pair: abs(pair[2] - target)))
        return probes

    def probes(self, token, carrier, draw):
        token_id, text = token
        counts = range(1, self.copies + 1)
        probes = {placement: [] for placement in PLACEMENTS}
        if self.insertion == "text":
            probes["prefix"] = [text * count + carrier for count in counts]
            probes["suffix"] = [carrier + text * count for count in counts]
            current = carrier
            for _ in counts:
                words = current.split()
                words.insert(draw(len(words)), text)
                current = " ".join(words)
                probes["random"].append(current)
            return probes
        words = [tuple(self.tokenizer.encode(word, add_special_tokens=False)) for word in carrier.split()]
        probes["prefix"] = [(token_id,) * count + sum(words, ()) for count in counts]
        probes["suffix"] = [sum(words, ()) + (token_id,) * count for count in counts]
        for _ in counts:
            words.insert(draw(len(words)), (token_id,))
            probes["random"].append(sum(words, ()))
        return probes

    def alone(self, token):
        return token[1] if self.insertion == "text" else (token[0],)

    def encoded(self, inputs):
        first, last = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        missing = [text for text in dict.fromkeys(inputs) if text not in self.vectors]
        for start in range(0, len(missing), 256):
            batch = missing[start : start + 256]
            ids = [
                self.tokenizer.encode(text) if isinstance(text, str) else [first, *text, last]
                for text in batch
            ]
            features = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt")
            with torch.inference_mode():
                rows = self.model(dict(features))["sentence_embedding"]
            self.vectors |= dict(zip(batch, rows.float().double().numpy(), strict=True))
        return np.array([self.vectors[text] for text in inputs])

    def distances(self, anchor, inputs, metric):
        vectors = self.encoded(inputs)
        return METRICS[metric](np.repeat(self.encoded([anchor]), len(vectors), axis=0), vectors).tolist()

    def draw(self, most):
        return self.stream.randint(0, most)

    def scores(self, pairs):
        probes = {
            token: [self.probes(token, carrier, self.draw) for _, carrier, _ in pairs]
            for token in self.available()
        }
        rows = itertools.chain.from_iterable(probes.values())
        self.encoded([probe for row in rows for inputs in row.values() for probe in inputs])
        return {
            token: {metric: self.score(token, pairs, rows, metric) for metric in METRICS}
            for token, rows in probes.items()
        }

    def score(self, token, pairs, rows, metric):
        alpha, beta, gamma = CONSTANTS[metric]
        by_placement = {placement: [] for placement in PLACEMENTS}
        for (anchor, carrier, _), row in zip(pairs, rows, strict=True):
            (alone,) = self.distances(anchor, [self.alone(token)], metric)
            for placement, inputs in row.items():
                reward = 0.1 * alone
                penalty = gamma
                for before, after in itertools.pairwise(self.distances(anchor, [carrier, *inputs], metric)):
                    if after < before:
                        reward += before - after + alpha
                    elif after > before:
                        penalty += after - before + beta
                by_placement[placement].append(reward / penalty)
        return sum(
            SCORING_WEIGHTS[placement] * statistics.fmean(placement_scores)
            for placement, placement_scores in by_placement.items()
        )

    def validation(self, token, pairs):
        """Rates by metric, rates by placement and metric, and rises of the cosine with 1, 2, ... copies."""
        shares = {placement: dict.fromkeys(METRICS, 0.0) for placement in PLACEMENTS}
        rises = []
        for pair_index, (anchor, carrier, _) in enumerate(pairs):
            generator = np.random.default_rng([self.seed, 1, token[0], pair_index])
            draw = lambda words, bound_generator=generator: int(bound_generator.integers(0, words + 1))  # noqa: E731
            row = self.probes(token, carrier, self.draw if self.seed == 42 else draw)
            for placement, inputs in row.items():
                for metric in METRICS:
                    clean, *probed = self.distances(anchor, [carrier, *inputs], metric)
                    if statistics.fmean(probed) < clean:
                        shares[placement][metric] += 1 / len(pairs)
                    if metric == "":
                        rises.append([clean - similarity for similarity in probed])
        rates = {
            metric: sum(VALIDATION_WEIGHTS[placement] * shares[placement][metric] for placement in PLACEMENTS)
            for metric in METRICS
        }
        return rates, shares, np.mean(rises, axis=0)


@pytest.fixture(scope="module")
def exact_model(bert_folder):
    """The tiny BERT in double precision: its float32 vectors do not depend on the batch."""
    return SentenceTransformer(str(bert_folder), device="cpu").double().eval()


@pytest.fixture(scope="module")
def pairs(exact_model):
    texts = tiny.sentences(14, seed=3)
    similarities = cosine_similarity(exact_model.encode(texts)).tolist()
    index_pairs = itertools.combinations(range(len(texts)), 2)
    return [(texts[first], texts[second], similarities[first][second]) for first, second in index_pairs]


@pytest.mark.slow
@pytest.mark.parametrize(("insertion", "seed"), [("text", 5), ("text", 42), ("ids", 5)])
def test_every_number_equals_that_of_a_plain_version_of_the_method(
    exact_model, pairs, tmp_path, insertion, seed
):
    settings = StdSettings(
        scoring_pairs=3,
        validation_pairs=7,
        copies=3,
        candidate_share=0.2,
        seed=seed,
        insertion=Insertion(insertion),
    )
    options = {"pairs": [SentencePair(*pair) for pair in pairs], "settings": settings}
    run = detect(load_encoder(exact_model), out=tmp_path / "run", **options)

    plain = PlainMethod(exact_model, insertion, copies=3, seed=seed)
    mean = plain.mean_similarity()
    scores = plain.scores(plain.chosen(pairs, mean, 3))
    cosine = [score[""] for score in scores.values()]
    threshold = statistics.quantiles(cosine, n=5, method="inclusive")[-1]
    candidates = [token for token, score in scores.items() if score[""] >= threshold]
    candidates.sort(key=lambda token: -scores[token][""])  # the order in which the published code draws
    chosen = plain.chosen(pairs, mean, 7)
    validated = {token: plain.validation(token, chosen) for token in candidates}
    first, _, third = statistics.quantiles(
        [rates[""] for rates, *_ in validated.values()], n=4, method="inclusive"
    )

    assert run.plan.mean_similarity == pytest.approx(mean, abs=1e-6)
    assert run.result.score_threshold == pytest.approx(threshold, abs=1e-6)
    assert run.result.rate_threshold == pytest.approx(third + 0.7 * (third - first), abs=1e-9)
    assert run.tokens["token_id"].to_list() == [token_id for token_id, _ in scores]
    assert 15 <= len(candidates) <= 25
    for row in run.tokens.to_dicts():
        token = row["token_id"], row["decoded"]
        for metric in METRICS:
            assert row[f"sticky_score{metric}"] == pytest.approx(scores[token][metric], abs=1e-6), row
        if token not in validated:
            assert (row["verdict"], row["validation_rate"], row["lift"]) == (None, None, None)
            continue
        rates, _, rises = validated[token]
        for metric in METRICS:
            assert row[f"validation_rate{metric}"] == pytest.approx(rates[metric], abs=1e-9), row
        assert row["lift"] == pytest.approx(rises.mean(), abs=1e-6)
        assert row["verdict"] == ("sticky" if rates[""] > run.result.rate_threshold else "benign")
    if seed == 42:  # a probe knows no candidates, whose number and order decide where copies go
        return
    requested_ids = [token_id for token_id, _ in candidates]
    for evidence in probe(load_encoder(exact_model), requested_ids, **options):
        (evidence_rows,) = (rows for token, rows in validated.items() if token[0] == evidence.token_id)
        assert evidence.lift_by_copies == pytest.approx(evidence_rows[2], abs=1e-6)
        for placement, rates in evidence_rows[1].items():
            assert evidence.by_placement[placement] == pytest.approx(
                dict(zip(ENDINGS, rates.values(), strict=True))
            )


def test_the_run_counts_its_tokens_and_texts(small_run):
    table, result = small_run.tokens, small_run.result
    assert table.equals(pl.read_parquet(small_run.path / "tokens.parquet"))
    assert table["category"].unique().sort().to_list() == ["OK", "OK_SPECIAL"]
    assert result.scored == len(table) == small_run.record.tokens == 95
    assert result.candidates == table["verdict"].is_not_null().sum() == 19  # 20 % of 95 tokens
    assert result.sticky == len(small_run.sticky)
    # Copies before and after a carrier are encoded once, however many pairs it stands in.
    carriers = {pair.sentence2 for pair in small_run.plan.validation}
    of_tokens = 95 * (2 * 3 * 3 + 1) + 19 * (2 * len(carriers) + 6) * 3
    assert result.sequences == of_tokens + 125  # and the mean similarity


def test_named_tokens_get_the_numbers_that_they_have_in_the_whole_run(encoder, tmp_path):
    # With seed 42, random placement in validation depends on all candidates, as in the published runs.
    options = {"sentences": planted.small_corpus(), "settings": replace(planted.SMALL, seed=3)}
    run = detect(encoder, out=tmp_path / "whole", **options)
    candidate = run.tokens.filter(pl.col("verdict").is_not_null())["token_id"][3]
    alone = detect(encoder, tokens=[candidate], out=tmp_path / "alone", **options)
    close = {"rel_tol": 1e-5, "abs_tol": 1e-5}
    rows_of_run = run.tokens.filter(token_id=candidate)
    assert_frame_equal(alone.tokens.drop("verdict"), rows_of_run.drop("verdict"), **close)
    assert alone.tokens["verdict"].to_list() == ["benign"]  # one rate is no outlier of itself
    some = detect(encoder, tokens=[90, 7, 55, 7], out=tmp_path / "some", **options)
    columns = ["token_id", "sticky_score", "sticky_score_manhattan"]
    rows_of_run = run.tokens.filter(pl.col("token_id").is_in([7, 55, 90]))
    assert_frame_equal(some.tokens.select(columns), rows_of_run.select(columns), **close)
    assert len({run.record.identity for run in (run, alone, some)}) == 3


def test_progress_tells_of_every_stage_up_to_its_end(encoder, tmp_path):
    events = []
    detect(
        encoder,
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        tokens=[60, 61, 62, 63, 64],
        out=tmp_path / "run",
        progress=events.append,
    )
    last = {event.stage: event for event in events}
    first = {event.stage: event for event in reversed(events)}
    assert [event.done for event in first.values()] == [0, 0]  # or its speed could not be told
    assert list(last) == ["mean similarity", "texts"]
    assert (last["mean similarity"].done, last["mean similarity"].total) == (125, 125)
    texts = last["texts"]
    assert texts.done == texts.total == texts.computed == texts.sequences > 5 * 19
    for before, after in itertools.pairwise(events):
        assert before.stage != after.stage or before.done <= after.done <= after.total


@pytest.mark.slow
@pytest.mark.parametrize("insertion", list(Insertion))
def test_a_probe_gives_the_numbers_that_a_detection_stores(encoder, tmp_path, insertion):
    settings = replace(planted.SMALL, insertion=insertion, seed=3)
    run = detect(encoder, sentences=planted.small_corpus(), settings=settings, out=tmp_path / "run")
    rows = run.tokens.filter(run.tokens["verdict"].is_not_null()).to_dicts()
    requested_ids = [row["token_id"] for row in rows][::-1]
    probes = probe(encoder, requested_ids, sentences=planted.small_corpus(), settings=settings)
    assert [evidence.token_id for evidence in probes] == requested_ids
    for evidence, row in zip(probes, rows[::-1], strict=True):
        assert (evidence.token, evidence.category) == (row["token"], row["category"])
        assert evidence.lift == pytest.approx(row["lift"], abs=1e-6)
        assert evidence.pairs == 6
        for metric, ending in ENDINGS.items():
            assert evidence.validation_rate[metric] == row[f"validation_rate{ending}"]
    assert len({evidence.validation_rate["cosine"] for evidence in probes}) > 3


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "tampered"])
def test_the_worst_harm_is_that_of_the_token_that_does_most_to_documents(name):
    run = open_run(Path(stickytoken.__file__).parent / "demo" / "example" / name)
    push = run.token(101)["push"].item()
    assert push == run.tokens["push"].max()
    assert says(run.worst_harm(), "[CLS]", f"{push:.1f}×", f"{run.result.ordinary_push:.1f}×")


def test_no_sentence_rests_on_some_of_the_documents():
    run = open_run(Path(stickytoken.__file__).parent / "demo" / "example" / "all-MiniLM-L6-v2")
    documents = dict(run.tokens.drop_nulls("documents").select("token_id", "documents").iter_rows())
    cls = 101
    assert documents[cls] == run.most_documents
    in_some = min(documents, key=documents.__getitem__)
    assert documents[in_some] < run.most_documents
    assert run.harm(in_some) is None
    assert run.harm(cls) is not None
