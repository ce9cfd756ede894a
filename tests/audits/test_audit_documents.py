"""Documents that have copies already, ranked with and without them."""

from dataclasses import replace

import numpy as np
import pytest

import profiled
import scanned
from audited import SMALL, TOP, WORDS, plain_ranks
from naming import naming, says
from stickytoken import Cleaner, load_encoder, open_run
from stickytoken.audits import audit, wording
from stickytoken.audits._copies import pair_texts
from stickytoken.cleaning.rules import text_digest
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion


def test_documents_with_copies_now_are_ranked_with_them_and_without(finished, tampered_run, texts, queries):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    assert finished.documents["number"].sort().to_list() == [70, 71, 72, 73]
    assert finished.result.with_copies == 4
    assert sum(finished.result.causes.values()) == 4
    for row in finished.documents.iter_rows(named=True):
        document_number = row["number"]
        as_it_is = plain_ranks(encoder, texts, queries, document_number, texts[document_number])
        cleaned = Cleaner.from_run(tampered_run).without_findings(texts[document_number])
        without = plain_ranks(encoder, texts, queries, document_number, cleaned)
        assert row["mean_rank"] == pytest.approx(np.mean(as_it_is))
        assert row["hits"] == (np.array(as_it_is) <= TOP).sum()
        assert row["mean_rank_without"] == pytest.approx(np.mean(without))
        assert row["change"] == row["hits"] - row["hits_without"]
        ranked = zip(queries, as_it_is, without, strict=True)
        changes = [
            {"query": query, "rank": rank, "rank_without": rank_without}
            for query, rank, rank_without in ranked
            if (rank <= TOP) != (rank_without <= TOP)
        ]
        changes.sort(key=lambda change: -abs(change["rank"] - change["rank_without"]))
        assert row["entered"] == [change for change in changes if change["rank"] <= TOP]
        assert row["left"] == [change for change in changes if change["rank"] > TOP]
        assert row["copies_read"] is True
        changes = np.array(as_it_is) - np.array(without)
        assert (row["better"], row["worse"]) == ((changes < 0).sum(), (changes > 0).sum())
    assert (finished.documents["change"] > 0).any()


@pytest.mark.parametrize("indexed", [82, 60])
def test_identical_documents_with_copies_do_not_push_each_other_out(
    tampered_run, texts, queries, tmp_path, indexed
):
    spam = texts[70]
    settings = replace(SMALL, documents=indexed)
    several = audit(
        tampered_run,
        [*texts[:70], *[spam] * 12],
        queries=queries,
        settings=settings,
        out=tmp_path / "several",
    )
    columns = ("hits", "hits_without", "mean_rank", "mean_rank_without")
    assert several.documents.height == 12
    ((hits, *others),) = several.documents.select(columns).unique().rows()
    if indexed == 82:  # otherwise, the index is a sample, and some of the twelve are not in it
        once = audit(
            tampered_run, [*texts[:70], spam], queries=queries, settings=settings, out=tmp_path / "once"
        )
        assert once.documents.select(columns).rows() == [(hits, *others)]
    assert hits > others[0]


def test_a_document_of_nothing_but_copies_is_ranked_as_it_is(tampered_run, texts, queries, tmp_path):
    documents = [*texts[:70], " ".join(["[MASK]"] * 8)]
    asked = [*queries, "[MASK] or [MASK]", "[MASK] and [MASK]"]
    measured = audit(tampered_run, documents, queries=asked, settings=SMALL, out=tmp_path / "audit")
    (row,) = measured.documents.to_dicts()
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    ranks = plain_ranks(encoder, documents, asked, 70, documents[70])
    entered = {query: rank for query, rank in zip(asked, ranks, strict=True) if rank <= TOP}
    assert len(entered) > 1
    assert {change["query"]: change["rank"] for change in row["entered"]} == entered
    assert {change["rank_without"] for change in row["entered"]} == {None}
    assert (row["hits"], row["hits_without"], row["change"]) == (len(entered), 0, len(entered))
    assert row["mean_rank"] == pytest.approx(np.mean(ranks))
    assert (row["left"], row["mean_rank_without"], row["worse"]) == ([], None, None)
    assert row["copies_read"] is True
    assert (measured.result.ranked, wording.answer(measured).word) == (1, "Yes")
    (sentence,) = [line for line in wording.document_conclusions(measured) if line.startswith("In top 10s")]
    best_rank = min(entered.values())
    assert says(sentence, f"1 gains {len(entered)}", f"rank {best_rank} for")


@pytest.mark.parametrize("option", ["allow", "known"])
def test_copies_that_were_accepted_are_no_copies(finished, tampered_run, texts, queries, tmp_path, option):
    path = tmp_path / "accepted.txt"
    entries = {"allow": [scanned.STICKY], "known": map(text_digest, texts[70:74])}
    path.write_text("\n".join(entries[option]), "utf-8")
    measured = audit(tampered_run, texts, queries=queries, settings=SMALL, **{option: path})
    assert measured.result.with_copies == len(measured.documents) == 0
    assert (wording.answer(finished).word, wording.answer(measured).word) == ("Yes", "No")
    assert measured.record.identity != finished.record.identity
    clean, _ = [step.command for step in wording.next_steps(measured)]
    assert clean.startswith("stickytoken clean ")
    assert f"--{option} {path}" in clean


def test_a_file_of_what_is_accepted_is_read_before_the_model(tmp_path, texts):
    for option in ("allow", "known"):
        with pytest.raises(InputError, match=naming(tmp_path / "absent")):
            audit(tmp_path / "model", texts, **{option: tmp_path / "absent"})


@pytest.mark.parametrize(("sentences_before", "are_read"), [(1, True), (8, False)])
def test_copies_beyond_the_input_limit_are_not_read(tampered_run, bert_folder, sentences_before, are_read):
    encoder = load_encoder(bert_folder, device="cpu", max_length=60)
    text = " ".join([*profiled.sentences(sentences_before, WORDS, seed=3), scanned.copies()])
    cleaner = Cleaner.from_run(tampered_run)
    (pair,) = pair_texts({0: text}, cleaner, encoder, Insertion.IDS, "documents")
    assert pair.copies_are_read is are_read


def test_a_document_without_readable_text_costs_no_other_its_ranks(tampered_run, bert_folder):
    encoder = load_encoder(bert_folder, device="cpu")
    zero_width = "\N{ZERO WIDTH SPACE}"
    assert encoder.content_ids([zero_width]) == [[]]
    texts = {3: "the river sings", 5: zero_width, 7: "[SEP] "}
    pairs = pair_texts(texts, Cleaner.from_run(tampered_run), encoder, Insertion.IDS, "documents")
    assert [pair.number for pair in pairs] == [3, 7]
    assert [pair.cleaned is None for pair in pairs] == [False, True]
