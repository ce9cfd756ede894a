"""The index that is audited: its documents, queries, columns and stored vectors."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sentence_transformers import SentenceTransformer

import profiled
import scanned
import stored_vectors
import task_files
import tiny
from audited import SMALL, plain_ranks, stuffed_numbers
from naming import naming, says
from planted import command
from stickytoken import load_encoder, open_run
from stickytoken.audits import _index, audit, wording
from stickytoken.audits._index import Queries
from stickytoken.audits.vectors import StoredVectors
from stickytoken.cleaning import Cleaner
from stickytoken.data.documents import Document
from stickytoken.encoders.fitting import fit_texts
from stickytoken.errors import InputError, ModelError
from stickytoken.insertion import Insertion, Token
from stickytoken.methods.probes import room_for
from stickytoken.search import COPIES, ExactSearch
from stickytoken.settings.audit import AuditSettings
from stickytoken.unit_vectors import Similarity, exact_unit_vectors


def test_a_named_column_must_be_in_the_documents(tampered_run, texts, queries, tmp_path):
    rows = [{"text": text, "source": "web"} for text in texts]
    with pytest.raises(InputError, match=naming("'kind'")):
        audit(tampered_run, rows, queries=queries, source_column="kind", out=tmp_path / "audit")


def test_too_few_queries_are_refused_before_anything_is_encoded(tampered_run, texts, queries, tmp_path):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    encoder.encode_ids = encoder.encode = None  # any use would raise a TypeError
    with pytest.raises(InputError, match=naming(2, 5)):
        audit(
            tampered_run,
            texts,
            queries=queries[:2],
            encoder=encoder,
            settings=SMALL,
            out=tmp_path / "audit",
        )
    assert not (tmp_path / "audit").exists()


@pytest.mark.parametrize("named", ["source", "encoder"])
def test_a_model_that_reads_no_ids_is_refused_before_a_run_of_it_is_made(
    tampered_run, texts, tmp_path, named
):
    def embed(texts):
        pytest.fail("texts are encoded")

    source, options = (embed, {"runs": tmp_path}) if named == "source" else (tampered_run, {"encoder": embed})
    settings = replace(SMALL, insertion="ids")
    with pytest.raises(ModelError, match=naming("'ids'", "'text'")):
        audit(source, texts, settings=settings, progress=pytest.fail, **options)
    assert not list(tmp_path.iterdir())


def test_without_queries_first_sentences_are_taken(tampered_run, texts, tmp_path):
    measured = audit(tampered_run, texts, settings=SMALL, out=tmp_path / "audit")
    assert measured.record.index.queries == 40
    assert says(wording.basis(measured), 40)
    assert measured.result.answers == SMALL.stuffed


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("A boat is on  the river.\nIt sinks.", "A boat is on the river."),
        ("Too short a. A boat is on the river.", None),
        ("ends. " * 3 + "here", None),
        ("word " * 40, " ".join(["word"] * 30)),
        ("河上有一条船。它沉了！", "河上有一条船。"),
        ("川に「船」がある。沈む。", "川に「船」がある。"),
        ("船。川に船がある。", None),
        ("船" * 40, "船" * 30),
        ("มีเรือลำหนึ่งในแม่น้ำ", "มีเรือลำหนึ่งในแม่น้ำ"),
        ("iPhone 手机 很好。", "iPhone 手机 很好。"),
    ],
)
def test_first_sentences_end_as_their_script_ends_them(text, query):
    """In scripts without spaces, characters are counted instead of words."""
    # The second text is too short for a query. Sentences are drawn from half of the documents.
    documents = [Document(number, str(number), each, None) for number, each in enumerate([text, "Short."])]
    drawn = _index._draw_first_sentences(documents, range(2), AuditSettings())
    assert list(drawn.values()) == ([] if query is None else [query])


def test_a_first_sentence_with_copies_is_no_query(tampered_run, texts, tmp_path):
    """It would find the documents that have such copies, as if these pushed them."""
    in_front = [
        f"{scanned.copies()} {text}" if number % 2 else text for number, text in enumerate(texts[:70])
    ]
    measured = audit(tampered_run, in_front, settings=SMALL, out=tmp_path / "audit")
    assert measured.result.with_copies == 35
    assert 0 < measured.record.index.queries < 35  # of 35 random documents, about half have copies
    assert says(measured.record.index.queries_from, measured.record.index.queries)
    changes = [
        change
        for row in measured.documents.iter_rows(named=True)
        for change in [*(row["entered"] or ()), *(row["left"] or ())]
    ]
    asked = {change["query"] for change in changes}
    assert asked
    assert not any(scanned.copies() in query for query in asked)


def test_a_sample_by_judgements_is_not_said_to_be_drawn_by_chance_alone(
    tampered_run, judged_folder, tmp_path
):
    settings = replace(SMALL, documents=70)
    measured = audit(tampered_run, judged_folder, settings=settings, out=tmp_path / "audit")
    (sentence,) = (line for line in wording.limits(measured) if "searched" in line)
    assert says(sentence, 70, 80, "answer a query")


def test_too_few_queries_are_refused(tampered_run, texts, queries, tmp_path):
    with pytest.raises(InputError, match=naming("1 query")):
        audit(tampered_run, texts, queries=queries[:1], settings=SMALL, out=tmp_path / "audit")


def test_documents_that_are_hardly_ever_results_are_refused(tampered_run, texts, queries, tmp_path):
    # As many queries as are enough on average, of which these two documents are the results of fewer.
    settings = replace(SMALL, stuffed=2, seed=43)
    with pytest.raises(InputError, match=naming(2, "queries", "stuffed=8")):
        audit(tampered_run, texts, queries=queries, settings=settings, out=tmp_path / "audit")


def test_queries_with_the_word_are_left_out(tampered_run, texts, queries, tmp_path):
    asking = [f"what is {scanned.STICKY}", *queries]
    measured = audit(tampered_run, texts, queries=asking, settings=SMALL, out=tmp_path / "audit")
    query_counts = dict(measured.tokens.select("token", "queries").iter_rows())
    assert query_counts[scanned.STICKY] == len(asking) - sum(
        scanned.STICKY in query.split() for query in asking
    )


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([f"a river of {number} stones" for number in range(5)], naming(5, 20)),
        (["a river of stone"] * 50, naming(1, 20)),
        ([""] * 40, naming("0 documents")),
    ],
)
def test_too_few_documents_are_refused(tampered_run, texts, said):
    with pytest.raises(InputError, match=said):
        audit(tampered_run, texts, settings=SMALL)


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


def test_compressed_vectors_are_not_compared_with_exact_ones(
    finished, tampered_run, texts, queries, stored, tmp_path
):
    """The documents that receive copies are encoded without copies, too."""
    coarse = stored + 0.001 * np.abs(stored).max() * np.random.default_rng(0).choice([-1, 1], stored.shape)
    saved_by_exact_vectors = finished.result.sequences - measured_sequences(
        tampered_run, texts, queries, stored, tmp_path / "exact"
    )
    saved_by_coarse_ones = finished.result.sequences - measured_sequences(
        tampered_run, texts, queries, coarse.astype(np.float32), tmp_path / "coarse"
    )
    assert saved_by_exact_vectors == len(texts)
    assert saved_by_coarse_ones <= len(texts) - SMALL.stuffed


def measured_sequences(run, texts, queries, vectors, out):
    return audit(run, texts, vectors=vectors, queries=queries, settings=SMALL, out=out).result.sequences


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


@pytest.mark.parametrize(
    ("token", "query", "is_contained"),
    [
        (" Lift", "what is lift?", True),
        ("lift", "a forklift lifts", False),
        ("?", "what is lift?", True),
        ("!", "what is lift?", False),
        ("'s", "The wing's LIFT", True),
        ("天", "今天天气很好", True),
        ("雨", "今天天气很好", False),
        ("ไทย", "ภาษาไทยง่าย", True),
        ("हिन्दी", "क्या यह हिन्दी है", True),
        ("[SEP]", "a [sep] b", True),
        (" ", "what is lift?", False),
    ],
)
def test_a_query_contains_a_token_as_a_whole_word_or_as_any_other_text(token, query, is_contained):
    queries = Queries([query], 1, [frozenset()], [None], "the given list", "first sentences")
    assert queries.mark_those_without(Token(1, token)).tolist() == [not is_contained]


@pytest.mark.parametrize(
    ("token", "query", "is_contained"),
    [
        ("able", "is it áble?", True),
        ("áble", "is it ABLE?", True),
        ("able", "is it cáble?", False),
        ("\N{COMBINING ACUTE ACCENT}", "is it áble?", False),  # the normaliser drops it
    ],
)
def test_a_query_and_a_token_are_compared_as_the_model_reads_them(
    tampered_run, texts, token, query, is_contained
):
    queries = read_as_audited(tampered_run, texts, [query]).queries
    assert queries.mark_those_without(Token(1, token))[0] == (not is_contained)


def test_missing_queries_are_noticed_before_the_model_is_loaded(texts, tmp_path):
    with pytest.raises(InputError, match=naming("typo.jsonl")):
        audit("no/such-model", texts, queries=tmp_path / "typo.jsonl", runs=tmp_path)


@pytest.mark.parametrize("duplicates", [0, 20])
def test_a_query_that_is_a_document_is_left_out_of_its_own_results(tampered_run, texts, tmp_path, duplicates):
    """As in ArguAna, where each query is the beginning of a document with its id."""
    folder = tmp_path / "arguments"
    (folder / "qrels").mkdir(parents=True)
    documents = [*texts, *texts[:duplicates]]
    rows = [{"_id": f"a{number}", "title": "", "text": text} for number, text in enumerate(documents)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    asked = [{"_id": f"a{number}", "text": texts[number]} for number in range(40)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)), "utf-8")
    judgements = [f"a{number}\ta{number + 40}\t1" for number in range(40)]
    lines = ["query-id\tcorpus-id\tscore", *judgements]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    run = open_run(tampered_run)
    encoder = load_encoder(run.model_name, device="cpu")
    index = _index.read_index(folder, None, None, None, encoder, SMALL, Cleaner.from_run(run))
    own = {number: {number} for number in range(40)}
    for number in range(duplicates):
        own[number].add(len(texts) + number)
    assert index.queries.own_documents == own
    audited = audit(tampered_run, folder, settings=SMALL, out=tmp_path / "audit")
    # A query would find itself, or its duplicate, first of all.
    model = SentenceTransformer(str(run.model_name), device="cpu")
    vectors = model.encode(texts, normalize_embeddings=True)[[*range(len(texts)), *range(duplicates)]]
    similarities = vectors[:40] @ vectors.T
    for query, positions in own.items():
        similarities[query, list(positions)] = -np.inf
    stuffed = [int(document_id[1:]) for document_id in audited.result.stuffed_ids]
    better = (similarities[:, None, :] > similarities[:, stuffed, None]).sum(axis=2)
    is_wrong = better < audited.result.depth
    is_wrong &= np.array([[number != query + 40 for number in stuffed] for query in range(40)])
    assert audited.result.results_without == pytest.approx(is_wrong.sum() / len(stuffed))


def read_as_audited(run, documents, queries=None, vectors=None):
    encoder = load_encoder(open_run(run).model_name, device="cpu")
    cleaner = Cleaner.from_run(run)
    return _index.read_index(documents, queries, None, None, encoder, SMALL, cleaner, vectors)


def test_duplicates_answer_the_same_first_sentence_and_one_of_them_gets_copies(tampered_run, texts, tmp_path):
    documents = [*texts[:30], *texts[:30], *texts[:30], *texts[30:60]]
    index = read_as_audited(tampered_run, documents)
    assert len(set(index.queries.texts)) == len(index.queries.texts) == 30
    for query, answers in zip(index.queries.texts, index.queries.answers, strict=True):
        assert answers == {place for place, text in enumerate(documents) if text.startswith(query)}
    audited = audit(tampered_run, documents, settings=replace(SMALL, stuffed=60), out=tmp_path / "audit")
    stuffed = [documents[int(document_id)] for document_id in audited.result.stuffed_ids]
    assert sorted(stuffed) == sorted(texts[:60])
    assert audited.result.answers == 30
    # Of the documents that are wrong results, none is the one that is searched.
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    is_wrong = 0
    for text in texts[:60]:
        others = [other for other in documents if other != text]
        is_asked = [not text.startswith(query) for query in index.queries.texts]
        ranks = plain_ranks(encoder, [text, *others], index.queries.texts, 0, text)
        is_wrong += ((np.array(ranks) <= audited.result.depth) & is_asked).sum()
    assert audited.result.results_without == pytest.approx(is_wrong / 60)


def test_a_judged_folder_may_be_compressed(tampered_run, judged_folder, tmp_path):
    folder = Path(shutil.copytree(judged_folder, tmp_path / "judged"))
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        task_files.compress(folder / name)
    index = read_as_audited(tampered_run, folder)
    plain = read_as_audited(tampered_run, judged_folder)
    assert (index.record.documents, index.queries.texts) == (plain.record.documents, plain.queries.texts)
    assert index.queries.answers == plain.queries.answers


def test_duplicates_of_a_judged_answer_are_answers(tampered_run, judged_folder, texts, tmp_path):
    folder = tmp_path / "judged"
    shutil.copytree(judged_folder, folder)
    more = [
        json.dumps({"_id": f"e{number}", "title": "", "text": texts[number]}) for number in range(0, 80, 2)
    ]
    with (folder / "corpus.jsonl").open("a") as corpus:
        corpus.write("\n" + "\n".join(more))
    answers = read_as_audited(tampered_run, folder).queries.answers
    assert answers[0] == {0, 1, 2, 80, 81}  # d0 to d2, e0 and e2
    assert answers[1] == {3, 4, 5, 82}


def write_judged(folder, texts, queries):
    """Write a folder in the BEIR layout. Its documents are numbered from 1, and each answers one query."""
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": str(number), "title": "", "text": text} for number, text in enumerate(texts, start=1)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    asked = [{"_id": f"q{number}", "text": query} for number, query in enumerate(queries, start=1)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)), "utf-8")
    judgements = [f"q{number}\t{number}\t1" for number in range(1, len(queries) + 1)]
    lines = ["query-id\tcorpus-id\tscore", *judgements]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder / "queries.jsonl"


def test_judgements_of_other_documents_with_the_same_ids_are_refused(tampered_run, texts, queries, tmp_path):
    asked = write_judged(tmp_path / "judged", texts, queries)
    with pytest.raises(InputError, match=naming(40, "'1'", tmp_path / "judged" / "corpus.jsonl")):
        read_as_audited(tampered_run, texts, asked)  # the ids of a list are counted from 0
    in_html = [{"id": number, "text": f"<p>{text.upper()}</p>"} for number, text in enumerate(texts, start=1)]
    index = read_as_audited(tampered_run, in_html, asked)
    assert index.queries.answers == [{position} for position in range(40)]


def test_what_is_left_out_of_judgements_is_noted(judged, tampered_run, texts, judged_folder):
    assert any(says(note, 20, 40, "queries") for note in judged.record.notes)
    assert "20 of 40" in wording.setup(judged)
    index = read_as_audited(tampered_run, texts, judged_folder / "queries.jsonl")
    (note,) = index.notes
    assert says(note, "judgements", "'d0'", "'0'")
    assert index.queries.asked == 40


def test_all_chunks_with_the_id_of_an_answer_are_answers(tampered_run, texts, queries, tmp_path):
    whole = [f"{texts[number]} {texts[number + 1]}" for number in range(0, 80, 2)]
    asked = write_judged(tmp_path / "judged", whole, queries)
    chunks = [{"doc_id": number // 2 + 1, "text": text} for number, text in enumerate(texts)]
    index = read_as_audited(tampered_run, chunks, asked)
    assert index.queries.answers == [{2 * query, 2 * query + 1} for query in range(40)]


def test_vectors_by_id_are_refused_if_several_documents_have_the_same_id(tampered_run, texts, stored):
    by_id = StoredVectors("vectors.parquet", stored, {str(row): row for row in range(len(texts))})
    rows = [{"id": row, "text": text} for row, text in enumerate(texts)]
    with pytest.raises(InputError, match=naming("vectors.parquet", "'5'")):
        read_as_audited(tampered_run, [*rows, {"id": 5, "text": "another river"}], vectors=by_id)
    twice = [*rows, {"id": 5, "text": texts[5]}]  # one vector is that of both
    assert len(read_as_audited(tampered_run, twice, vectors=by_id).document_numbers) == 81


@pytest.mark.parametrize(
    ("column", "other_column", "is_noted"),
    [("query", "passage", True), ("question", "text", True), ("search", "source", False)],
)
def test_queries_are_read_from_their_usual_column(
    tampered_run, texts, queries, tmp_path, column, other_column, is_noted
):
    path = tmp_path / "clicks.jsonl"
    rows = [{other_column: text, column: query} for query, text in zip(queries, texts, strict=False)]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    index = read_as_audited(tampered_run, texts, path)
    assert list(index.queries.texts[: index.queries.asked]) == queries
    assert says(index.record.queries_from, path.name, column)
    assert [says(note, column, other_column) for note in index.notes] == [True] * is_noted


def test_an_unknown_column_of_queries_is_to_be_renamed(tampered_run, texts, queries):
    rows = [{"asked": query, "passage": text} for query, text in zip(queries, texts, strict=False)]
    with pytest.raises(InputError, match=naming("'query'", "asked", "passage")):
        read_as_audited(tampered_run, texts, rows)


def test_queries_that_cannot_be_read_are_counted(tampered_run, texts, queries, tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("\n".join([*queries, "café", "naïve"]).encode("latin-1"))
    (note,) = read_as_audited(tampered_run, texts, path).notes
    assert says(note, 2, 42, "line 41")
    path.write_bytes("café".encode("latin-1"))
    with pytest.raises(InputError, match=naming(path, "line 1")):
        read_as_audited(tampered_run, texts, path)


def test_repeated_queries_are_searched_once(tampered_run, texts, queries, tmp_path):
    """They are not independent, so an interval over all of them would be too narrow."""
    in_capitals = [f"  {query.upper()}" for query in queries]  # which the model reads alike
    index = read_as_audited(tampered_run, texts, [*queries, *queries[:5], *in_capitals])
    assert list(index.queries.texts[: index.queries.asked]) == queries
    (note,) = index.notes
    assert says(note, 45, 85)
    asked = write_judged(tmp_path / "judged", texts, [*queries[:20], *queries[:20]])
    index = read_as_audited(tampered_run, asked.parent)
    assert index.queries.texts == queries[:20]
    assert index.queries.answers == [{query, query + 20} for query in range(20)]
    (note,) = index.notes
    assert says(note, 20, 40)


def test_a_first_sentence_that_begins_several_documents_is_no_query(tampered_run, texts):
    greeting = "Dear customer of our house."
    greeted = [f"{greeting}  {text}" if number % 2 else text for number, text in enumerate(texts[:70])]
    index = read_as_audited(tampered_run, greeted)
    answering = frozenset().union(*index.queries.answers)
    assert len(answering) > 30  # the sentences of others are too short
    assert answering < set(range(0, 70, 2))
    with pytest.raises(InputError, match=naming(4, "other document")):
        read_as_audited(tampered_run, [f"{greeting} {text}" for text in texts])


def test_too_few_different_documents_are_refused(tampered_run, texts, tmp_path):
    with pytest.raises(InputError, match=naming("3 documents", 20)):
        audit(tampered_run, texts[:3] * 20, settings=SMALL, out=tmp_path / "audit")


def test_documents_are_compared_with_themselves_where_they_are_truncated_for_copies(bert_folder, tmp_path):
    """Copies that are written need room, so long documents are truncated further than in the index."""
    encoder = load_encoder(bert_folder, device="cpu")
    run = profiled.detect_profile(encoder, tmp_path / "run", sentences=tiny.sentences(400))
    sentences = tiny.sentences(640)
    documents = [" ".join(sentences[start : start + 15]) for start in range(0, 600, 15)]
    queries = sentences[600:]
    settings = replace(SMALL, insertion=Insertion.TEXT)
    rows = [{"id": f"d{number}", "text": text} for number, text in enumerate(documents)]
    audited = audit(run, rows, queries=queries, settings=settings, out=tmp_path / "audit")
    room = room_for(encoder, Insertion.TEXT, COPIES)
    whole = [text.text for text in fit_texts(encoder, documents, 0, Insertion.TEXT, "")]
    cut = [text.text for text in fit_texts(encoder, documents, room, Insertion.TEXT, "")]
    assert whole != cut
    units = [exact_unit_vectors(encoder.encode(texts)) for texts in (queries, whole, cut)]
    limits = ExactSearch(units[0], units[1], Similarity.COSINE).limits(range(40), audited.result.depth)
    stuffed = stuffed_numbers(audited)
    is_result = (units[0] @ units[2].T > limits)[:, stuffed]
    assert audited.result.results_without == pytest.approx(is_result.sum() / len(stuffed))
