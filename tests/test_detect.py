"""Detection against a slow plain version of the method, and against a planted token."""

import csv
import dataclasses
import itertools
import os
import random
import statistics

import numpy as np
import polars as pl
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn.metrics.pairwise import (
    cosine_similarity,
    paired_cosine_distances,
    paired_euclidean_distances,
    paired_manhattan_distances,
)

import planted
import tiny
from stickytoken import detect, load_encoder, load_sentences, open_run
from stickytoken.detection.std.settings import StdSettings
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.runs.identity import differences

PLACEMENTS = ("prefix", "suffix", "random")
METRICS = {
    "": paired_cosine_distances,
    "_euclidean": paired_euclidean_distances,
    "_manhattan": paired_manhattan_distances,
}
CONSTANTS = {"": (0.1, 0.05, 0.01), "_euclidean": (0.1, 0.05, 0.01), "_manhattan": (1.0, 0.5, 0.1)}
SCORING_WEIGHTS = {"prefix": 0.35, "suffix": 0.35, "random": 0.3}
VALIDATION_WEIGHTS = {"prefix": 4 / 11, "suffix": 4 / 11, "random": 3 / 11}


class PlainMethod:
    """The published method with plain loops, scikit-learn's distances and the model's own code.

    Nothing of the library is used, but for the keys of the generators of validation.
    """

    def __init__(self, model: SentenceTransformer, insertion: str, copies: int, seed: int):
        self.model = model
        self.tokenizer = model.tokenizer
        self.insertion = insertion
        self.copies = copies
        self.seed = seed
        self.vectors = {}

    def available(self):
        found = []
        for token_id in range(len(self.tokenizer)):
            text = self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
            if self.tokenizer.encode(text, add_special_tokens=False) == [token_id]:
                found.append((token_id, text))
        return found

    def mean_similarity(self):
        vectors = self.encoded(self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer))))
        return cosine_similarity(vectors).mean()

    def chosen(self, pairs, mean, count):
        below = sorted((pair for pair in pairs if pair[2] < mean), key=lambda pair: pair[2])
        low, size = below[0][2], min(count, len(below))
        high = low + 0.8 * (mean - low)
        found = []
        for step in range(size):
            target = low + (high - low) * step / (size - 1)
            found.append(min(below, key=lambda pair: abs(pair[2] - target)))
        return found

    def probes(self, token, carrier, draw):
        """By placement, the inputs with 1, 2, ... copies."""
        token_id, text = token
        counts = range(1, self.copies + 1)
        found = {placement: [] for placement in PLACEMENTS}
        if self.insertion == "text":
            found["prefix"] = [text * count + carrier for count in counts]
            found["suffix"] = [carrier + text * count for count in counts]
            current = carrier
            for _ in counts:
                words = current.split()
                words.insert(draw(len(words)), text)
                current = " ".join(words)
                found["random"].append(current)
            return found
        words = [tuple(self.tokenizer.encode(word, add_special_tokens=False)) for word in carrier.split()]
        found["prefix"] = [(token_id,) * count + sum(words, ()) for count in counts]
        found["suffix"] = [sum(words, ()) + (token_id,) * count for count in counts]
        for _ in counts:
            words.insert(draw(len(words)), (token_id,))
            found["random"].append(sum(words, ()))
        return found

    def alone(self, token):
        return token[1] if self.insertion == "text" else (token[0],)

    def encoded(self, inputs):
        """The vectors of texts or id lists, as the float32 that a run works on."""
        first, last = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        missing = [each for each in dict.fromkeys(inputs) if each not in self.vectors]
        for start in range(0, len(missing), 256):
            batch = missing[start : start + 256]
            features = self.tokenizer.pad(
                {
                    "input_ids": [
                        self.tokenizer.encode(each) if isinstance(each, str) else [first, *each, last]
                        for each in batch
                    ]
                },
                return_tensors="pt",
            )
            with torch.inference_mode():
                rows = self.model(dict(features))["sentence_embedding"]
            self.vectors |= dict(zip(batch, rows.float().double().numpy(), strict=True))
        return np.array([self.vectors[each] for each in inputs])

    def distances(self, anchor, inputs, metric):
        vectors = self.encoded(inputs)
        return METRICS[metric](np.repeat(self.encoded([anchor]), len(vectors), axis=0), vectors).tolist()

    def scores(self, pairs):
        stream = random.Random(self.seed)
        probes = {
            token: [
                self.probes(token, carrier, lambda words: stream.randint(0, words)) for _, carrier, _ in pairs
            ]
            for token in self.available()
        }
        self.encoded(
            [probe for rows in probes.values() for row in rows for inputs in row.values() for probe in inputs]
        )
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
                reward, penalty = 0.1 * alone, gamma
                for before, after in itertools.pairwise(self.distances(anchor, [carrier, *inputs], metric)):
                    if after < before:
                        reward += before - after + alpha
                    elif after > before:
                        penalty += after - before + beta
                by_placement[placement].append(reward / penalty)
        return sum(SCORING_WEIGHTS[place] * statistics.fmean(found) for place, found in by_placement.items())

    def validation(self, token, pairs):
        """Rates by metric, and the lift."""
        rates = dict.fromkeys(METRICS, 0.0)
        rises = []
        for place, (anchor, carrier, _) in enumerate(pairs):
            generator = np.random.default_rng([self.seed, 1, token[0], place])
            row = self.probes(token, carrier, lambda words, own=generator: int(own.integers(0, words + 1)))
            for placement, inputs in row.items():
                for metric in METRICS:
                    clean, *probed = self.distances(anchor, [carrier, *inputs], metric)
                    if statistics.fmean(probed) < clean:
                        rates[metric] += VALIDATION_WEIGHTS[placement] / len(pairs)
                    if metric == "":
                        rises += [clean - each for each in probed]
        return rates, statistics.fmean(rises)


@pytest.fixture(scope="module")
def exact_model(bert_folder):
    """The tiny BERT in double precision: its float32 vectors do not depend on the batch."""
    return SentenceTransformer(str(bert_folder), device="cpu").double().eval()


@pytest.fixture(scope="module")
def pair_file(exact_model, tmp_path_factory):
    """All pairs of 14 sentences with their similarity."""
    texts = tiny.sentences(14, seed=3)
    similarities = cosine_similarity(exact_model.encode(texts))
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["sentence1", "sentence2", "similarity"])
        for first, second in itertools.combinations(range(len(texts)), 2):
            writer.writerow([texts[first], texts[second], float(similarities[first, second])])
    return path


def read_pairs(path):
    with path.open(newline="") as stream:
        return [
            (row["sentence1"], row["sentence2"], float(row["similarity"])) for row in csv.DictReader(stream)
        ]


@pytest.mark.parametrize("insertion", ["text", "ids"])
def test_every_number_equals_that_of_a_plain_version_of_the_method(
    exact_model, pair_file, tmp_path, insertion
):
    settings = StdSettings(
        scoring_pairs=3,
        validation_pairs=7,
        copies=3,
        candidate_share=0.2,
        seed=5,
        insertion=Insertion(insertion),
    )
    run = detect(load_encoder(exact_model), pairs=pair_file, settings=settings, out=tmp_path / "run")

    plain = PlainMethod(exact_model, insertion, copies=3, seed=5)
    mean = plain.mean_similarity()
    scores = plain.scores(plain.chosen(read_pairs(pair_file), mean, 3))
    cosine = [score[""] for score in scores.values()]
    threshold = statistics.quantiles(cosine, n=5, method="inclusive")[-1]
    candidates = [token for token, score in scores.items() if score[""] >= threshold]
    pairs = plain.chosen(read_pairs(pair_file), mean, 7)
    validated = {token: plain.validation(token, pairs) for token in candidates}
    first, _, third = statistics.quantiles(
        [rates[""] for rates, _ in validated.values()], n=4, method="inclusive"
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
        rates, lift = validated[token]
        for metric in METRICS:
            assert row[f"validation_rate{metric}"] == pytest.approx(rates[metric], abs=1e-9), row
        assert row["lift"] == pytest.approx(lift, abs=1e-6)
        assert row["verdict"] == ("sticky" if rates[""] > run.result.rate_threshold else "benign")


@pytest.fixture(scope="module")
def small_run(encoder, tmp_path_factory):
    """All tokens of the tiny BERT under the small settings."""
    return detect(
        encoder,
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        out=tmp_path_factory.mktemp("small") / "run",
    )


def numbers(run):
    """Token ids and every number of a run's table."""
    kept = [
        name for name in run.tokens.columns if name.startswith(("sticky_score", "validation_rate", "lift"))
    ]
    return run.tokens.select("token_id", *kept)


def assert_close(found, wanted, tolerance=1e-5):
    assert found.columns == wanted.columns
    assert found["token_id"].to_list() == wanted["token_id"].to_list()
    for name in found.columns:
        assert found[name].to_list() == [
            None if value is None else pytest.approx(value, abs=tolerance, rel=tolerance)
            for value in wanted[name].to_list()
        ], name


def test_single_and_double_precision_agree(small_run, exact_model, tmp_path):
    exact = detect(
        load_encoder(exact_model),
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        out=tmp_path / "run",
    )
    assert_close(numbers(small_run), numbers(exact), 1e-4)
    assert small_run.tokens["verdict"].to_list() == exact.tokens["verdict"].to_list()
    assert differences(small_run.record.identity_parts, exact.record.identity_parts) == [
        "encoder.dtype",
        "encoder.weights",
    ]


@pytest.mark.parametrize("insertion", list(Insertion))
def test_a_planted_token_is_found_sticky_with_the_highest_validation_rate(tmp_path, insertion):
    settings = StdSettings(
        sentences=40,
        pairs=200,
        scoring_pairs=3,
        validation_pairs=40,
        copies=4,
        candidate_share=1.0,
        insertion=insertion,
    )
    found = {}
    for strength in (0, 3):
        run = detect(
            load_encoder(planted.planted_model(strength)),
            sentences=planted.small_corpus(),
            settings=settings,
            out=tmp_path / f"run-{strength}",
        )
        found[strength] = run.tokens.filter(token=planted.PLANTED).row(0, named=True)
        if strength:
            others = run.tokens.filter(pl.col("token") != planted.PLANTED)
            assert run.sticky.row(0, named=True)["token"] == planted.PLANTED
    assert found[0]["verdict"] == "benign"
    assert found[3]["verdict"] == "sticky"
    assert found[3]["validation_rate"] == pytest.approx(1.0)
    assert others["validation_rate"].max() < found[3]["validation_rate"] - 0.02
    assert others["lift"].max() < 0.6 * found[3]["lift"]
    assert (others["sticky_score"] > found[3]["sticky_score"]).sum() < 0.1 * len(others)


def test_the_table_has_one_row_an_available_token_by_ascending_id(small_run, encoder):
    table = pl.read_parquet(small_run.path / "tokens.parquet")
    assert table.equals(small_run.tokens)
    plain = PlainMethod(SentenceTransformer(str(encoder.name), device="cpu"), "text", 1, 0)
    assert list(zip(table["token_id"], table["decoded"], strict=True)) == plain.available()
    names = plain.tokenizer.convert_ids_to_tokens(table["token_id"].to_list())
    assert table["token"].to_list() == names
    wanted = {"token_id", "token", "category", "sticky_score", "validation_rate", "verdict"}
    assert wanted <= set(table.columns)
    assert table["category"].unique().sort().to_list() == ["OK", "OK_SPECIAL"]


def test_a_verdict_is_missing_exactly_where_a_token_was_not_validated(small_run):
    table, result = small_run.tokens, small_run.result
    reached = table["sticky_score"] >= result.score_threshold
    for column in (
        "verdict",
        "lift",
        *(name for name in table.columns if name.startswith("validation_rate")),
    ):
        assert (table[column].is_not_null() == reached).all(), column
    assert result.candidates == reached.sum() == 19  # 20 % of 95 tokens
    assert set(table["verdict"].drop_nulls()) <= {"sticky", "benign"}
    assert result.sticky == len(small_run.sticky)
    assert result.scored == len(table) == small_run.record.tokens
    assert not table["sticky_score"].is_null().any()


def test_the_run_counts_the_texts_that_it_encoded(small_run):
    scored, validated = 95 * (2 * 3 * 3 + 1), 19 * 6 * 3 * 3
    assert small_run.result.sequences == scored + validated


def test_named_tokens_get_the_scores_that_they_have_in_the_whole_run(encoder, small_run, tmp_path):
    for wanted in ([2], [55], [90, 7, 55, 7]):
        run = detect(
            encoder,
            sentences=planted.small_corpus(),
            settings=planted.SMALL,
            tokens=wanted,
            out=tmp_path / f"run-{len(wanted)}-{wanted[0]}",
        )
        ids = sorted(set(wanted))
        assert run.tokens["token_id"].to_list() == ids
        columns = ["token_id", "token", "category", "sticky_score", "sticky_score_manhattan"]
        whole = small_run.tokens.filter(pl.col("token_id").is_in(ids))
        assert_close(run.tokens.select(columns[0], *columns[3:]), whole.select(columns[0], *columns[3:]))
        assert run.tokens.select(columns[:3]).equals(whole.select(columns[:3]))
        assert run.record.identity != small_run.record.identity


def test_a_validation_does_not_depend_on_the_other_candidates(encoder, small_run, tmp_path):
    candidate = small_run.tokens.filter(pl.col("verdict").is_not_null())["token_id"][3]
    alone = detect(
        encoder,
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        tokens=[candidate],
        out=tmp_path / "run",
    )
    assert_close(numbers(alone), numbers(small_run).filter(token_id=candidate))
    assert alone.tokens["verdict"].to_list() == ["benign"]  # one rate is no outlier of itself


def test_a_sample_is_drawn_by_the_seed(encoder, tmp_path):
    def drawn(seed, name):
        run = detect(
            encoder,
            sentences=planted.small_corpus(),
            settings=planted.SMALL,
            sample=12,
            seed=seed,
            out=tmp_path / name,
        )
        return run.tokens["token_id"].to_list(), run.record.identity

    first, again, other = drawn(1, "first"), drawn(1, "again"), drawn(2, "other")
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
    for ids, _ in (first, other):
        assert len(ids) == 12
        assert ids == sorted(set(ids))


def test_a_sample_of_named_tokens_is_drawn_among_them(encoder, tmp_path):
    run = detect(
        encoder,
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        tokens=[50, 51, 52, 53],
        sample=3,
        out=tmp_path / "run",
    )
    ids = run.tokens["token_id"].to_list()
    assert len(ids) == 3
    assert set(ids) < {50, 51, 52, 53}


@pytest.mark.parametrize("budget", [1, 100])
def test_the_batch_size_changes_neither_identity_nor_numbers(bert_folder, small_run, tmp_path, budget):
    model = SentenceTransformer(str(bert_folder), device="cpu")
    batches = []
    model[0].register_forward_pre_hook(lambda _module, inputs: batches.append(inputs[0]["input_ids"].shape))
    run = detect(
        load_encoder(model, token_budget=budget),
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        out=tmp_path / "run",
    )
    assert all(rows == 1 or rows * length <= budget for rows, length in batches)
    assert budget == 1 or max(rows for rows, _ in batches) > 1
    assert run.record.identity == small_run.record.identity
    assert_close(numbers(run), numbers(small_run))
    assert run.tokens["verdict"].to_list() == small_run.tokens["verdict"].to_list()


def test_the_seed_changes_the_identity_and_the_numbers(encoder, small_run, tmp_path):
    run = detect(
        encoder, sentences=planted.small_corpus(), settings=planted.SMALL, seed=7, out=tmp_path / "run"
    )
    assert differences(run.record.identity_parts, small_run.record.identity_parts) == ["settings.seed"]
    assert run.record.settings["seed"] == 7
    assert run.plan.scoring != small_run.plan.scoring
    assert not run.tokens["sticky_score"].equals(small_run.tokens["sticky_score"])


def test_a_model_that_was_moved_and_a_corpus_file_that_was_moved_continue_the_run(
    encoder, small_run, bert_folder, tmp_path
):
    moved = tmp_path / "elsewhere"
    moved.symlink_to(bert_folder)
    corpus = tmp_path / "lines.txt"
    corpus.write_text("\n\n".join(planted.small_corpus().texts), encoding="utf-8")
    events = []
    run = detect(
        load_encoder(moved, device="cpu"),
        sentences=corpus,
        settings=planted.SMALL,
        out=small_run.path,
        progress=events.append,
    )
    assert events == []
    assert run.tokens.equals(small_run.tokens)


def test_without_a_folder_the_run_is_named_for_model_method_and_identity(encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = detect(encoder, sentences=planted.small_corpus(), settings=planted.SMALL, tokens=[60])
    assert run.path.as_posix() == f"runs/tiny-bert-std-{run.record.identity[:12]}"
    assert open_run(tmp_path / run.path).tokens.equals(run.tokens)


@pytest.mark.parametrize("name", ["[test]", "what?", "all*", "{a,b}", "été 漢", "a b", "~", "%20", "hf:x"])
def test_a_folder_name_is_a_name_and_no_pattern(encoder, tmp_path, name):
    if os.name != "posix" and set(name) & set("?*:"):
        pytest.skip("not a file name on this system")
    arguments = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "tokens": [60]}
    run = detect(encoder, **arguments, out=tmp_path / name)
    events = []
    again = detect(encoder, **arguments, out=tmp_path / name, progress=events.append)
    assert events == []
    assert again.tokens.equals(run.tokens)
    (tmp_path / name / "tokens.parquet").unlink()
    detect(encoder, **arguments, out=tmp_path / name, progress=events.append)
    assert {event.computed for event in events} == {0}
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_record_says_what_was_computed_and_with_what(small_run, encoder):
    record = small_run.record
    assert record.model.name == str(encoder.name)
    assert (record.model.vocabulary, record.model.available) == (125, 95)
    assert (record.corpus.source, record.corpus.sentences) == ("test", 60)
    assert record.settings == dataclasses.asdict(planted.SMALL)
    assert record.versions["polars"] == pl.__version__
    assert record.hardware["device"] == "cpu"
    assert small_run.vocabulary["token_id"].to_list() == list(range(125))
    assert small_run.plan.mean_similarity_entries == 125


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
    assert [event.done for event in first.values()] == [0, 0, 0]  # or its speed could not be told
    assert list(last) == ["mean similarity", "score", "validate"]
    assert (last["mean similarity"].done, last["mean similarity"].total) == (125, 125)
    assert (last["score"].done, last["score"].total, last["score"].sequences) == (5, 5, 5 * 19)
    assert last["validate"].done == last["validate"].total == last["validate"].computed
    for before, after in itertools.pairwise(events):
        assert before.stage != after.stage or before.done <= after.done <= after.total


def test_one_carrier_in_several_pairs_is_probed_in_each(encoder, tmp_path):
    """A pair list may hold the same pair twice; every pair keeps its own random placement."""
    pair = ("the bird sings.", "a quiet river.", 0.0)
    path = tmp_path / "pairs.csv"
    path.write_text(
        "sentence1,sentence2,similarity\n" + "".join(f"{pair[0]},{pair[1]},{value}\n" for value in (0.1, 0.2))
    )
    settings = StdSettings(scoring_pairs=2, validation_pairs=2, copies=2)
    run = detect(encoder, pairs=path, tokens=[60], settings=settings, out=tmp_path / "run")
    assert [each.similarity for each in run.plan.scoring] == [0.1, 0.2]
    assert run.plan.similarity_deviation > 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "profile"}, "method 'profile' is unknown"),
        ({"tokens": []}, "no token to look at"),
        ({"tokens": [5]}, r"token id 5 cannot occur in text \(UNREACHABLE_SPECIAL\)"),
        ({"tokens": [125]}, r"token id 125 cannot occur in text \(not in the vocabulary\)"),
        ({"sample": 0}, "between 1 and 95"),
        ({"sample": 96}, "between 1 and 95"),
        ({"seed": -1}, "seed is -1"),
    ],
    ids=str,
)
def test_what_cannot_be_detected_is_refused_before_a_folder_is_made(encoder, tmp_path, arguments, message):
    arguments = {"settings": planted.SMALL, "sentences": planted.small_corpus()} | arguments
    with pytest.raises(InputError, match=message):
        detect(encoder, out=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_an_empty_list_of_pairs_is_named_as_such(encoder, tmp_path):
    with pytest.raises(InputError, match="no pair"):
        detect(encoder, pairs=[], settings=planted.SMALL, out=tmp_path / "run")


def test_input_that_cannot_be_planned_leaves_the_folder_free_for_the_corrected_call(encoder, tmp_path):
    too_many = dataclasses.replace(planted.SMALL, sentences=61)
    with pytest.raises(InputError, match="61 are asked for"):
        detect(encoder, sentences=planted.small_corpus(), settings=too_many, out=tmp_path / "run")
    run = detect(
        encoder,
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        tokens=[60],
        out=tmp_path / "run",
    )
    assert run.result.scored == 1


def test_an_insertion_given_by_its_name_is_what_the_name_says(encoder, tmp_path):
    """It would be a run that says ids and holds the numbers of text."""
    tables = [
        detect(
            encoder,
            sentences=planted.small_corpus(),
            settings=dataclasses.replace(planted.SMALL, insertion=insertion),
            tokens=[55, 60],
            out=tmp_path / str(place),
        ).tokens
        for place, insertion in enumerate(["ids", Insertion.IDS, "text", Insertion.TEXT])
    ]
    assert not tables[1].equals(tables[3])
    assert tables[2].equals(tables[3])
    assert tables[0].equals(tables[1])


def test_an_unknown_insertion_is_refused():
    with pytest.raises(InputError, match="insertion"):
        StdSettings(insertion="glued")


def test_sentences_and_pairs_together_are_refused(encoder, tmp_path, pair_file):
    with pytest.raises(InputError, match="both given"):
        detect(encoder, sentences=planted.small_corpus(), pairs=pair_file, out=tmp_path / "run")


def test_sentences_that_do_not_fit_with_the_copies_in_are_left_out_and_counted(encoder, tmp_path):
    long = (
        "the old bird sings near the green river and walks over the stone garden in the morning with a song "
    )
    texts = [*planted.small_corpus().texts[:30], *(f"{long * 2}{word}" for word in tiny.WORDS[:10])]
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    run = detect(
        encoder,
        sentences=load_sentences(path),
        settings=dataclasses.replace(planted.SMALL, sentences=40, copies=8),
        tokens=[60],
        out=tmp_path / "run",
    )
    assert run.plan.left_out == 10
    assert not any(long in text for pair in run.plan.validation for text in (pair.sentence1, pair.sentence2))
