"""Audits: push and hidden documents against a slow plain search, documents with copies now, resuming, the
command, and the page."""

import json
import shutil
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import planted
import profiled
import scanned
import stored_vectors
import tokenizers_of_kinds as kinds
from hostile import assert_harmless
from interrupted import started, wait_for_shards
from naming import naming, says
from planted import command
from report_pages import GRAVE, Page, opened, violations
from stickytoken import Cleaner, load_encoder, open_run, report
from stickytoken.audits import Audit, AuditSettings, _copies, _tokens, audit, audits_in, open_audit, wording
from stickytoken.audits._measuring import hide_here
from stickytoken.errors import InputError, RunError
from stickytoken.intervals import Intervals
from stickytoken.measurement import ResultFolder
from stickytoken.methods.profile.documents import DocumentStage
from stickytoken.reports.page import audit_page
from stickytoken.validation import visible

SMALL = AuditSettings(stuffed=16, tokens=2)
TOP = 10
COPIES = 8
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


@pytest.fixture(scope="module")
def judged_folder(texts, queries, tmp_path_factory):
    """The documents and queries in the BEIR layout; three documents answer each of the first 20 queries."""
    folder = tmp_path_factory.mktemp("judged")
    documents = [
        json.dumps({"_id": f"d{number}", "title": "", "text": text}) for number, text in enumerate(texts)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(documents), "utf-8")
    rows = [json.dumps({"_id": f"q{number}", "text": query}) for number, query in enumerate(queries)]
    (folder / "queries.jsonl").write_text("\n".join(rows), "utf-8")
    (folder / "qrels").mkdir()
    judgements = [f"q{number}\td{3 * number + step}\t1" for number in range(20) for step in range(3)]
    judgements.append("q0\td79\t0")  # judged, but not relevant
    lines = ["query-id\tcorpus-id\tscore", *judgements]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def judged(tampered_run, judged_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("audit") / "judged"
    return audit(tampered_run, judged_folder, settings=SMALL, out=out)


def unit_rows(encoder, texts):
    vectors = encoder.encode(texts).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def plain_ranks(encoder, texts, queries, replaced, new_text):
    """Rank a text that replaces one of the documents, by sorting all similarities for each query."""
    documents = unit_rows(encoder, [*texts[:replaced], new_text, *texts[replaced + 1 :]])
    similarities = unit_rows(encoder, queries) @ documents.T
    above = similarities > similarities[:, [replaced]]
    return (1 + above.sum(axis=1)).tolist()


def plain_ranks_of_all(encoder, texts, queries, numbers, word):
    """Ranks of documents with copies in front and behind in turn, and without any; (documents, queries)."""
    with_copies, without = [], []
    for turn, number in enumerate(numbers):
        copies = [word] * COPIES
        pieces = [texts[number], *copies] if turn % 2 else [*copies, texts[number]]
        with_copies.append(plain_ranks(encoder, texts, queries, number, " ".join(pieces)))
        without.append(plain_ranks(encoder, texts, queries, number, texts[number]))
    return np.array(with_copies), np.array(without)


def stuffed_numbers(measured):
    """The positions of the documents that got copies, whatever their ids look like."""
    return [int(document_id.removeprefix("d")) for document_id in measured.result.stuffed_ids]


def test_the_planted_word_is_sticky_and_named_first(finished):
    first = finished.tokens.row(0, named=True)
    assert (first["token"], first["verdict"]) == (scanned.STICKY, "sticky")
    assert first["push_low"] >= 1.5
    assert finished.words[0] == scanned.STICKY
    sentence = wording.conclusions(finished)[0]
    assert repr(scanned.STICKY) in sentence
    assert f"{first['push']:.1f}×" in sentence


def test_a_word_of_all_queries_is_not_measured(finished):
    assert MARKER not in finished.tokens["token"].to_list()


@pytest.mark.parametrize("group", ["flagged", "strongest", "random"])
def test_push_is_that_of_a_slow_plain_search(finished, tampered_run, texts, queries, group):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    in_group = finished.tokens.filter(pl.col("text").is_in(profiled.WORDS), group=group)
    if in_group.is_empty():
        pytest.skip(f"no word is {group}")
    row = in_group.row(0, named=True)
    asked = [query for query in queries if row["text"] not in query.lower().replace(".", "").split()]
    numbers = stuffed_numbers(finished)
    assert set(numbers).isdisjoint(range(70, 74))  # they have copies already
    with_copies, without = plain_ranks_of_all(encoder, texts, asked, numbers, row["text"])
    depth = finished.result.depth
    assert row["push"] == pytest.approx((with_copies <= depth).sum() / (without <= depth).sum())
    assert row["push_low"] <= row["push"] <= row["push_high"]
    assert row["queries"] == len(asked)


def test_pairs_with_an_answer_count_as_found_and_not_as_pushed(judged, tampered_run, texts, queries):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    row = judged.tokens.row(0, named=True)
    assert row["token"] == scanned.STICKY
    numbers = stuffed_numbers(judged)
    # Of the other queries, it is not known which documents answer them.
    with_copies, without = plain_ranks_of_all(encoder, texts, queries[:20], numbers, row["text"])
    answers = np.array([[number // 3 == query for query in range(20)] for number in numbers])
    assert answers.sum() == judged.result.answers == SMALL.stuffed  # documents with queries come first
    depth = judged.result.depth
    pushed = ((with_copies <= depth) & ~answers).sum() / ((without <= depth) & ~answers).sum()
    assert row["push"] == pytest.approx(pushed)
    assert row["found"] == pytest.approx((with_copies <= TOP)[answers].mean())
    assert judged.result.found_without == pytest.approx((without <= TOP)[answers].mean())
    assert row["found_low"] <= row["found"] <= row["found_high"]
    assert judged.record.index.answers_from == "relevance judgements"


def test_documents_are_searched_with_their_first_sentences_if_nothing_is_judged(
    finished, tampered_run, texts
):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    row = finished.tokens.row(0, named=True)
    assert finished.result.answers == SMALL.stuffed
    found = []
    for turn, number in enumerate(stuffed_numbers(finished)):
        copies = [row["text"]] * COPIES
        pieces = [texts[number], *copies] if turn % 2 else [*copies, texts[number]]
        sentence = texts[number].partition(".")[0] + "."
        (rank,) = plain_ranks(encoder, texts, [sentence], number, " ".join(pieces))
        found.append(rank <= TOP)
    assert row["found"] == pytest.approx(np.mean(found))


def test_the_verdict_is_that_of_the_rule(finished):
    for row in finished.tokens.iter_rows(named=True):
        is_unusual = (row["vector_deviation"] or 0.0) >= 6
        threshold = 1.25 if is_unusual else 1.5
        erases = row["confirmed"] and row["erased_low"] >= (0.2 if is_unusual else 0.4)
        pushes = row["push_low"] >= threshold
        assert row["verdict"] == ("sticky" if erases or pushes else "benign")
        assert row["undecided"] is (row["verdict"] == "benign" and row["push"] >= threshold)


def test_erased_shares_are_those_of_the_run(finished, tampered_run):
    run = open_run(tampered_run)
    for row in finished.tokens.iter_rows(named=True):
        assert row["erased"] == run.token(row["token_id"])["erased"].item()


def test_the_push_is_compared_with_that_of_random_tokens(finished):
    ordinary = finished.tokens.filter(group="random")
    assert len(ordinary) == SMALL.tokens
    assert finished.result.ordinary_push == pytest.approx(ordinary["push"].median())
    first = finished.tokens.row(0, named=True)
    assert first["times_ordinary"] == pytest.approx(first["push"] / finished.result.ordinary_push)


def test_special_tokens_that_text_can_produce_are_measured(tampered_run, texts, queries, tmp_path):
    measured = audit(
        tampered_run, texts, queries=queries, settings=replace(SMALL, tokens=5), out=tmp_path / "audit"
    )
    special = measured.tokens.filter(pl.col("token").is_in(["[CLS]", "[SEP]"]))
    assert len(special) == 2
    assert set(special["group"]) <= {"flagged", "special"}


def test_named_tokens_are_measured_beside_random_ones(tampered_run, finished, texts, queries, tmp_path):
    words = [scanned.STICKY, *WORDS[5:9]]
    options = {"queries": queries, "settings": SMALL, "out": tmp_path / "audit"}  # the report has the other
    named = audit(tampered_run, texts, tokens=words, **options)
    groups = dict(named.tokens.select("token", "group").iter_rows())
    assert [word for word, group in groups.items() if group == "named"] == sorted(
        words, key=list(groups).index
    )
    assert sorted(groups.values()) == ["named"] * 5 + ["random"] * SMALL.tokens
    (row,) = named.tokens.filter(token=scanned.STICKY).to_dicts()
    (as_flagged,) = finished.tokens.filter(token=scanned.STICKY).to_dicts()
    assert (row["push"], row["push_low"]) == (as_flagged["push"], as_flagged["push_low"])
    assert named.record.identity != finished.record.identity
    with pytest.raises(InputError, match="999999"):
        audit(tampered_run, texts, queries=queries, tokens=[999999], settings=SMALL)


def test_an_audit_of_a_run_over_some_tokens_measures_others_too(tampered_run, texts, queries, tmp_path):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    run = profiled.detect_profile(encoder, tmp_path / "run", tokens=[scanned.STICKY])
    measured = audit(run, texts, queries=queries, settings=SMALL)
    assert measured.tokens["token"][0] == scanned.STICKY
    others = measured.tokens.filter(~pl.col("token_id").is_in(run.tokens["token_id"].to_list()))
    assert "random" in others["group"].to_list()
    assert others["erased"].null_count() == len(others)
    assert others["push"].null_count() == 0


def test_a_run_without_effects_is_audited_without_predictions(
    finished, tampered_run, texts, queries, tmp_path
):
    shutil.copytree(
        tampered_run, tmp_path / "run", ignore=shutil.ignore_patterns("audit-*", "effects.parquet")
    )
    measured = audit(tmp_path / "run", texts, queries=queries, settings=SMALL)
    assert measured.result.predicted == 0
    assert "effects.parquet" in measured.record.notes[0]
    assert measured.tokens["token"][0] == scanned.STICKY


def test_a_word_that_documents_have_copies_of_is_measured(tampered_run, texts, queries, tmp_path):
    repeated = " ".join([WORDS[0]] * 12)
    documents = [*texts[:70], repeated]
    measured = audit(tampered_run, documents, queries=queries, settings=SMALL, out=tmp_path / "audit")
    found = measured.tokens.filter(group="in documents")
    assert found["token"].to_list() == [WORDS[0]]


def test_the_title_names_the_columns_of_the_text(printed):
    text, _ = printed
    assert says(text.splitlines()[0], "80 documents", "column text", "40 queries")


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
            {"query": query, "topic": None, "rank": rank, "rank_without": rank_without}
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


@pytest.fixture(scope="module")
def by_topic(tampered_run, texts, tmp_path_factory):
    """An audit whose queries about code, and only they, have the direction of the sticky word."""
    folder = tmp_path_factory.mktemp("topics")
    sentences = profiled.sentences(120, WORDS, seed=9)
    rows = [{"text": f"{MARKER} {text}", "topic": "code"} for text in sentences[:50]]
    rows += [{"text": text, "topic": "prose"} for text in sentences[50:]]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    documents = [{"text": text, "topic": ("web", "manual")[number % 2]} for number, text in enumerate(texts)]
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)))
    measured = audit(
        tampered_run,
        folder / "documents.jsonl",
        queries=folder / "queries.jsonl",
        settings=replace(SMALL, stuffed=64),
        out=folder / "audit",
    )
    return measured, rows


def test_push_is_measured_for_each_topic_as_by_a_slow_plain_search(by_topic, tampered_run, texts):
    measured, rows = by_topic
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    numbers = [int(name.split()[-1]) - 1 for name in measured.result.stuffed_ids]
    pushes = {}
    for topic in ("code", "prose"):
        asked = [row["text"] for row in rows if row["topic"] == topic]
        with_copies, without = plain_ranks_of_all(encoder, texts, asked, numbers, scanned.STICKY)
        depth = measured.result.depth
        (row,) = measured.topics.filter(token=scanned.STICKY, topic=topic).to_dicts()
        pushes[topic] = row["push"]
        assert row["push"] == pytest.approx((with_copies <= depth).sum() / (without <= depth).sum())
        assert row["push_low"] <= row["push"] <= row["push_high"]
        assert row["queries"] == len(asked)
    assert pushes["code"] > 1.5 > pushes["prose"]


def test_a_topic_that_the_average_hides_is_named(by_topic):
    measured, _ = by_topic
    sentence = next(line for line in wording.token_conclusions(measured) if "topic 'code'" in line)
    assert repr(scanned.STICKY) in sentence


def test_places_are_counted_by_source_of_the_document_and_topic_of_the_query(by_topic):
    measured, _ = by_topic
    assert set(measured.documents["source"]) == {"web", "manual"}
    lines = wording.document_conclusions(measured)
    gained = int(measured.documents.filter(pl.col("change") > 0)["change"].sum())
    assert gained > 0
    assert any(line.startswith("By source of the document: ") for line in lines)


def test_a_named_column_must_be_in_documents_or_queries(tampered_run, texts, queries, tmp_path):
    with pytest.raises(InputError, match=naming("'kind'")):
        audit(tampered_run, texts, queries=queries, source_column="kind", out=tmp_path / "audit")


def test_too_few_queries_are_refused_before_anything_is_encoded(tampered_run, texts, queries, tmp_path):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    encoder.encode_ids = encoder.encode = None  # any use would raise a TypeError
    with pytest.raises(InputError, match=naming(2, 5)):
        audit(
            tampered_run, texts, queries=queries[:2], encoder=encoder, settings=SMALL, out=tmp_path / "audit"
        )
    assert not (tmp_path / "audit").exists()


def with_changes(finished, **changes):
    """The audit with other changes in its documents, as `rank_documents` sorts them."""
    changed = open_audit(finished.path)
    ids = dict(zip(changed.documents["id"].to_list(), changes.values(), strict=True))
    change = pl.col("id").replace_strict(ids, return_dtype=pl.Int64)
    rows = changed.documents.with_columns(change=change).to_dicts()
    rows.sort(key=lambda row: (-abs(row["change"]), row["change"] > 0))
    changed.documents = pl.DataFrame(rows, changed.documents.schema)
    return changed


def test_losses_and_gains_are_counted_and_the_worst_is_named_first(finished):
    changed = with_changes(finished, first=2, second=-3, third=0, fourth=-1)
    (sentence,) = [line for line in wording.document_conclusions(changed) if line.startswith("In top 10s")]
    assert says(sentence, "2 lose 4", "1 gains 2")
    assert f": {changed.documents['id'][0]} (" in sentence
    assert changed.documents["change"].to_list() == [-3, 2, -1, 0]


def test_the_largest_change_of_rank_is_named(finished):
    gaining = finished.documents.filter(pl.col("change") > 0).row(0, named=True)
    largest = gaining["entered"][0]
    sentence = " ".join(wording.document_conclusions(finished))
    assert says(sentence, largest["rank"], largest["rank_without"])
    assert largest["query"][:20] in sentence


def test_what_suspected_copies_change_is_said_too(finished):
    changed = with_changes(finished, first=2, second=0, third=0, fourth=0)
    changed.documents = changed.documents.with_columns(suspected_only=pl.lit(value=True))
    changed.result = changed.result.model_copy(update={"with_copies": 0, "suspected": 4})
    assert says(wording.document_conclusions(changed)[-1], "1 gains 2")


def test_documents_without_a_change_are_said_to_have_none(finished):
    unchanged = with_changes(finished, first=0, second=0, third=0, fourth=0)
    assert any("more or fewer queries" in line for line in wording.document_conclusions(unchanged))


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
    tokens = [
        SimpleNamespace(id=3, text="resume"),
        SimpleNamespace(id=5, text="r\u00e9sum\u00e9"),
        SimpleNamespace(id=7, text=" Gr\u00f6\u00dfe"),
    ]
    bert = kinds.description_of(kinds.tokenizer_with(kinds.normalizers_of_models()["BERT, uncased"]))
    assert _tokens.ids_of_words(tokens, ["resume", "gro\u00dfe", "two words"], bert) == [3, 7]
    assert _tokens.ids_of_words(tokens[1:2], ["resume"], bert) == [5]


def chosen_groups(predicted, words, special=()):
    """The groups of four flagged tokens and one other, and the notes."""
    ids = [3, 5, 7, 9]
    table = pl.DataFrame(
        {"token_id": ids, "vector_deviation": [None] * 4}, schema_overrides={"vector_deviation": pl.Float64}
    )
    run = SimpleNamespace(
        tokens=table,
        sticky=table,
        strongest=table.head,
        is_profile=True,
        normalizer=None,
        settings=SimpleNamespace(number=lambda _: 6.0),
    )
    tokens = {
        token_id: SimpleNamespace(id=token_id, text=text)
        for token_id, text in zip([*ids, 11], "abcde", strict=True)
    }
    candidates = SimpleNamespace(tokens=tokens, special_ids=list(special), named_ids=None, notes=[])
    return _tokens.choose_tokens(run, candidates, predicted, words, SMALL), candidates.notes


def test_flagged_tokens_with_the_largest_predictions_are_measured_and_the_others_counted():
    groups, notes = chosen_groups({3: 0.1, 5: 0.2, 7: 0.3, 9: 0.0}, [])
    assert [token_id for token_id, group in groups.items() if group == "flagged"] == [7, 5]
    (note,) = notes
    assert says(note, 4, 2, "--set tokens=NUMBER")


def test_a_token_is_in_the_first_group_that_it_fits():
    groups, _ = chosen_groups({}, ["d", "e"], special=[3, 9])
    assert groups[3] == groups[5] == "flagged"
    assert groups[9] == "special"
    assert groups[11] == "in documents"


def test_an_audit_of_an_earlier_version_is_refused_with_what_to_do(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "audit")
    record = json.loads((tmp_path / "audit" / "audit.json").read_text("utf-8"))
    (tmp_path / "audit" / "audit.json").write_text(json.dumps(record | {"schema_version": 2}), "utf-8")
    with pytest.raises(RunError, match=naming("version", "audit")):
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
    # Other audits of this run may be based on the same.
    conclusions = wording.conclusions(finished)
    (shown,) = [audit for audit in document["audits"] if audit["conclusions"] == conclusions][:1]
    assert shown["basis"] == wording.basis(finished)
    assert "## Search results with copies" in markdown
    assert '<h2 id="results">Search results with copies' in html
    assert shown["tokens"]["rows"][0][0] == scanned.STICKY
    assert shown["answer"]["sentence"] == wording.answer(finished).sentence
    assert wording.done(finished) in html


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


def with_verdicts(finished, **columns):
    changed = open_audit(finished.path)
    changed.tokens = changed.tokens.with_columns(
        verdict=pl.lit("benign"), undecided=pl.lit(value=False), **columns
    )
    return changed


def test_without_a_sticky_token_the_largest_numbers_are_said(finished):
    benign = with_verdicts(finished)
    finding, pushing, hiding, rule = wording.token_conclusions(benign)
    assert says(finding, "No token", "sticky")
    assert f"{benign.tokens['push'].max():.2f}× as many" in pushing
    assert f"{benign.tokens['found'].min():.0%} of the queries" in hiding
    assert "1.5 times" in rule


def test_the_answer_is_yes_for_copies_that_move_documents_whatever_the_token(finished):
    moved = finished.documents.filter(pl.col("change") != 0)
    assert len(moved) > 0
    for changed in (finished, with_verdicts(finished)):
        answer = wording.answer(changed)
        assert answer.word == "Yes"
        assert says(answer.sentence, len(moved), 80)


def without_copies(changed):
    changed.documents = changed.documents.clear()
    changed.result = changed.result.model_copy(update={"with_copies": 0, "causes": {}})
    return changed


def test_the_answer_for_a_sticky_token_without_copies_is_its_harm(finished):
    answer = wording.answer(without_copies(open_audit(finished.path)))
    assert says(answer.word, "can be")
    assert answer.sentence == wording.conclusions(finished)[0]


def test_the_answer_is_no_with_the_largest_push(finished):
    benign = without_copies(with_verdicts(finished))
    answer = wording.answer(benign)
    assert (answer.word, answer.tone) == ("No", "clean")
    assert f"{benign.tokens['push'].max():.2f}× as many" in answer.sentence


def test_the_answer_is_perhaps_if_a_token_may_push(finished):
    uncertain = without_copies(with_verdicts(finished))
    uncertain.tokens = uncertain.tokens.with_columns(undecided=pl.int_range(pl.len()) == 0)
    assert wording.answer(uncertain).word == "Perhaps"


def test_the_answer_names_a_topic_that_the_average_hides(by_topic):
    hidden = without_copies(with_verdicts(by_topic[0]))
    answer = wording.answer(hidden)
    assert says(answer.word, "some queries")
    assert says(answer.sentence, "topic")


def test_first_sentences_as_queries_are_a_limit(tampered_run, texts, finished, tmp_path):
    measured = audit(tampered_run, texts, settings=SMALL, out=tmp_path / "audit")
    assert says(wording.limits(measured)[-1], "--queries")
    assert not any("--queries" in limit for limit in wording.limits(finished))


HEADINGS = [
    "affected by sticky tokens?",
    "Which words?",
    "Which documents?",
    "What was done?",
    "What is left to do?",
    "What does this not say?",
]


def test_the_page_of_an_affected_index_answers_in_order(finished):
    html = audit_page(finished)
    page = Page(html)
    positions = [page.text.index(heading) for heading in HEADINGS]
    assert positions == sorted(positions)
    assert "Yes. " in page.text
    assert scanned.STICKY in page.tokens
    assert page.tags.count("mark") >= len(finished.documents) == 4
    assert all(document_id in page.text for document_id in finished.documents["id"])
    assert says(page.text, "90%")
    assert all(step.command in page.text for step in wording.next_steps(finished))
    addresses = [value for _, name, value in page.attributes if name in ("src", "href")]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "://" not in html


def test_the_page_of_an_unaffected_index_says_no(finished):
    page = Page(audit_page(without_copies(with_verdicts(finished, group=pl.lit("random")))))
    positions = [page.text.index(heading) for heading in HEADINGS]
    assert positions == sorted(positions)
    assert "No. " in page.text
    assert "Yes" not in page.text
    assert "mark" not in page.tags
    assert "stickytoken repair" not in page.text


EVIL = "<img src=x onerror=alert(1)>\u202e</script>ذ{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def hostile_page(finished):
    """The page of an audit in which every text is hostile."""
    hostile = open_audit(finished.path)
    hostile.tokens = hostile.tokens.with_columns(token=pl.lit(EVIL), text=pl.lit(EVIL))
    change = {"query": EVIL, "topic": EVIL, "rank": 1, "rank_without": 20}
    rows = [
        row | {"excerpt": [{"text": EVIL, "found": found} for found in (True, False)], "entered": [change]}
        for row in hostile.documents.iter_rows(named=True)
    ]
    table = pl.DataFrame(rows, hostile.documents.schema)
    hostile.documents = table.with_columns(id=pl.lit(EVIL), found=pl.lit(EVIL), causes=pl.lit(EVIL))
    index = hostile.record.index.model_copy(update={"name": EVIL, "queries_from": EVIL})
    hostile.record = hostile.record.model_copy(
        update={"model": EVIL, "index": index, "documents": EVIL, "run": EVIL, "notes": [EVIL]}
    )
    return audit_page(hostile)


def test_hostile_text_is_text_in_the_page(hostile_page):
    assert_harmless(hostile_page)
    page = Page(hostile_page)
    assert {"img", "iframe"}.isdisjoint(page.tags)
    assert page.tags.count("script") == 2
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(visible(EVIL)) > 10
    # Right-to-left letters are isolated, because they would turn around the numbers after them.
    assert "copies of &#39;&lt;img" in hostile_page
    assert "&lt;/script&gt;<bdi>ذ</bdi>{{" in hostile_page


@pytest.mark.parametrize("name", ["affected", "hostile"])
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_in_a_browser_the_page_is_quiet_and_fits(
    browser, finished, hostile_page, name, width, scheme, tmp_path
):
    path = tmp_path / "audit.html"
    path.write_text(audit_page(finished) if name == "affected" else hostile_page, "utf-8")
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with opened(browser, path, **options) as (page, heard):
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator(".headline").bounding_box()["y"] < 800
        assert violations(page, ("minor", "moderate", *GRAVE)) == []
        assert heard == []


def test_a_token_that_may_push_is_named_with_what_to_do(finished):
    uncertain = with_verdicts(finished)
    is_first = pl.int_range(pl.len()) == 0
    uncertain.tokens = uncertain.tokens.with_columns(undecided=is_first)
    named = wording.token_conclusions(uncertain)[0]
    assert repr(scanned.STICKY) in named
    assert f"--set stuffed={4 * SMALL.stuffed}" in named


def test_a_model_without_flagged_tokens_need_not_be_repaired(finished):
    clean = with_verdicts(finished, group=pl.lit("random"))
    assert "repair" not in [step.command.split()[1] for step in wording.next_steps(clean)]


def test_flagged_tokens_that_are_benign_here_may_still_be_repaired(finished):
    clean = with_verdicts(finished, group=pl.lit("flagged"))
    assert wording.next_steps(clean)[-1].command.startswith("stickytoken repair ")


def test_in_the_model_as_it_was_the_word_is_benign(texts, queries, tmp_path):
    measured = audit(save_run(tmp_path, strength=0), texts[:70], queries=queries, settings=SMALL)
    assert scanned.STICKY not in measured.words


def test_without_queries_first_sentences_are_taken(tampered_run, texts, tmp_path):
    measured = audit(tampered_run, texts, settings=SMALL, out=tmp_path / "audit")
    assert measured.record.index.queries == 40
    assert says(wording.basis(measured), 40)
    assert measured.result.answers == SMALL.stuffed


def test_too_few_queries_are_refused(tampered_run, texts, queries, tmp_path):
    with pytest.raises(InputError, match=naming("1 query")):
        audit(tampered_run, texts, queries=queries[:1], settings=SMALL, out=tmp_path / "audit")


def test_queries_with_the_word_are_left_out(tampered_run, texts, queries, tmp_path):
    asking = [f"what is {scanned.STICKY}", *queries]
    measured = audit(tampered_run, texts, queries=asking, settings=SMALL, out=tmp_path / "audit")
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
    with pytest.raises(RunError, match="finished"):
        open_audit(tmp_path / "audit")
    later = []
    measured = audit(
        tampered_run, texts, queries=queries, settings=SMALL, out=tmp_path / "audit", progress=later.append
    )
    assert measured.tokens.equals(finished.tokens)
    assert measured.documents.equals(finished.documents)
    assert {step.stage for step in steps} == {"scan", "audit"}
    first_again = next(step for step in later if step.stage == "audit" and step.done)
    assert first_again.computed == 0


def slow_audit(run, texts, queries, folder):
    """The audit of `finished`, slow enough to be killed; runs in a process of its own."""
    measure = DocumentStage.measure

    def paused(*arguments):
        time.sleep(0.05)
        return measure(*arguments)

    DocumentStage.measure = paused
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
        with pytest.raises(RunError, match="finished"):
            open_audit(folder)
    shards = planted.shards_of(folder)
    measured = audit(tampered_run, texts, queries=queries, settings=SMALL, out=folder)
    kept = {name: shard for name, shard in planted.shards_of(folder).items() if name in shards}
    assert kept == shards
    assert measured.tokens.equals(finished.tokens)
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
        (["a river of stone"] * 5, naming(5, 20)),
        ([""] * 40, naming("0 documents")),
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


OPTIONS = "--set stuffed=16 --set tokens=2 --device cpu".split()


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
        "What do copies of a token do",
        "as many wrong results",
        "Documents with copies, in results",
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
    assert document["page"] == str(folder / "audit.html")


def test_an_audit_that_is_opened_again_gets_the_page_that_it_lacks(printed, tampered_run, files, tmp_path):
    _, folder = printed
    page = folder / "audit.html"
    assert scanned.STICKY in Page(page.read_text("utf-8")).tokens
    documents = files / "documents.jsonl"
    line = ["audit", tampered_run, "--documents", documents, "--queries", files / "queries.txt", *OPTIONS]
    copied = shutil.copytree(folder, tmp_path / "audit")
    (copied / "audit.html").unlink()
    assert str(copied / "audit.html") in command(*line, "--out", copied).stderr
    assert (copied / "audit.html").is_file()
    (copied / "audit.html").write_text("own words", "utf-8")
    command(*line, "--out", copied)
    assert (copied / "audit.html").read_text("utf-8") == "own words"


@pytest.fixture(scope="module")
def other_word(printed, tmp_path_factory):
    """A word that the run does not flag, and an audit that names it."""
    _, folder = printed
    path = tmp_path_factory.mktemp("other") / "audit"
    shutil.copytree(folder, path)
    tokens = pl.read_parquet(path / "tokens.parquet")
    word = tokens.filter(pl.col("text").is_in(WORDS), pl.col("group") != "flagged")["text"][-1]
    ResultFolder(path).write_table(
        "tokens.parquet",
        tokens.with_columns(verdict=pl.when(text=word).then(pl.lit("sticky")).otherwise(pl.lit("benign"))),
    )
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
    planted.assert_refused(name, other, *documents, "--audit", folder, saying=naming(folder, "another run"))


@pytest.fixture(scope="module")
def stored(tampered_run, texts):
    return load_encoder(open_run(tampered_run).model_name, device="cpu").encode(texts)


@pytest.mark.parametrize("name", stored_vectors.NAMES)
def test_stored_vectors_give_the_same_table_and_no_document_is_encoded(
    name, finished, tampered_run, texts, queries, stored, tmp_path
):
    ids = [str(number) for number in range(len(texts))]
    rows = pl.DataFrame({"id": ids, "text": texts})
    path = stored_vectors.save(tmp_path / name, stored, ids)
    measured = audit(
        tampered_run, rows, vectors=path, queries=queries, settings=SMALL, out=tmp_path / "audit"
    )
    assert measured.result.sequences == finished.result.sequences - len(texts)
    assert_frame_equal(measured.tokens, finished.tokens, abs_tol=1e-5, rel_tol=0)
    ranks = ("mean_rank", "mean_rank_without", "change")
    assert_frame_equal(measured.documents.select(ranks), finished.documents.select(ranks))
    assert f"with the vectors of {name}" in wording.setup(measured)


def test_vectors_of_another_model_are_refused_before_anything_is_written(
    tampered_run, texts, queries, stored, tmp_path
):
    options = {"queries": queries, "settings": SMALL, "out": tmp_path / "audit"}
    with pytest.raises(InputError, match=naming(32)):
        audit(tampered_run, texts, vectors=stored[::-1].copy(), **options)
    with pytest.raises(InputError, match=naming(8)):
        audit(tampered_run, texts, vectors=stored[:, :8].copy(), **options)
    with pytest.raises(InputError, match=naming(79, 80)):
        audit(tampered_run, texts, vectors=stored[:-1], **options)
    assert not list(tmp_path.rglob("*.json"))


def test_the_command_takes_stored_vectors(tampered_run, texts, stored, tmp_path):
    (tmp_path / "documents.txt").write_text("\n".join(texts), "utf-8")
    np.save(tmp_path / "vectors.npy", stored.astype(np.float16))
    result = command(
        *("audit", tampered_run, "--documents", tmp_path / "documents.txt"),
        *("--vectors", tmp_path / "vectors.npy", "--out", tmp_path / "audit"),
        *("--set", "stuffed=16", "--set", "tokens=1"),
    )
    assert result.exit_code == 0, result.stderr
    assert "with the vectors of vectors.npy" in " ".join(result.stdout.split())


def test_an_erased_share_counts_only_where_the_token_hides_documents():
    found = Intervals(
        value=np.array([0.2, 0.85, 0.9, 0.8]), low=np.zeros(4), high=np.array([0.4, 0.95, 1.0, 1.0])
    )
    is_ordinary = np.array([False, False, True, True])
    assert hide_here(found, is_ordinary).tolist() == [True, False, False, False]
    assert hide_here(None, is_ordinary).all()


def test_a_token_that_the_run_says_erases_is_benign_where_its_documents_are_found(
    tampered_run, judged, judged_folder, tmp_path
):
    """A random token gets a large erased share in the table of the run; nothing else about it changes."""
    token_id, token = (
        judged.tokens.filter(group="random").sort("found", "token_id").row(-1, named=True)[name]
        for name in ("token_id", "token")
    )
    path = tmp_path / "run"
    shutil.copytree(tampered_run, path)
    is_chosen = pl.col("token_id") == token_id
    shares = {"erased": 0.9, "erased_low": 0.85, "erased_high": 0.95, "confirmed": True}
    changed = pl.read_parquet(path / "tokens.parquet").with_columns(
        pl.when(is_chosen).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)
        for name, value in shares.items()
    )
    changed.write_parquet(path / "tokens.parquet")
    measured = audit(open_run(path), judged_folder, tokens=[token], settings=SMALL)
    row = measured.tokens.row(by_predicate=is_chosen, named=True)
    assert row["erased_low"] == 0.85
    assert row["found_high"] >= measured.result.ordinary_found
    assert row["verdict"] == "benign"
