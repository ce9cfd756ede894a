"""Documents pushed into search results: ranks against a slow reference, and results."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import impact_files as files
import planted
import tiny
from stickytoken.errors import InputError, RunError
from stickytoken.impacts import impact, open_impact
from stickytoken.impacts.statistics import COPIES, TOP, Condition, Kind, prepare, probe
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


def intruded(encoder, source, out):
    sticky = files.token_id(encoder, planted.PLANTED)
    return impact(encoder, tokens=[sticky], intrusion=source, settings=SETTINGS, out=out)


def unit(vectors):
    vectors = vectors.astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def searched(source):
    """The texts of a BEIR folder; of a file, a third are queries instead."""
    if source.is_dir():
        rows = ((source / f"{name}.jsonl").read_text("utf-8").splitlines() for name in ("corpus", "queries"))
        return ([json.loads(row)["text"] for row in each] for each in rows)
    lines = source.read_text("utf-8").splitlines()
    order = np.random.default_rng(SETTINGS.seed).permutation(len(lines))
    return ([lines[place] for place in sorted(part)] for part in (order[30:], order[:30]))


@pytest.mark.parametrize("folder", [False, True])
def test_ranks_are_those_of_a_slow_plain_search(encoder, documents, tmp_path, folder):
    source = files.beir(tmp_path / "beir") if folder else documents
    found = intruded(encoder, source, tmp_path / "out")
    corpus, asked = searched(source)
    sticky = Token(files.token_id(encoder, planted.PLANTED), planted.PLANTED)
    condition = Condition(Kind.STICKY, (sticky,), 0, SETTINGS.seed)
    carriers = prepare(encoder, corpus, 0, Insertion.IDS, "t")
    queries, clean = unit(encoder.encode(asked)), unit(encoder.encode(corpus))
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
    found = intruded(encoder, documents, tmp_path / "out")
    rows = {row["copies"]: row for row in found.intrusion.to_dicts()}
    assert set(rows) == set(COPIES)
    for copies, row in rows.items():
        curves = found.intrusion_curves.filter(copies=copies).group_by("kind")
        own = curves.agg(pl.col("hits", "median_rank").mean()).to_dicts()
        for kind, name in (("sticky", "named"), ("benign", "benign")):
            means = next(each for each in own if each["kind"] == name)
            expected = pytest.approx((means["hits"], means["median_rank"]))
            assert (row[f"hits_{kind}"], row[f"rank_{kind}"]) == expected
        if row["ratio"] is not None:
            assert row["ratio"] == pytest.approx(row["hits_sticky"] / row["hits_benign"])
            assert row["ratio_low"] <= row["ratio"] <= (row["ratio_high"] or np.inf)
    assert rows[0]["ratio"] == 1
    assert rows[8]["ratio_low"] > 1.5
    assert rows[0]["rank_sticky"] == rows[0]["rank_benign"] > rows[8]["rank_sticky"]
    needed = dict(found.intrusion_curves.select("kind", "copies_needed").iter_rows())
    assert needed["named"] in COPIES
    assert needed["benign"] is None  # 32 do not suffice
    assert found.effects.is_empty()


def test_what_cannot_be_searched_is_refused(encoder, tmp_path):
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(tiny.sentences(24)), encoding="utf-8")
    with pytest.raises(InputError, match="16 documents and 8 queries: a top 10 needs more than 20 documents"):
        intruded(encoder, path, tmp_path / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"does not contain corpus\.jsonl and queries\.jsonl"):
        intruded(encoder, tmp_path / "folder", tmp_path / "out")


def test_the_command_searches_the_bundled_sentences_and_prints_the_hits(planted_folder, tmp_path):
    options = ["--tokens", "!", "--intrusion", "bundled", "--set", "repetitions=1", "--out", tmp_path / "out"]
    result = planted.command("impact", planted_folder, *options)
    assert result.exit_code == 0, result.stderr
    assert "Queries with a random document of bundled sentences in their" in result.stdout


@pytest.mark.parametrize(("name", "column"), [("intrusion", "hits_sticky"), ("intrusion_curves", "hits")])
def test_a_measurement_without_its_hits_is_refused(encoder, documents, tmp_path, name, column):
    path = intruded(encoder, documents, tmp_path / "out").path / f"{name}.parquet"
    pl.read_parquet(path).with_columns(pl.lit(None, pl.Float64).alias(column)).write_parquet(path)
    with pytest.raises(RunError, match=f"has an empty value in column '{column}'"):
        open_impact(path.parent)
