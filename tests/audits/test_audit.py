"""Audits: shares against a slow plain search, documents with copies now, resuming, and the command."""

import json
import math
import shutil
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

import planted
import profiled
import scanned
import tokenizers_of_kinds as kinds
from interrupted import started, wait_for_shards
from planted import command
from stickytoken import Cleaner, load_encoder, open_run, report
from stickytoken.audits import (
    Audit,
    AuditSettings,
    _copies,
    _stuffing,
    _tokens,
    audit,
    audits_in,
    open_audit,
    wording,
)
from stickytoken.errors import InputError, RunError
from stickytoken.measurement import ResultFolder

SMALL = AuditSettings(copies=(4, 8), stuffed=12, tokens=2, resamples=200)
TOP = 10
# Every query contains this word, and no document does.
MARKER = profiled.WORDS[1]
WORDS = [word for word in scanned.OTHER if word != scanned.STICKY]


def save_run(folder, strength):
    """Save a run of a model whose queries have a direction of their own, as has the sticky word."""
    model = profiled.planted_model(0)
    rows = model[0].embedding.weight.data
    toward_queries = torch.eye(rows.shape[1])[1]
    rows[model.tokenizer.token_to_id(MARKER)] = 2 * toward_queries
    if strength:
        rows[model.tokenizer.token_to_id(scanned.STICKY)] = strength * toward_queries
    model.save(str(folder / "model"))
    encoder = load_encoder(folder / "model", device="cpu")
    return profiled.detect_profile(encoder, folder / "run").path


@pytest.fixture(scope="module")
def tampered_run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("tampered"), strength=2)


@pytest.fixture(scope="module")
def queries():
    return [f"{MARKER} {sentence}" for sentence in profiled.sentences(40, WORDS, seed=9)]


@pytest.fixture(scope="module")
def texts():
    """Eighty documents, four of which have copies of the sticky word."""
    sentences = profiled.sentences(240, WORDS, seed=3)
    texts = [" ".join(sentences[3 * number : 3 * number + 3]) for number in range(80)]
    for planted_number in range(70, 74):
        texts[planted_number] += f" {scanned.copies()}"
    return texts


@pytest.fixture(scope="module")
def finished(tampered_run, texts, queries):
    return audit(tampered_run, texts, queries=queries, settings=SMALL)


def plain_ranks(encoder, texts, queries, replaced, new_text):
    """Rank a text that replaces one of the documents, by sorting all similarities for each query."""
    documents = encoder.encode([*texts[:replaced], new_text, *texts[replaced + 1 :]]).astype(np.float64)
    query_vectors = encoder.encode(queries).astype(np.float64)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    query_vectors /= np.linalg.norm(query_vectors, axis=1, keepdims=True)
    similarities = query_vectors @ documents.T
    above = similarities > similarities[:, [replaced]]
    return (1 + above.sum(axis=1)).tolist()


def test_the_sticky_word_is_named_first(finished):
    first = finished.tokens.row(0, named=True)
    assert (first["token"], first["helps"]) == (scanned.STICKY, True)
    assert finished.words[0] == scanned.STICKY
    sentence = wording.conclusions(finished)[0]
    assert sentence.startswith(f"{scanned.STICKY!r} gets documents into results")
    assert f"{first['share']:.1%} of the queries" in sentence


def test_a_word_of_all_queries_is_not_measured(finished):
    assert MARKER not in finished.tokens["token"].to_list()


@pytest.mark.parametrize("copies", [0, 4, 8])
def test_shares_and_ranks_are_those_of_a_slow_plain_search(finished, tampered_run, texts, queries, copies):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    token = finished.tokens.row(0, named=True)
    queries_without_word = [query for query in queries if scanned.STICKY not in query.lower().split()]
    clean = [number for number in range(80) if not 70 <= number < 74]
    order = np.random.default_rng([SMALL.seed, 80, 3]).permutation(len(clean))
    # The word seems to help the first documents, so only the other ones count.
    second_round = order[SMALL.stuffed : 5 * SMALL.stuffed]
    assert token["token_id"] in finished.result.second_round_tokens
    ranks = []
    for document_number in sorted(clean[number] for number in second_round):
        stuffed = " ".join([texts[document_number], *[token["text"]] * copies])
        ranks += plain_ranks(encoder, texts, queries_without_word, document_number, stuffed)
    (row,) = finished.shares.filter(token_id=token["token_id"], copies=copies).to_dicts()
    assert row["share"] == pytest.approx(np.mean(np.array(ranks) <= TOP), abs=1e-6)
    assert row["mean_rank"] == pytest.approx(np.mean(ranks), abs=1e-6)
    assert row["share_low"] <= row["share"] <= row["share_high"]


def test_a_word_that_documents_have_copies_of_is_measured(tampered_run, texts, queries):
    repeated = " ".join([WORDS[0]] * 12)
    measured = audit(tampered_run, [*texts[:70], repeated], queries=queries, settings=SMALL)
    found = measured.tokens.filter(group="in documents")
    assert found["token"].to_list() == [WORDS[0]]


def test_the_title_names_the_columns_of_the_text(printed):
    text, _ = printed
    assert "80 documents, text from the column text) with 40 queries" in text.splitlines()[0]


def test_ordinary_tokens_are_measured_and_no_copies_change_nothing(finished):
    ordinary = finished.tokens.filter(group="ordinary")
    assert len(ordinary) == SMALL.tokens
    without = finished.shares.filter(copies=0)
    assert (without["rise"] == 0).all()


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
        assert row["rises"] is bool(row["hits"] > row["hits_without"])
        entered = [
            {"query": query, "rank": rank, "rank_without": rank_without}
            for query, rank, rank_without in zip(queries, as_it_is, without, strict=True)
            if rank <= TOP < rank_without
        ]
        entered.sort(key=lambda change: change["rank"] - change["rank_without"])
        assert row["entered"] == entered
        assert row["copies_read"] is True
        changes = np.array(as_it_is) - np.array(without)
        assert (row["better"], row["worse"]) == ((changes < 0).sum(), (changes > 0).sum())
    assert finished.result.rising == finished.documents["rises"].sum() > 0


def test_a_document_that_rises_is_named_with_its_largest_change_of_rank(finished):
    rising = finished.documents.filter("rises").row(0, named=True)
    largest = rising["entered"][0]
    (sentence,) = [line for line in wording.conclusions(finished) if "of more queries" in line]
    assert f"rank {largest['rank']} instead of {largest['rank_without']}" in sentence
    assert largest["query"][:20] in sentence


def test_documents_that_rise_are_listed_first(finished):
    assert finished.documents["rises"].to_list() == sorted(finished.documents["rises"], reverse=True)


@pytest.mark.parametrize(("sentences_before", "are_read"), [(1, True), (8, False)])
def test_copies_beyond_the_input_limit_are_not_read(tampered_run, bert_folder, sentences_before, are_read):
    encoder = load_encoder(bert_folder, device="cpu", max_length=60)
    text = " ".join([*profiled.sentences(sentences_before, WORDS, seed=3), scanned.copies()])
    index = SimpleNamespace(documents=[SimpleNamespace(text=text)], record=SimpleNamespace(name="documents"))
    cleaner = Cleaner.from_run(tampered_run)
    (pair,) = _copies.readable_pairs([0], index, cleaner, encoder, AuditSettings())
    assert pair.copies_are_read is are_read


def test_copies_that_are_not_read_are_named_as_harmless(finished):
    unread = open_audit(finished.path)
    is_first = pl.int_range(pl.len()) == 0
    unread.documents = unread.documents.with_columns(copies_read=~is_first)
    assert any(
        line.startswith("In 1 document (") and "change nothing" in line
        for line in wording.conclusions(unread)
    )


def test_a_word_found_with_accents_or_capitals_is_its_token():
    tokens = pl.DataFrame(
        {"token_id": [3, 5, 7], "decoded": ["resume", "r\u00e9sum\u00e9", " Gr\u00f6\u00dfe"]}
    )
    bert = kinds.normalizers_of_models()["BERT, uncased"]
    run = SimpleNamespace(tokens=tokens, normalizer=kinds.description_of(kinds.tokenizer_with(bert)))
    assert _tokens._ids_of_words(run, ["resume", "gro\u00dfe", "two words"]) == [3, 7]
    run.tokens = tokens.filter(token_id=5)
    assert _tokens._ids_of_words(run, ["resume"]) == [5]


@pytest.mark.parametrize(
    ("shares", "ids", "said"),
    [
        ({3: 0.1, 5: 0.2, 7: 0.3}, [7, 5], "the 2 with the largest predicted shares were"),
        ({}, [3, 5], "2 of them were"),
    ],
)
def test_a_note_says_which_flagged_tokens_were_measured(shares, ids, said):
    tokens = pl.DataFrame({"token_id": [3, 5, 7], "decoded": ["a", "b", "c"], "verdict": ["sticky"] * 3})
    run = SimpleNamespace(tokens=tokens, strongest=tokens.head, normalizer=None)
    notes = []
    groups = _tokens._groups_by_id(run, None, shares, [], SMALL, notes)
    assert [token_id for token_id, group in groups.items() if group == "flagged"] == ids
    (note,) = notes
    assert note.startswith(f"3 tokens are flagged; {said} measured")


def test_a_flagged_token_that_documents_have_copies_of_stays_flagged():
    tokens = pl.DataFrame({"token_id": [3, 5, 7], "decoded": ["a", "b", "c"], "verdict": ["sticky"] * 3})
    run = SimpleNamespace(tokens=tokens, strongest=tokens.head, normalizer=None)
    notes = []
    groups = _tokens._groups_by_id(run, None, {}, ["c"], SMALL, notes)
    assert groups == {3: "flagged", 5: "flagged", 7: "flagged"}
    assert notes == []  # all three are measured, although the limit is two


def test_the_note_counts_flagged_tokens_beyond_the_limit_that_documents_have_copies_of():
    ids = [3, 5, 7, 9]
    decoded = ["a", "b", "c", "d"]
    tokens = pl.DataFrame({"token_id": ids, "decoded": decoded, "verdict": ["sticky"] * 4})
    run = SimpleNamespace(tokens=tokens, strongest=tokens.head, normalizer=None)
    notes = []
    groups = _tokens._groups_by_id(run, None, {}, ["d"], SMALL, notes)
    flagged = [token_id for token_id, group in groups.items() if group == "flagged"]
    assert flagged == [3, 5, 9]
    (note,) = notes
    assert "2 of them were measured, and 1 more because documents contain copies" in note


def test_a_document_that_leaves_a_top_10_and_a_query_without_spaces_are_told():
    change = {"query": "\u5b57" * 80, "rank": 9, "rank_without": 11}
    document = {"id": "d1", "hits": 1, "hits_without": 1, "entered": [change]}
    sentence = wording._gain(document)
    assert "but no longer for 1 query" in sentence
    assert "\u5b57" * 50 + "..." in sentence


def test_an_audit_of_an_earlier_version_is_refused_with_what_to_do(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "audit")
    record = json.loads((tmp_path / "audit" / "audit.json").read_text("utf-8"))
    (tmp_path / "audit" / "audit.json").write_text(json.dumps(record | {"schema_version": 1}), "utf-8")
    with pytest.raises(RunError, match="run `audit` again"):
        open_audit(tmp_path / "audit")


def test_suggested_commands_name_the_column(finished):
    named = open_audit(finished.path)
    named.record = named.record.model_copy(update={"column": "body"})
    commands = [step.command for step in wording.next_steps(named) if "repair" not in step.command]
    assert all("--column body" in command for command in commands)


def test_a_document_without_readable_text_costs_no_other_its_ranks(tampered_run, bert_folder):
    encoder = load_encoder(bert_folder, device="cpu")
    zero_width = "\N{ZERO WIDTH SPACE}"
    assert encoder.content_ids([zero_width]) == [[]]
    documents = [SimpleNamespace(text=text) for text in ("the river sings", zero_width)]
    index = SimpleNamespace(documents=documents, record=SimpleNamespace(name="documents"))
    cleaner = Cleaner.from_run(tampered_run)
    pairs = _copies.readable_pairs([0, 1], index, cleaner, encoder, AuditSettings())
    assert [pair.number for pair in pairs] == [0]


def test_the_report_of_the_run_shows_the_audit(finished, tampered_run):
    markdown = report(tampered_run, format="md")
    html = report(tampered_run, format="html")
    document = json.loads(report(tampered_run, format="json"))
    (shown,) = [audit for audit in document["audits"] if audit["basis"] == wording.basis(finished)][:1]
    assert shown["conclusions"] == wording.conclusions(finished)
    assert "## Search results with copies" in markdown
    assert '<h2 id="results">Search results with copies' in html
    assert shown["tokens"]["rows"][0][0] == scanned.STICKY


def test_what_to_do_names_the_commands_with_this_audit(finished):
    repair, clean, check = [step.command for step in wording.next_steps(finished)]
    assert repair.startswith("stickytoken repair ")
    assert f"--audit {finished.path}" in clean
    assert clean.endswith("--rules-out rules.json")
    assert check.startswith("stickytoken check rules.json --documents ")


def test_without_copies_now_the_rules_are_saved_all_the_same(finished):
    unstuffed = open_audit(finished.path)
    unstuffed.result = unstuffed.result.model_copy(update={"with_copies": 0})
    _, clean, check = [step.command for step in wording.next_steps(unstuffed)]
    assert clean.split()[1:3] == ["clean", unstuffed.record.run]
    assert "--out " not in clean
    assert check.startswith("stickytoken check rules.json --documents ")


def test_in_the_model_as_it_was_the_word_does_not_help(texts, queries, tmp_path):
    measured = audit(save_run(tmp_path, strength=0), texts[:70], queries=queries, settings=SMALL)
    assert scanned.STICKY not in measured.words


def test_without_a_word_that_helps_the_largest_share_is_said(finished):
    clean = open_audit(finished.path)
    clean.tokens = clean.tokens.with_columns(helps=pl.lit(value=False), may_help=pl.lit(value=False))
    best = wording.largest_share(clean)
    assert best["share"] == clean.shares.filter(pl.col("copies") > 0)["share"].max()
    finding, criterion, _, evidence = wording.token_conclusions(clean)
    assert finding.startswith("No word that was measured")
    assert f"{best['share']:.1%} ({best['copies']} copies of {best['token']!r}" in evidence
    assert f"{10 / 80:.1%} (10 of 80 documents)" in evidence
    assert "1.5 times" in criterion


@pytest.mark.parametrize(("share", "ratio"), [(0.23, 2.3), (0.115, 1.15), (0.14999, 1.49)])
def test_a_ratio_is_rounded_down_but_not_below_itself(finished, share, ratio):
    ratios = open_audit(finished.path)
    ratios.tokens = ratios.tokens.with_columns(helps=pl.lit(value=False), may_help=pl.lit(value=False))
    with_copies = pl.col("copies") > 0
    ratios.shares = ratios.shares.with_columns(share=pl.when(with_copies).then(share).otherwise(0.1))
    assert f"{ratio:.2f} times as many" in wording.token_conclusions(ratios)[2]


def test_without_a_word_that_helps_the_closest_one_is_named(finished):
    clean = open_audit(finished.path)
    clean.tokens = clean.tokens.with_columns(helps=pl.lit(value=False), may_help=pl.lit(value=False))
    shares = clean.shares.pivot("copies", index="token_id", values="share")
    shares = shares.join(clean.tokens.filter(pl.col("group") != "ordinary"), on="token_id", how="semi")
    ratios = shares.select(pl.max_horizontal(pl.exclude("token_id", "0")) / pl.col("0")).to_series()
    largest_ratio = math.floor(100 * ratios.filter(ratios.is_finite()).max()) / 100
    closest = wording.token_conclusions(clean)[2]
    assert f"{largest_ratio:.2f} times as many" in closest


def test_a_model_without_flagged_tokens_need_not_be_repaired(finished):
    clean = open_audit(finished.path)
    clean.tokens = clean.tokens.with_columns(group=pl.lit("ordinary"), helps=pl.lit(value=False))
    assert "repair" not in [step.command.split()[1] for step in wording.next_steps(clean)]


def test_flagged_tokens_that_do_not_help_may_still_be_repaired(finished):
    clean = open_audit(finished.path)
    clean.tokens = clean.tokens.with_columns(group=pl.lit("flagged"), helps=pl.lit(value=False))
    last_step = wording.next_steps(clean)[-1]
    assert last_step.command.startswith("stickytoken repair ")
    assert "hide a document" in last_step.purpose


def test_a_word_that_may_help_is_named_with_what_to_do(finished):
    uncertain = open_audit(finished.path)
    uncertain.tokens = uncertain.tokens.with_columns(may_help="helps", helps=pl.lit(value=False))
    uncertain.result = uncertain.result.model_copy(update={"second_round_ids": ("d1",) * 48})
    named, *_, advice, _ = wording.token_conclusions(uncertain)
    assert named.startswith(f"{scanned.STICKY!r} may get documents into results")
    assert "--set stuffed=96" in advice


def test_a_word_that_may_help_is_named_beside_one_that_helps(finished):
    both = open_audit(finished.path)
    is_first = pl.int_range(pl.len()) == 0
    both.tokens = both.tokens.with_columns(helps=is_first, may_help=~is_first)
    first, second, *_ = wording.token_conclusions(both)
    assert "gets documents" in first
    assert "may get documents" in second


# With two documents, intervals of the first round are wide. With this seed, words seem to help.
TWO_DOCUMENTS = AuditSettings(copies=(4,), stuffed=2, tokens=2, resamples=200, seed=1)


@pytest.fixture(scope="module")
def two_rounds(tampered_run, texts, queries):
    return audit(tampered_run, texts, queries=queries, settings=TWO_DOCUMENTS)


def test_a_word_helps_if_the_share_is_large_and_the_interval_above_zero(two_rounds):
    without = dict(two_rounds.shares.filter(copies=0).select("token_id", "share").iter_rows())
    for row in two_rounds.tokens.iter_rows(named=True):
        is_large = row["rise"] > 0 and row["share"] >= 1.5 * without[row["token_id"]]
        counts = is_large and row["group"] != "ordinary"
        assert row["helps"] is (counts and row["rise_low"] > 0)
        assert row["may_help"] is (counts and row["rise_low"] <= 0)


def test_a_word_that_reaches_no_query_is_not_undecided(tampered_run, texts, queries):
    no_document_is_found = replace(TWO_DOCUMENTS, seed=4)
    measured = audit(tampered_run, texts, queries=queries, settings=no_document_is_found)
    without_rise = measured.tokens.filter(share=0, rise=0)
    assert len(without_rise) > 0
    assert not without_rise["may_help"].any()


def test_words_that_seem_to_help_are_measured_again_with_four_times_as_many_documents(two_rounds):
    result = two_rounds.result
    assert len(result.second_round_tokens) > 0
    assert len(result.second_round_ids) == 4 * TWO_DOCUMENTS.stuffed
    assert set(result.second_round_ids).isdisjoint(result.stuffed_ids)
    assert f"again with {len(result.second_round_ids)} other documents" in wording.basis(two_rounds)


def test_the_second_round_replaces_the_shares_of_the_first(two_rounds, tampered_run, texts, queries):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    token_id = two_rounds.result.second_round_tokens[0]
    token = two_rounds.tokens.row(by_predicate=pl.col("token_id") == token_id, named=True)
    asked = [query for query in queries if token["text"].strip() not in query.lower().split()]
    ranks = []
    for document_id in two_rounds.result.second_round_ids:
        number = int(document_id)
        stuffed = " ".join([texts[number], *[token["text"]] * 4])
        ranks += plain_ranks(encoder, texts, asked, number, stuffed)
    (row,) = two_rounds.shares.filter(token_id=token_id, copies=4).to_dicts()
    assert row["share"] == pytest.approx(np.mean(np.array(ranks) <= TOP), abs=1e-6)


def test_without_queries_first_sentences_are_taken(tampered_run, texts):
    measured = audit(tampered_run, texts, settings=SMALL)
    assert measured.record.index.queries == 40
    assert "first sentences of 40" in wording.basis(measured)


def test_queries_with_the_word_are_left_out(tampered_run, texts, queries):
    asking = [f"what is {scanned.STICKY}", *queries]
    measured = audit(tampered_run, texts, queries=asking, settings=SMALL)
    query_counts = dict(measured.tokens.select("token", "queries").iter_rows())
    assert query_counts[scanned.STICKY] == len(asking) - sum(
        scanned.STICKY in query.split() for query in asking
    )


def test_a_finished_audit_is_opened_and_found_in_its_run(finished, tampered_run, texts, queries):
    again = audit(tampered_run, texts, queries=queries, settings=SMALL, progress=pytest.fail)
    assert again.path == finished.path
    audits_found, unread = audits_in(tampered_run)
    assert finished.path in [audit_found.path for audit_found in audits_found]
    assert unread == ()
    assert isinstance(open_audit(finished.path), Audit)


class InterruptionError(Exception):
    pass


def test_an_interrupted_audit_continues_with_the_same_numbers(
    finished, tampered_run, texts, queries, tmp_path
):
    steps = []

    def interrupt(step):
        steps.append(step)
        if step.stage == "audit" and step.done > 0.8 * step.total:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        audit(
            tampered_run, texts, queries=queries, settings=SMALL, out=tmp_path / "audit", progress=interrupt
        )
    with pytest.raises(RunError, match="not finished"):
        open_audit(tmp_path / "audit")
    later = []
    measured = audit(
        tampered_run, texts, queries=queries, settings=SMALL, out=tmp_path / "audit", progress=later.append
    )
    assert measured.tokens.equals(finished.tokens)
    assert measured.shares.equals(finished.shares)
    assert measured.documents.equals(finished.documents)
    assert {step.stage for step in steps} == {"scan", "audit"}
    first_again = next(step for step in later if step.stage == "audit" and step.done)
    assert first_again.computed == 0


def slow_audit(run, texts, queries, folder):
    """The audit of `finished`, slow enough to be killed; runs in a process of its own."""
    compute = _stuffing._StuffingWork.compute

    def paused(*arguments):
        time.sleep(0.05)
        return compute(*arguments)

    _stuffing._StuffingWork.compute = paused
    audit(run, texts, queries=queries, settings=SMALL, out=folder)


@pytest.mark.slow
def test_an_audit_that_is_killed_and_continued_has_the_same_tables(
    finished, tampered_run, texts, queries, tmp_path
):
    folder = tmp_path / "audit"
    for shard_count in (1, 4):
        process = started(slow_audit, tampered_run, texts, queries, folder)
        wait_for_shards(process, folder, shard_count)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        with pytest.raises(RunError, match="not finished"):
            open_audit(folder)
    shards = planted.shards_of(folder)
    measured = audit(tampered_run, texts, queries=queries, settings=SMALL, out=folder)
    kept = {name: shard for name, shard in planted.shards_of(folder).items() if name in shards}
    assert kept == shards
    assert measured.tokens.equals(finished.tokens)
    assert measured.shares.equals(finished.shares)
    assert measured.documents.equals(finished.documents)


def test_a_continued_audit_counts_the_time_of_all_sessions(finished, tampered_run, texts, queries, tmp_path):
    folder = tmp_path / "audit"
    shutil.copytree(finished.path, folder)
    record = json.loads((folder / "audit.json").read_text("utf-8"))
    (folder / "audit.json").write_text(json.dumps(record | {"result": None}), "utf-8")
    (folder / "time.json").write_text('{"seconds": 5000.0}', "utf-8")
    assert audit(tampered_run, texts, queries=queries, settings=SMALL, out=folder).result.seconds > 5000


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a river of stone"] * 5, "to rank the top 10, pass more than 20 documents"),
        ([""] * 40, "0 documents with text"),
    ],
)
def test_too_few_documents_are_refused(tampered_run, texts, said):
    with pytest.raises(InputError, match=said):
        audit(tampered_run, texts, settings=SMALL)


@pytest.fixture(scope="module")
def files(texts, queries, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rows = [json.dumps({"_id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    (folder / "documents.jsonl").write_text("\n".join(rows), "utf-8")
    (folder / "queries.txt").write_text("\n".join(queries), "utf-8")
    return folder


OPTIONS = "--set stuffed=12 --set tokens=2 --set resamples=200 --set copies=8 --device cpu".split()


@pytest.fixture(scope="module")
def printed(tampered_run, files, tmp_path_factory):
    """What the command prints, and the folder of the audit."""
    folder = tmp_path_factory.mktemp("audit") / "audit"
    documents = files / "documents.jsonl"
    line = ["audit", tampered_run, "--documents", documents, "--queries", files / "queries.txt", *OPTIONS]
    result = command(*line, "--out", folder)
    assert result.exit_code == 0, result.stderr
    return result.stdout, folder


def test_the_command_prints_tokens_documents_and_commands_in_this_order(printed):
    text, _ = printed
    expected_parts = [
        "gets documents into results",
        "Queries with a random document",
        "have copies now",
        "What to do",
    ]
    positions = [text.index(expected_part) for expected_part in expected_parts]
    assert positions == sorted(positions)
    assert "d70" in text


def test_json_has_everything(printed, tampered_run, files):
    _, folder = printed
    documents = files / "documents.jsonl"
    line = ["audit", tampered_run, "--documents", documents, "--queries", files / "queries.txt", *OPTIONS]
    document = planted.document(command(*line, "--out", folder, "--format", "json"))
    assert document["tokens"][0]["token"] == scanned.STICKY
    assert len(document["documents_with_copies"]) == 4
    assert document["index"]["documents"] == 80
    assert document["next"][0]["command"].startswith("stickytoken repair")


@pytest.fixture(scope="module")
def other_word(printed, tmp_path_factory):
    """A word that the run does not flag, and an audit that names it."""
    _, folder = printed
    path = tmp_path_factory.mktemp("other") / "audit"
    shutil.copytree(folder, path)
    tokens = pl.read_parquet(path / "tokens.parquet")
    word = tokens.filter(group="ordinary")["text"][0].strip()
    ResultFolder(path).write_table("tokens.parquet", tokens.with_columns(helps=pl.col("text") == word))
    return word, path


@pytest.fixture(scope="module")
def new_documents(other_word, tmp_path_factory):
    """Two documents; the first has scattered copies of the other word."""
    word, _ = other_word
    first, second, third, fourth, fifth = profiled.sentences(5, WORDS, seed=12)
    words = first.split()
    assert word not in f"{first} {second}"
    copies = " ".join(f"{word} {neighbour}" for neighbour in words[:6])
    path = tmp_path_factory.mktemp("new") / "new.txt"
    path.write_text(f"{second} {third} {copies}\n{fourth} {fifth}\n", "utf-8")
    return path


def test_scan_finds_copies_of_a_word_of_the_audit(tampered_run, new_documents, other_word, tmp_path):
    word, folder = other_word
    line = ["scan", tampered_run, new_documents, "--format", "json"]
    without = planted.document(command(*line, "--scan-folder", tmp_path / "without"))
    with_audit = planted.document(command(*line, "--scan-folder", tmp_path / "with", "--audit", folder))
    assert (without["found"], with_audit["found"]) == (0, 1)
    (finding,) = with_audit["found_documents"]
    assert finding["words"][0]["text"] == word


def test_clean_removes_copies_of_a_word_of_the_audit(tampered_run, new_documents, other_word):
    word, folder = other_word
    before = new_documents.read_text("utf-8")
    assert command("clean", tampered_run, new_documents).stdout == before
    cleaned = command("clean", tampered_run, new_documents, "--unsafe-fixes", "--audit", folder)
    assert cleaned.exit_code == 0, cleaned.stderr
    assert cleaned.stdout.split().count(word) == 0 < before.split().count(word)
    assert cleaned.stdout.splitlines()[1] == before.splitlines()[1]


def test_check_fails_on_copies_of_a_word_of_the_audit(tampered_run, new_documents, other_word):
    _, folder = other_word
    sticky_count = len(open_run(tampered_run).sticky)
    line = ["check", tampered_run, "--documents", new_documents, "--max", sticky_count]
    assert command(*line).exit_code == 0
    assert command(*line, "--audit", folder).exit_code == 10


@pytest.mark.parametrize("name", ["scan", "clean", "check"])
def test_an_audit_of_another_run_is_refused(name, printed, new_documents, tmp_path):
    _, folder = printed
    other = save_run(tmp_path, strength=0)
    documents = ["--documents", new_documents] if name == "check" else [new_documents]
    planted.assert_refused(name, other, *documents, "--audit", folder, saying="of another run")
