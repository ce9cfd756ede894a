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
    copies_needed,
    intrusion_summary,
    load_search_corpus,
)
from stickytoken.impacts.statistics import Condition, Kind, prepare, probe
from stickytoken.insertion import Insertion, Token

SETTINGS = replace(files.FEW, seeds=1)


@pytest.fixture(scope="module")
def encoder():
    return files.planted_encoder()


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "documents.txt"
    path.write_text("\n".join(tiny.sentences(90)), encoding="utf-8")
    return path


def unit(vectors):
    vectors = vectors.astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_ranks_are_those_of_a_slow_plain_search(encoder, documents, tmp_path):
    sticky = Token(files.token_id(encoder, planted.PLANTED), planted.PLANTED)
    found = impact(encoder, tokens=[sticky.id], intrusion=documents, settings=SETTINGS, out=tmp_path / "out")
    corpus = load_search_corpus(documents, SETTINGS.seed)
    condition = Condition(Kind.STICKY, (sticky,), 0, SETTINGS.seed)
    carriers = prepare(encoder, corpus.documents, 0, Insertion.IDS, "t")
    queries, clean = unit(encoder.encode(corpus.queries)), unit(encoder.encode(corpus.documents))
    drawn = np.random.default_rng([SETTINGS.seed, len(clean)]).permutation(len(clean))[:50]
    for row in found.intrusion_curves.filter(kind="named").iter_rows(named=True):
        hits, ranks = [], []
        for place in drawn:
            edited = probe(SETTINGS, carriers[place], condition, row["copies"])
            pushed = clean.copy()
            pushed[place] = unit(encoder.encode_ids([edited]))[0]
            similarities = queries @ pushed.T
            own = similarities[:, [place]]
            rank = 1 + (np.delete(similarities, place, axis=1) > own).sum(axis=1)
            hits.append((rank <= TOP).sum())
            ranks.append(np.median(rank))
        assert row["hits"] == pytest.approx(np.mean(hits))
        assert row["median_rank"] == pytest.approx(np.median(ranks))


def test_a_sticky_token_pushes_documents_up_and_a_benign_one_does_not(encoder, documents, tmp_path):
    ids = [files.token_id(encoder, planted.PLANTED)]
    found = impact(encoder, tokens=ids, intrusion=documents, settings=SETTINGS, out=tmp_path / "out")
    rows = {row["copies"]: row for row in found.intrusion.to_dicts()}
    assert set(rows) == set(COPIES)
    assert rows[0]["hits_sticky"] == rows[0]["hits_benign"]
    assert rows[0]["ratio"] == 1
    assert rows[8]["ratio_low"] > 1.5
    assert rows[0]["rank_sticky"] == rows[0]["rank_benign"] > rows[8]["rank_sticky"]
    curves = found.intrusion_curves.filter(kind="named").sort("copies")
    assert curves["median_rank"][0] > curves["median_rank"][-1]
    assert curves["copies_needed"][0] in COPIES
    assert found.effects.is_empty()


def test_copies_needed_is_null_where_32_do_not_suffice():
    hits = np.zeros((2, 4, len(COPIES)))
    hits[0, :2, 3:] = 1
    assert copies_needed(hits) == [4, None]


def test_the_summary_equals_plain_loops():
    generator = np.random.default_rng(0)
    kinds = (Kind.STICKY, Kind.STICKY, Kind.BENIGN, Kind.BENIGN, Kind.BENIGN)
    conditions = [Condition(kind, (Token(place, "a"),), 0, 0) for place, kind in enumerate(kinds)]
    hits, ranks = generator.integers(1, 50, size=(2, len(kinds), 9, len(COPIES))).astype(float)
    hits[2:, :, -1] = 0
    *rows, last = intrusion_summary(hits, ranks, conditions, SETTINGS, "t")
    for place, row in enumerate(rows):
        assert (row["copies"], row["documents"]) == (COPIES[place], 9)
        for kind in (Kind.STICKY, Kind.BENIGN):
            own = [k for k, each in enumerate(kinds) if each is kind]
            assert row[f"hits_{kind.value}"] == pytest.approx(
                np.mean([hits[k, :, place].mean() for k in own])
            )
            medians = [np.median(ranks[k, :, place]) for k in own]
            assert row[f"rank_{kind.value}"] == pytest.approx(np.mean(medians))
        assert row["ratio"] == pytest.approx(row["hits_sticky"] / row["hits_benign"])
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    # Without hits of benign copies, there is no ratio.
    assert (last["hits_benign"], last["ratio"], last["ratio_high"]) == (0, None, None)


def test_queries_are_those_of_a_folder_or_drawn_by_the_seed(tmp_path):
    corpus = load_search_corpus(files.beir(tmp_path / "beir"), 0)
    assert (len(corpus.queries), len(corpus.documents)) == (20, 60)
    bundled = load_search_corpus("bundled", 0)
    assert len(bundled.queries) == 200
    assert not set(bundled.queries) & set(bundled.documents)
    assert bundled == load_search_corpus("bundled", 0) != load_search_corpus("bundled", 1)


def test_few_documents_are_refused(tmp_path):
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(tiny.sentences(24)), encoding="utf-8")
    with pytest.raises(InputError, match="more than 20 documents"):
        load_search_corpus(path, 0)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"does not contain corpus\.jsonl and queries\.jsonl"):
        load_search_corpus(tmp_path / "folder", 0)


def test_the_command_prints_the_hits(planted_folder, documents, tmp_path):
    options = ["--tokens", "!", "--intrusion", documents, "--set", "repetitions=1", "--out", tmp_path / "out"]
    result = planted.command("impact", planted_folder, *options)
    assert result.exit_code == 0, result.stderr
    assert "Queries with a random document of documents in their" in result.stdout
