"""The push of tokens in documents: what is measured, in how many documents, and what a run says of it."""

from dataclasses import asdict, replace

import numpy as np
import polars as pl
import pytest
import torch

import planted
import profiled
import tiny
from naming import naming, says
from stickytoken import analyze_vocabulary, load_encoder, open_run
from stickytoken.data import collect_sentences
from stickytoken.data.collection import bundled_collection, join_collection
from stickytoken.detection import probe
from stickytoken.errors import StickyTokenWarning
from stickytoken.insertion import Insertion, Joining, Token
from stickytoken.intervals import Interval
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.measures import PUSH, thresholds
from stickytoken.methods.profile.documents import (
    SoFar,
    _spread_evenly,
    choose_collection,
    describe_so_far,
    encode_documents,
    measure_in_documents,
    plan_documents,
    predict_push,
)
from stickytoken.methods.profile.rounds import _measure_special_tokens, make_plan
from stickytoken.methods.profile.verdict import bound_hidden_share
from stickytoken.methods.runner import Runner
from stickytoken.methods.statistics import Effects
from stickytoken.search import ExactSearch
from stickytoken.settings.profile import Measuring
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import as_json
from stickytoken.vocabulary import special_tokens

CORPUS = collect_sentences(profiled.sentences(1200), "test")


@pytest.fixture(scope="module")
def job(encoder):
    vocabulary = analyze_vocabulary(encoder)
    return Job(encoder, profiled.SMALL, CORPUS, vocabulary, vocabulary.available, scope=Scope.WHOLE)


@pytest.fixture(scope="module")
def plan(job):
    return make_plan(job, Runner.in_memory(job.encoder, ignore_progress))


@pytest.fixture(scope="module")
def panel(job, plan):
    return encode(job, plan.documents)


def encode(job, record):
    runner = Runner.in_memory(job.encoder, ignore_progress)
    return encode_documents(job.encoder, job.corpus, record, runner, job.settings.inserted_as)


def test_the_bundled_collection_has_short_queries_for_documents_of_all_kinds():
    collection = bundled_collection()
    lengths = [len(document.split()) for document in collection.documents]
    assert min(lengths) >= 80
    assert max(lengths) <= 160
    assert len(set(collection.kinds)) >= 12
    assert len(set(collection.documents)) == len(collection.documents) == 240
    assert len(set(collection.queries)) == len(collection.queries) == 480
    assert all(2 <= len(query.split()) <= 8 for query in collection.queries)
    assert set(collection.answers) == set(range(240))


def test_documents_are_joined_from_neighbouring_texts_and_begin_behind_their_query():
    texts = [f"Sentence {number} of a longer story that goes on and on." for number in range(100)]
    collection = join_collection(texts, "story", 5)
    joined = " ".join(texts)
    assert len(collection.documents) == 5
    for query, document in zip(collection.queries, collection.documents, strict=True):
        assert f"{query} {document}" in joined
        assert 480 <= len(document) <= 960


def test_texts_without_spaces_are_cut_within_words():
    collection = join_collection(["漢字" * 400] * 3, "test", 3)
    assert [len(query) for query in collection.queries] == [72] * 3
    assert all(len(document) <= 960 for document in collection.documents)


def test_a_corpus_of_few_texts_that_the_model_alone_can_read_has_no_documents(foreign):
    assert choose_collection(foreign, profiled.corpus(60)) is None


@pytest.mark.parametrize("count", [8, 16, 32, 64])
def test_documents_with_copies_in_front_are_as_similar_to_queries_as_those_with_copies_at_the_end(
    panel, count
):
    """Copies stand in front of every other document; see `DocumentStage`."""
    similarity = panel.similarities.mean(axis=0)
    rank = np.argsort(np.argsort(similarity))[:count]
    assert rank[::2].sum() == rank[1::2].sum()
    first_ranks = np.sort(rank)
    assert np.diff(first_ranks).max() <= 2 * 64 / count


@pytest.mark.parametrize("count", [40, 45, 57, 64])
def test_front_and_end_are_balanced_for_any_number_of_documents(panel, count):
    order = _spread_evenly(range(count), panel.search)
    similarity = panel.search.similarities[:, list(order)].mean(axis=0)
    rank = np.argsort(np.argsort(similarity))
    assert abs(rank[::2].mean() - rank[1::2].mean()) <= 2


def slow_push(model, job, panel, text, indexed, copies=8):
    """Encode the whole index again for every document with copies, and sort the results of every query."""
    collection = choose_collection(job.encoder, job.corpus)
    texts = [collection.documents[document] for document in indexed]
    queries = model.encode(list(collection.queries), normalize_embeddings=True)
    documents = model.encode(texts, normalize_embeddings=True)
    counts = {"with": 0, "without": 0}
    found = []
    for position, place in enumerate(panel.places):
        own = texts[place]
        written = text * copies + own if position % 2 == 0 else own + text * copies
        index = documents.copy()
        index[place] = model.encode(written, normalize_embeddings=True)
        for which, vectors in (("with", index), ("without", documents)):
            order = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")
            is_first = (order[:, : panel.depth] == place).any(axis=1)
            answers = np.array(collection.answers) == indexed[place]
            counts[which] += int(is_first[~answers].sum())
            if which == "with":
                found += (order[answers, :10] == place).any(axis=1).tolist()
    return counts["with"] / counts["without"], np.mean(found)


@pytest.mark.parametrize("few", [False, True])
def test_push_and_found_equal_a_search_that_sorts_every_result(model, job, few):
    record = plan_documents(job.encoder, job.corpus, job.settings.seed, few_documents=few)
    panel = encode(job, record)
    whole = len(choose_collection(job.encoder, job.corpus).documents)
    indexed = record.indexed or range(whole)
    assert len(indexed) == record.documents == (64 if few else whole)
    assert whole > 64
    token = next(token for token in job.tokens if token.text == planted.PLANTED)
    runner = Runner.in_memory(job.encoder, ignore_progress)
    measured = measure_in_documents(
        panel, runner, [token], job.settings, "x", push_thresholds={token.id: 1.5}, ids_in_all=[token.id]
    )
    push, found = slow_push(model, job, panel, planted.PLANTED, indexed)
    assert measured.push.value[0] == pytest.approx(push)
    assert measured.found[0] == pytest.approx(found)
    assert measured.documents[0] == len(panel.places) == 64


def test_all_documents_at_once_show_what_they_show_in_steps(job, panel):
    tokens = job.tokens[:20]
    ids = [token.id for token in tokens]
    at_once = Runner.in_memory(job.encoder, ignore_progress)
    in_steps = Runner.in_memory(job.encoder, ignore_progress)
    measured = measure_in_documents(panel, at_once, tokens, job.settings, "x")
    expected = measure_in_documents(
        panel, in_steps, tokens, job.settings, "x", push_thresholds=dict.fromkeys(ids, 50.0), ids_in_all=ids
    )
    assert measured.ids.tolist() == sorted(ids)
    assert set(measured.documents.tolist()) == {64}
    for name in ("ids", "push", "found", "queries", "documents", "found_without"):
        np.testing.assert_array_equal(getattr(measured, name), getattr(expected, name))


def test_tokens_that_cannot_reach_their_threshold_are_measured_in_few_documents(job, panel):
    runner = Runner.in_memory(job.encoder, ignore_progress)
    tokens = job.tokens[:60]
    thresholds = dict.fromkeys([token.id for token in tokens], 50.0)
    measured = measure_in_documents(
        panel, runner, tokens, job.settings, "x", push_thresholds=thresholds, displayed_count=10
    )
    assert sorted(set(measured.documents.tolist())) == [4, 32]
    assert (measured.documents == 32).sum() == 10  # those that are shown
    shown = measured.push.value[measured.documents == 32]
    assert len(shown) == 10


def test_every_token_that_reaches_its_threshold_is_measured_in_all_documents(job, panel):
    runner = Runner.in_memory(job.encoder, ignore_progress)
    tokens = job.tokens[:30]
    thresholds = dict.fromkeys([token.id for token in tokens], 1e-9)
    measured = measure_in_documents(panel, runner, tokens, job.settings, "x", push_thresholds=thresholds)
    pushing = measured.push.value > 0
    assert pushing.any()
    assert set(measured.documents[pushing].tolist()) == {64}


def test_what_a_token_without_a_vector_does_is_not_announced(tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "b", words=profiled.WORDS))
    encoder = load_encoder(model)
    vocabulary = analyze_vocabulary(encoder)
    special = special_tokens(vocabulary, encoder.tokenizer)
    job = Job(encoder, profiled.SMALL, CORPUS, vocabulary, special, scope=Scope.NAMED)
    panel = encode(job, make_plan(job, Runner.in_memory(encoder, ignore_progress)).documents)

    def announced(unanswered):
        steps = []
        runner = Runner.in_memory(encoder, steps.append)
        runner.unanswered = {token.id: "a text" for token in unanswered}
        _measure_special_tokens(job, panel, runner, None)
        return [step.note for step in steps if step.note]

    pushing = [token for token in special if any(token.text in note for note in announced([]))]
    assert pushing
    assert len(pushing) < len(special)
    (note,) = announced(pushing)
    assert says(note, len(special) - len(pushing))
    assert announced(special) == []


def test_a_prediction_counts_the_pairs_that_the_linear_model_lifts_above_their_limit(job, panel):
    generator = np.random.default_rng(0)
    dimension = panel.search.queries.shape[1]
    effects = Effects(np.arange(5), generator.uniform(0, 0.5, 5), 0.3 * generator.normal(size=(5, dimension)))
    predicted = predict_push(effects, panel)
    for row in range(5):
        count = 0
        for column, place in enumerate(panel.places):
            before = panel.search.similarities[:, place]
            after = (1 - effects.contraction[row]) * before + panel.search.queries @ effects.pull[row]
            count += ((after > panel.limits.first[:, column]) & ~panel.is_answer[:, column]).sum()
        assert predicted[row] == pytest.approx(count / panel.is_wrong_result.sum(), rel=1e-3)


def test_a_prediction_for_a_dot_product_takes_documents_to_keep_their_length(job, panel):
    generator = np.random.default_rng(1)
    dimension = panel.search.queries.shape[1]
    vectors = panel.search.documents * generator.uniform(0.5, 2, (len(panel.search.documents), 1))
    search = ExactSearch(2 * panel.search.queries, vectors, Similarity.DOT)
    panel = replace(panel, search=search)
    effects = Effects(np.arange(5), generator.uniform(0, 0.5, 5), 0.3 * generator.normal(size=(5, dimension)))
    predicted = predict_push(effects, panel)
    for row in range(5):
        counts = {"with": 0, "without": 0}
        for place in panel.places:
            length = np.linalg.norm(vectors[place])
            unit = (1 - effects.contraction[row]) * vectors[place] / length + effects.pull[row]
            for which, vector in (("with", length * unit), ("without", vectors[place])):
                index = vectors.copy()
                index[place] = vector
                similarities = search.queries @ index.T
                others = np.delete(similarities, place, axis=1)
                limit = np.sort(others, axis=1)[:, -panel.depth]
                is_answer = panel.is_answer[:, panel.places.index(place)]
                counts[which] += ((similarities[:, place] > limit) & ~is_answer).sum()
        assert predicted[row] == pytest.approx(counts["with"] / counts["without"], rel=1e-3)


@pytest.mark.slow
def test_without_a_prediction_suspects_are_tokens_that_erase_most_and_the_run_says_so(tmp_path):
    runs = {}
    for similarity in ("dot", "euclidean"):
        model = profiled.planted_model(4)
        model.similarity_fn_name = similarity
        with pytest.warns(StickyTokenWarning, match=naming(similarity, "cosine", "push", similarity)):
            runs[similarity] = profiled.detect_in_documents(load_encoder(model), tmp_path / similarity)
    in_documents = {
        similarity: set(run.tokens.drop_nulls("documents")["token"]) for similarity, run in runs.items()
    }
    assert planted.PLANTED in in_documents["euclidean"]  # it erases most
    assert len(in_documents["euclidean"]) < len(in_documents["dot"])
    notes = {
        similarity: [note for note in run.description.notes if says(note, similarity)]
        for similarity, run in runs.items()
    }
    assert (len(notes["dot"]), len(notes["euclidean"])) == (0, 1)
    assert says(notes["euclidean"][0], "--set documents=all")


@pytest.mark.slow
def test_copies_as_words_and_as_ids_push_alike(encoder, tmp_path):
    runs = {}
    for insertion in (Insertion.IDS, Insertion.WORDS):
        runs[insertion] = profiled.detect_profile(
            encoder, tmp_path / insertion, sentences=CORPUS, insertion=insertion, tokens=[planted.PLANTED]
        )
    pushes = [run.token(planted.PLANTED)["push"][0] for run in runs.values()]
    assert pushes[0] == pytest.approx(pushes[1], abs=1e-6)


def test_documents_with_copies_that_take_many_tokens_are_truncated(tmp_path):
    """After a repair, copies of a token may be many tokens, because the tokenizer splits it."""
    encoder = load_encoder(profiled.save_bert(tmp_path))
    vocabulary = analyze_vocabulary(encoder)
    available = vocabulary.available
    job = Job(encoder, profiled.SMALL, CORPUS, vocabulary, available, scope=Scope.WHOLE)
    runner = Runner.in_memory(encoder, ignore_progress)
    panel = encode(job, make_plan(job, runner).documents)
    written = replace(panel, carriers=panel.texts)
    token = Token(available[0].id, "river " * encoder.max_length, Joining.WORDS)
    measured = measure_in_documents(written, runner, [token], job.settings, "written")
    assert measured.documents.tolist() == [len(panel.places)]


@pytest.mark.slow
def test_all_tokens_can_be_measured_in_documents(encoder, tmp_path):
    some = profiled.detect_profile(encoder, tmp_path / "some", sentences=CORPUS)
    every = profiled.detect_profile(encoder, tmp_path / "all", sentences=CORPUS, documents=Measuring.ALL)
    assert every.tokens["documents"].null_count() == 0
    assert 0 < some.tokens["documents"].null_count() < len(some.tokens)
    assert some.result.in_documents == len(some.tokens) - some.tokens["documents"].null_count()
    assert some.result.random_in_documents == 128
    assert some.record.identity != every.record.identity


@pytest.mark.slow
def test_all_of_128_named_tokens_are_measured_in_documents(job, tmp_path):
    special_ids = {token.id for token in special_tokens(job.vocabulary, job.encoder.tokenizer)}
    named = [token.id for token in job.vocabulary.available if token.id not in special_ids][:128]
    run = profiled.detect_profile(job.encoder, tmp_path / "run", sentences=CORPUS, tokens=named)
    measured = run.tokens.drop_nulls("documents")["token_id"]
    assert special_ids <= set(run.tokens["token_id"])  # a run adds them
    assert set(named) <= set(measured)


def test_queries_are_surely_hidden_by_the_exact_interval():
    """None of n has the upper end 1 - (tail)^(1/n): Clopper and Pearson 1934."""
    assert bound_hidden_share(0, 8, 0.9, 0.9) == pytest.approx(1 - (1 - 0.05 ** (1 / 8)) / 0.9)
    assert bound_hidden_share(8, 8, 0.9, 0.9) == 0
    assert bound_hidden_share(0, 0, 0.9, 0.9) == 0
    assert bound_hidden_share(0, 8, 0.0, 0.9) == 0


@pytest.mark.parametrize(
    ("push", "found", "documents", "parts"),
    [
        (Interval(2.0, 1.4, 2.9), [1] * 8, 4, None),
        (Interval(1.0, 0.8, 1.3), [1] * 8, 4, None),
        (
            Interval(1.9, 1.55, 2.4),
            [1] * 16,
            8,
            ("'<0>' may push", "1.9", "1.5 to 2.4×", "8 documents so far"),
        ),
        (Interval(0.1, 0, 0.3), [0] * 400, 8, ("'<0>' may hide", "0 of 400", "8 documents so far")),
        (Interval(1.6, 1.5, 1.7), [1] * 64, 64, ("'<0>' pushes", "1.6", "64 documents)")),
    ],
)
def test_a_special_token_is_described_once_its_interval_says_so(panel, push, found, documents, parts):
    sentence = describe_so_far(Token(0, "<0>"), SoFar(push, found, documents), panel, None, profiled.SMALL)
    if parts is None:
        assert sentence is None
    else:
        assert all(part in sentence for part in parts)


def test_what_a_token_hides_is_compared_with_the_same_documents_without_copies(panel):
    answering = panel.limits.is_answer[:, :8]
    found = panel.limits.top[:, :8] < panel.similarities[:, :8]
    share = found[answering].mean()
    look = SoFar(Interval(0.1, 0, 0.3), [0] * 400, 8)
    sentence = describe_so_far(Token(0, "<0>"), look, panel, None, profiled.SMALL)
    assert f"({share:.0%} without" in sentence


def test_a_token_with_an_unusual_vector_is_described_by_its_lower_thresholds(panel):
    """The verdict uses them too, so a token that isn't described isn't sticky by its push."""
    look = SoFar(Interval(1.42, 1.31, 1.49), [1] * 64, 64)
    sentences = [
        describe_so_far(Token(0, "<0>"), look, panel, deviation, profiled.SMALL) for deviation in (1.0, 9.0)
    ]
    assert sentences[0] is None
    assert "'<0>' pushes" in sentences[1]
    pushes = np.array([1.31, 1.31])
    reached = pushes >= thresholds([1.0, 9.0], profiled.SMALL)[PUSH.key]
    assert reached.tolist() == [False, True]


@pytest.mark.slow
def test_special_tokens_are_measured_first_and_in_every_run(tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "b", words=profiled.WORDS))
    steps = []
    run = profiled.detect_profile(
        load_encoder(model),
        tmp_path / "run",
        sentences=CORPUS,
        tokens=["river"],
        progress=steps.append,
    )
    special = {"[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]"}
    measured = run.tokens.drop_nulls("documents")
    assert special | {"river"} <= set(measured["token"])
    assert len(run.tokens) == 6
    rounds = list(dict.fromkeys(step.stage for step in steps))
    assert rounds[:3] == ["queries", "documents", "special tokens-4"]
    assert rounds.index("pilot") > rounds.index("special tokens-64")
    # A token that pushes in some documents pushes in more of them too, and is announced only once.
    announced = [step.note.split(" may push")[0] for step in steps if step.note]
    assert announced
    assert {token.strip("'") for token in announced} <= special
    assert len(set(announced)) == len(announced)


@pytest.mark.slow
def test_a_special_token_that_erases_is_measured_in_all_documents(tmp_path):
    """In a few, hardly any query of theirs shows whether it hides them."""
    model = profiled.planted_model(0)
    tokenizer = model.tokenizer
    rows = model[0].embedding.weight
    with torch.no_grad():
        # The opposite of what all words have in common: its copies take documents away from every query.
        rows[tokenizer.token_to_id("[MASK]")] = -4 * torch.eye(rows.shape[1])[0]
    notes = []
    run = profiled.detect_profile(
        load_encoder(model),
        tmp_path / "run",
        sentences=profiled.corpus(1200),
        progress=lambda step: notes.append(step.note),
    )
    (note,) = filter(None, notes)
    assert note.startswith("5 special tokens")
    row = run.tokens.row(by_predicate=pl.col("token") == "[MASK]", named=True)
    assert row["erased_low"] > run.record.settings["smallest_erased"]
    assert row["documents"] == 64
    assert len(run.tokens.filter(pl.col("token") == "[MASK]")) == 1


@pytest.mark.slow
def test_few_tokens_are_not_compared_with_random_ones_in_fewer_documents(tmp_path):
    """Which queries find their documents depends on the documents, and hardly a random token gets to all."""
    model = profiled.planted_model(0)
    rows = model[0].embedding.weight
    with torch.no_grad():
        rows[model.tokenizer.token_to_id("!")] = -4 * torch.eye(rows.shape[1])[0]  # erases
    run = profiled.detect_in_documents(load_encoder(model), tmp_path / "run", tokens=["!"])
    assert run.tokens.row(by_predicate=pl.col("token") == "!", named=True)["documents"] == 64
    assert run.result.ordinary_found is None
    harm = run.harm(run.sticky["token_id"][0])
    assert harm.shares[0] == pytest.approx((1 - harm.found / run.result.found) / 0.7)
    assert says(harm.hides, "without copies")
    assert "ordinary" not in harm.hides


@pytest.fixture(scope="module")
def own_words():
    """Texts about a word of its own each, so that a query finds its document first, and no other."""
    texts = []
    for index, word in enumerate(profiled.WORDS[:60]):
        others = [profiled.WORDS[(7 * index + step) % len(profiled.WORDS)] for step in range(16)]
        texts.append(" ".join(f"{' '.join([word] * 8)} {other}." for other in others))
    return collect_sentences(texts, "own words")


def test_without_a_wrong_result_the_push_is_unknown(own_words, tmp_path):
    run = profiled.detect_profile(
        load_encoder(profiled.planted_model(0.0, common=0.0)),
        tmp_path / "run",
        sentences=own_words,
        tokens=profiled.WORDS[100:110],
    )
    assert run.plan.documents.documents == 60
    for column in ("push", "push_low", "push_high"):
        assert run.tokens[column].null_count() == len(run.tokens)
    assert run.result.ordinary_push is None
    assert any(says(note, "push is unknown") for note in run.description.notes)


@pytest.fixture
def notes_on_river(tmp_path):
    """The notes of a run on a benign token with other values in its row."""
    encoder = load_encoder(profiled.planted_model(0.0))
    run = profiled.detect_in_documents(encoder, tmp_path / "run", tokens=["river"], smallest_push=1.5)

    def notes_with(**values):
        changed = open_run(run.path)
        changed.tokens = changed.tokens.with_columns(
            pl.when(token="river").then(value).otherwise(key).alias(key) for key, value in values.items()
        )
        return [note for note in changed.description.notes if "'river'" in note]

    notes_with.in_all = len(run.plan.documents.chosen)
    return notes_with


def test_a_note_names_benign_tokens_whose_push_may_be_enough(notes_on_river):
    in_all = notes_on_river.in_all
    interval = {"push_low": 1.2, "push_high": 2.0}
    (note,) = notes_on_river(push=1.6, documents=in_all, **interval)
    assert says(note, "1.6×", "1.2 to 2.0×", "audit")
    assert not notes_on_river(push=1.4, documents=in_all, **interval)  # below the threshold
    assert not notes_on_river(push=1.6, documents=in_all - 1, **interval)  # too few documents to decide


def test_a_note_names_benign_tokens_whose_erased_share_may_be_enough(notes_on_river):
    interval = {"erased_low": 0.35, "erased_high": 0.55}
    (note,) = notes_on_river(erased=0.45, confirmed=True, **interval)
    assert says(note, "45%", "35% to 55%", "audit")
    assert not notes_on_river(erased=0.39, confirmed=True, **interval)  # below the threshold
    assert not notes_on_river(erased=0.45, confirmed=False, **interval)  # a rough value


def test_a_probe_without_a_wrong_result_does_not_know_the_push_either(own_words):
    encoder = load_encoder(profiled.planted_model(0.0, common=0.0))
    words = profiled.WORDS[100:102]
    for probed in probe(encoder, words, sentences=own_words, settings=profiled.SMALL):
        assert (probed.push, probed.push_low, probed.push_high, probed.ordinary_push) == (None,) * 4
        assert as_json(asdict(probed))  # NaN is no JSON
