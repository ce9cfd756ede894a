"""Documents pushed into search results: ranks against a slow reference, and results."""

from dataclasses import replace

import numpy as np
import pytest

import impact_files as files
import planted
import tiny
from stickytoken.errors import InputError
from stickytoken.impacts import impact
from stickytoken.impacts._intrusion import (
    COPIES,
    TOP,
    IntrusionWork,
    SearchCorpus,
    copies_needed,
    intrusion_summary,
    load_search_corpus,
    plan_intrusion,
)
from stickytoken.impacts._vectors import Group, clean_vectors
from stickytoken.impacts.conditions import Condition, Kind, Treatment
from stickytoken.insertion import Token
from stickytoken.measurement.engine import LocalEngine

SETTINGS = replace(files.FEW, seeds=1)


@pytest.fixture(scope="module")
def encoder():
    return files.planted_encoder()


@pytest.fixture(scope="module")
def corpus():
    texts = tiny.sentences(90)
    return SearchCorpus("texts", tuple(texts[:20]), tuple(texts[20:]))


def token(encoder, text):
    return Token(files.token_id(encoder, text), text)


def test_ranks_are_those_of_a_slow_plain_search(encoder, corpus, tmp_path):
    sticky = token(encoder, planted.PLANTED)
    plan = plan_intrusion("intrusion", encoder, SETTINGS, corpus, [sticky])
    condition = Condition(Kind.STICKY, (sticky,), 0, SETTINGS.seed)
    clean, cost = clean_vectors(plan.clean, tmp_path / "vectors.npz", LocalEngine(encoder), shard_probes=30)
    assert cost.sequences == len(set(plan.clean)) == len(clean.vectors)
    rows, encoded = IntrusionWork(plan, clean).compute(Group(0, (condition,)), encoder)
    found = np.array([[row[column] for column in plan.columns] for row in rows])
    assert encoded > 0
    queries = encoder.encode(corpus.queries).astype(np.float64)
    documents = encoder.encode(corpus.documents).astype(np.float64)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    places = corpus.targets(SETTINGS.seed)
    assert len(places) == len(set(places)) == len(plan.targets) == 50
    for unit in (0, 17, 49):
        for step, copies in enumerate(COPIES):
            treatment = replace(Treatment.of(SETTINGS), copies=copies)
            probe = treatment.probe(plan.targets[unit], condition)
            vector = encoder.encode_ids([probe])[0].astype(np.float64)
            pushed = documents.copy()
            pushed[places[unit]] = vector / np.linalg.norm(vector)
            similarities = queries @ pushed.T
            own = similarities[:, places[unit]]
            ranks = 1 + (np.delete(similarities, places[unit], axis=1) > own[:, None]).sum(axis=1)
            assert found[unit, step] == (ranks <= TOP).sum()
            assert found[unit, len(COPIES) + step] == np.median(ranks)


def test_a_sticky_token_pushes_documents_up_and_a_benign_one_does_not(encoder, tmp_path):
    ids = [files.token_id(encoder, planted.PLANTED)]
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(tiny.sentences(120)), encoding="utf-8")
    found = impact(encoder, tokens=ids, intrusion=path, settings=SETTINGS, out=tmp_path / "out")
    rows = {row["copies"]: row for row in found.intrusion.to_dicts()}
    assert set(rows) == set(COPIES)
    assert rows[0]["hits_sticky"] == rows[0]["hits_benign"]
    assert rows[0]["ratio"] == 1
    assert rows[8]["ratio_low"] > 1.5
    assert rows[0]["rank_sticky"] == rows[0]["rank_benign"] > rows[8]["rank_sticky"]
    curves = found.intrusion_curves.filter(kind="named").sort("copies")
    assert curves["median_rank"][0] > curves["median_rank"][-1]
    assert curves["copies_needed"][0] in COPIES
    again = impact(encoder, tokens=ids, intrusion=path, settings=SETTINGS, out=tmp_path / "out")
    assert again.intrusion.equals(found.intrusion)
    assert found.effects.is_empty()


def test_copies_needed_is_null_where_32_do_not_suffice():
    outcomes = np.zeros((2, 4, 2 * len(COPIES)))
    outcomes[0, :2, 3:] = 1
    assert copies_needed(outcomes) == [4, None]


def test_no_hits_of_benign_copies_make_no_ratio():
    outcomes = np.zeros((2, 5, 2 * len(COPIES)))
    outcomes[0, :, 2] = 1
    conditions = [Condition(kind, (Token(1, "a"),), 0, 0) for kind in (Kind.STICKY, Kind.BENIGN)]
    rows = intrusion_summary(outcomes, conditions, SETTINGS, "t")
    assert {row["ratio"] for row in rows} == {None}
    assert rows[2]["hits_sticky"] == 1


def test_the_summary_equals_plain_loops():
    generator = np.random.default_rng(0)
    kinds = (Kind.STICKY, Kind.STICKY, Kind.BENIGN, Kind.BENIGN, Kind.BENIGN)
    conditions = [Condition(kind, (Token(place, "a"),), 0, 0) for place, kind in enumerate(kinds)]
    outcomes = generator.integers(1, 50, size=(len(kinds), 9, 2 * len(COPIES))).astype(float)
    for place, row in enumerate(intrusion_summary(outcomes, conditions, SETTINGS, "t")):
        assert (row["copies"], row["documents"]) == (COPIES[place], 9)
        for kind in (Kind.STICKY, Kind.BENIGN):
            own = [outcomes[k] for k, each in enumerate(kinds) if each is kind]
            assert row[f"hits_{kind.value}"] == pytest.approx(
                np.mean([each[:, place].mean() for each in own])
            )
            medians = [np.median(each[:, len(COPIES) + place]) for each in own]
            assert row[f"rank_{kind.value}"] == pytest.approx(np.mean(medians))
        assert row["ratio"] == pytest.approx(row["hits_sticky"] / row["hits_benign"])
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]


def test_a_beir_folder_brings_its_queries(tmp_path):
    folder = files.beir(tmp_path / "beir")
    corpus = load_search_corpus(folder, 0)
    assert (len(corpus.queries), len(corpus.documents)) == (20, 60)


def test_the_bundled_sentences_are_split_into_queries_and_documents():
    corpus = load_search_corpus("bundled", 0)
    assert len(corpus.queries) == 200
    assert not set(corpus.queries) & set(corpus.documents)
    assert corpus == load_search_corpus("bundled", 0)
    assert corpus != load_search_corpus("bundled", 1)


def test_few_documents_are_refused(tmp_path):
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(tiny.sentences(24)), encoding="utf-8")
    with pytest.raises(InputError, match="more than 20 documents"):
        load_search_corpus(path, 0)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"does not contain corpus\.jsonl and queries\.jsonl"):
        load_search_corpus(tmp_path / "folder", 0)


def test_the_command_prints_the_hits(planted_folder, tmp_path):
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(tiny.sentences(90)), encoding="utf-8")
    options = ["--tokens", "!", "--intrusion", path, "--repetitions", 1, "--out", tmp_path / "out"]
    result = planted.command("impact", planted_folder, *options)
    assert result.exit_code == 0, result.stderr
    assert "Queries with a random document of documents in their" in result.stdout
