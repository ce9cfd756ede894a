"""The first things that people type: each works, or is one error; and what is shown of the objects."""

import shutil
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest

import planted
import stickytoken
import tiny
import word_bag
from naming import naming, says
from stickytoken.data import SentencePair
from stickytoken.errors import InputError

TEXTS = tiny.sentences(60)
QUICK = stickytoken.ExplainSettings(benign=3, carriers=2, attribution=False)
# One value of every kind that goes wrong in a way of its own.
WRONG = {
    "None": None,
    "fraction": 2.5,
    "missing path": Path("no/such/place"),
    "null character": "a\0b",
    "list with None": [None],
    "frame": pl.DataFrame({"text": ["a"], "id": [1]}),
    "object": object(),
}
# What is a proper value of an argument after all.
NONE = frozenset({"None"})
A_FOLDER = frozenset({"None", "missing path"})
PROPER = {
    "detect": {
        **dict.fromkeys(("tokens", "sample", "sentences", "pairs", "settings", "method", "seed"), NONE),
        "out": A_FOLDER,
    },
    "probe": dict.fromkeys(("sentences", "settings", "method", "pairs"), NONE),
    "explain": {
        **dict.fromkeys(("sentences", "run", "settings"), NONE),
        "texts": frozenset({"None", "null character"}),
        "out": A_FOLDER,
    },
    "report": dict.fromkeys(("format", "out", "explanations"), NONE),
    "load_sentences": {"source": NONE},
}


def assert_refuses(function, name, argument):
    """Call a function with every wrong value of an argument; each is one line that says what to do."""
    for label, value in WRONG.items():
        if label in PROPER.get(name, {}).get(argument, ()):
            continue
        with pytest.raises(stickytoken.StickyTokenError) as error:
            function(value)
        text = str(error.value)
        assert "\n" not in text, label
        assert 10 < len(text) < 500, label


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


DETECTED = {"sentences": TEXTS, "settings": planted.SMALL, "tokens": [60], "out": "run"}
PROBED = {"tokens": ["river"], "sentences": TEXTS, "settings": planted.SMALL}
EXPLAINED = {"tokens": ["river"], "sentences": TEXTS, "settings": QUICK}
# A function, the arguments that it needs beside the encoder, and those that are tried with every wrong value.
CALLS = {
    "detect": (DETECTED, "encoder sentences pairs tokens sample settings method seed out engine progress"),
    "probe": (PROBED, "encoder tokens sentences pairs settings method progress"),
    "explain": (EXPLAINED, "encoder tokens run texts sentences settings out progress"),
}


@pytest.mark.parametrize(
    ("function", "name"),
    [(function, name) for function, (_, names) in CALLS.items() for name in names.split()],
)
def test_a_function_refuses_what_it_cannot_use(encoder, function, name):
    arguments = {"encoder": encoder, **CALLS[function][0]}
    if name == "pairs":
        del arguments["sentences"]

    def call(value):
        options = arguments | {name: value}
        return getattr(stickytoken, function)(options.pop("encoder"), **options)

    assert_refuses(call, function, name)


def test_what_is_no_run_is_refused():
    assert_refuses(lambda run: stickytoken.repair(run, out="out"), "repair", "run")
    for function in ("report", "open_run", "open_repair"):
        assert_refuses(getattr(stickytoken, function), function, "run")


@pytest.mark.parametrize("name", ["format", "out", "explanations"])
def test_report_refuses_what_it_cannot_use(small_run, name):
    assert_refuses(lambda value: stickytoken.report(small_run, **{name: value}), "report", name)


def test_the_other_functions_refuse_what_they_cannot_use():
    for function in ("load_sentences", "load_tokenizer", "load_encoder", "analyze_vocabulary"):
        assert_refuses(getattr(stickytoken, function), function, "source")


def test_sentences_may_be_any_list_or_column_of_texts():
    texts = [*TEXTS, None, " "]
    series = pl.Series(texts)
    for column in (
        (text for text in texts),
        series,
        pd.Series([*TEXTS, float("nan"), pd.NA], dtype=object),
        np.array(texts, dtype=object),
        series.to_arrow(),
        datasets.Dataset.from_dict({"text": texts})["text"],
        dict.fromkeys(texts).keys(),
    ):
        corpus = stickytoken.load_sentences(column)
        assert (corpus.texts, corpus.blank) == (tuple(TEXTS), 2)
        assert all(type(text) is str for text in corpus.texts)


def test_a_table_in_place_of_a_column_is_refused_with_its_columns():
    content = {"body": ["a b"], "title": ["c d"]}
    frame = pl.DataFrame(content)
    dataset = datasets.Dataset(frame.to_arrow())
    for table in (frame, frame.lazy(), pd.DataFrame(content), frame.to_arrow(), dataset):
        with pytest.raises(InputError, match=naming("body", "title", "table['body']")):
            stickytoken.load_sentences(table)


@pytest.mark.parametrize("value", [3, True, ["a"]])
def test_a_sentence_that_is_no_text_is_named_by_its_place(value):
    with pytest.raises(InputError, match=naming("sentence 2", repr(value))):
        stickytoken.load_sentences(["a b", value])


@pytest.mark.slow
def test_tokens_may_be_ids_or_texts_or_a_file_in_any_mixture(encoder, write):
    vocabulary = stickytoken.analyze_vocabulary(encoder)
    river, stone = (vocabulary.tokens.index(token) for token in ("river", "stone"))
    for tokens in (
        ["river", stone],
        [np.int64(river), np.str_("stone")],
        pl.Series([river, stone]),
        (token for token in ("river", "stone")),
        write("tokens.txt", "river\nstone\n"),
    ):
        probes = stickytoken.probe(encoder, tokens, sentences=TEXTS, settings=planted.SMALL)
        assert [probe.token_id for probe in probes] == [river, stone]
    (single,) = stickytoken.probe(encoder, "river", sentences=TEXTS, settings=planted.SMALL)
    assert single.token_id == river


@pytest.mark.slow
def test_detect_takes_a_folder_a_name_and_a_loaded_model(bert_folder, encoder, tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "backbone"), normalize=True)
    arguments = {"sentences": TEXTS, "settings": planted.SMALL, "tokens": ["river", "stone"]}
    runs = [
        stickytoken.detect(model_like, **arguments, out=tmp_path / str(number))
        for number, model_like in enumerate((encoder, bert_folder, str(bert_folder), model))
    ]
    assert all(run.tokens.equals(runs[0].tokens) for run in runs)
    (evidence,) = stickytoken.probe(bert_folder, ["river"], sentences=TEXTS, settings=planted.SMALL)
    assert evidence.token == "river"


def test_pairs_may_be_given_as_tuples(encoder, tmp_path):
    tuples = [("the bird sings.", "a quiet river.", value) for value in (0.1, 0.2)]
    settings = stickytoken.StdSettings(scoring_pairs=2, validation_pairs=2, copies=2)
    options = {"tokens": [60], "settings": settings}
    first = stickytoken.detect(encoder, pairs=tuples, out=tmp_path / "1", **options)
    pairs = [SentencePair(*pair) for pair in tuples]
    second = stickytoken.detect(encoder, pairs=pairs, out=tmp_path / "2", **options)
    assert first.record.identity == second.record.identity


@pytest.mark.parametrize(
    "pair", [("a",), ("a", "b", "c"), ("a", 3, 0.5), ("a", " ", 0.5), ("a", "b", 1.5), "abc"]
)
def test_a_pair_that_is_none_is_named_by_its_place(encoder, pair):
    with pytest.raises(InputError, match=naming("pair 2")):
        stickytoken.detect(encoder, pairs=[("a b", "c d", 0.5), pair])


def test_a_report_is_written_as_its_ending_says(small_run, tmp_path):
    for name, start in {"a.md": "# ", "a.json": "{\n"}.items():
        stickytoken.report(small_run, out=tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_what_is_shown_of_an_object_is_short(encoder, small_run):
    vocabulary = stickytoken.analyze_vocabulary(encoder)
    word_bag_encoder = stickytoken.load_encoder(word_bag.WordBag())
    assert repr(word_bag_encoder) == f"<TextEncoder: {word_bag_encoder.name} on cpu>"
    texts = [repr(value) for value in (encoder, small_run, vocabulary, stickytoken.load_sentences())]
    assert texts[0] == "<SentenceTransformerEncoder: " + f"{encoder.name} on cpu>"
    assert texts[1].startswith(f"<Run: {encoder.name}, std, ")
    assert says(texts[1], 95)
    assert says(texts[2], "Vocabulary", 125, 95)
    assert says(texts[3], "Sentences", "1,680", 64)


def test_a_notebook_shows_hostile_tokens_as_text(small_run, tmp_path):
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    folder = shutil.copytree(small_run.path, tmp_path / "run")
    tokens = small_run.tokens.with_columns(
        token=pl.lit(hostile), verdict=pl.lit("sticky"), validation_rate=pl.lit(1.0)
    )
    planted.replace_tokens(folder, tokens)
    page = stickytoken.open_run(folder)._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e" in page
    assert "<script" not in page
    assert page.isprintable()
    assert page.count("<tr>") == 21
    assert says(page, "75 more")
    titles = [
        "id",
        "token",
        "category",
        *(column.title for column in small_run.method.TABLE.listed),
        "verdict",
    ]
    assert "".join(f"<th>{title}</th>" for title in titles) in page


def test_a_run_gives_the_row_of_a_token_by_id_or_text(small_run):
    row = small_run.tokens.row(7, named=True)
    assert small_run.token(np.int64(row["token_id"])).to_dicts() == [row]
    assert row in small_run.token(row["token"]).to_dicts()
    for wrong in (10**6, 1.5, None, True, ["river"]):
        with pytest.raises(InputError):
            small_run.token(wrong)
