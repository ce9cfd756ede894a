"""The first things that people type: each works, or is one error that says what to pass."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import planted
import stickytoken
import tiny
from stickytoken import (
    ExplainSettings,
    StickyTokenError,
    analyze_vocabulary,
    detect,
    explain,
    impact,
    load_encoder,
    load_sentences,
    load_tokenizer,
    open_impact,
    open_repair,
    open_run,
    probe,
    repair,
    report,
)
from stickytoken.data.corpora import SentencePair
from stickytoken.errors import InputError

TEXTS = tiny.sentences(60)
QUICK = ExplainSettings(benign=3, carriers=2, attribution=False)
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
    "impact": {**dict.fromkeys(("run", "settings"), NONE), "out": A_FOLDER},
    "report": dict.fromkeys(("format", "out", "explanations"), NONE),
    "load_sentences": {"source": NONE},
}


def refuses(function, name, argument):
    """Call a function with every wrong value of an argument; each is one line that says what to do."""
    for label, value in WRONG.items():
        if label in PROPER.get(name, {}).get(argument, ()):
            continue
        with pytest.raises(StickyTokenError) as error:
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
MEASURED = {"tokens": ["river"], "tasks": []}
# A function, the arguments that it needs beside the encoder, and those that are tried with every wrong value.
CALLS = {
    detect: (DETECTED, "encoder sentences tokens sample settings method seed out engine progress"),
    probe: (PROBED, "encoder tokens sentences settings method progress"),
    explain: (EXPLAINED, "encoder tokens run texts sentences settings out progress"),
    impact: (MEASURED, "encoder tasks run tokens exclude settings out"),
}


@pytest.mark.parametrize(
    ("function", "name"),
    [
        *[(function, name) for function, (_, names) in CALLS.items() for name in names.split()],
        (detect, "pairs"),
        (probe, "pairs"),
    ],
)
def test_a_function_refuses_what_it_cannot_use(encoder, function, name):
    arguments = {"encoder": encoder, **CALLS[function][0]}
    if name == "pairs":
        del arguments["sentences"]

    def call(value):
        given = arguments | {name: value}
        return function(given.pop("encoder"), **given)

    refuses(call, function.__name__, name)


@pytest.mark.parametrize(
    "opening",
    [report, lambda run: repair(run, out="out"), open_run, open_impact, open_repair],
    ids=["report", "repair", "open_run", "open_impact", "open_repair"],
)
def test_what_is_no_run_is_refused(opening):
    refuses(opening, "run", "")


@pytest.mark.parametrize("name", ["format", "out", "explanations"])
def test_report_refuses_what_it_cannot_use(small_run, name):
    refuses(lambda value: report(small_run, **{name: value}), "report", name)


@pytest.mark.parametrize("function", [load_sentences, load_tokenizer, load_encoder, analyze_vocabulary])
def test_the_other_functions_refuse_what_they_cannot_use(function):
    refuses(function, function.__name__, "source")


def columns():
    import datasets
    import pandas as pd

    texts = [*TEXTS, None, " "]
    series = pl.Series(texts)
    return {
        "generator": (text for text in texts),
        "polars": series,
        "pandas": pd.Series([*TEXTS, float("nan"), pd.NA], dtype=object),
        "numpy": np.array(texts, dtype=object),
        "arrow": series.to_arrow(),
        "datasets": datasets.Dataset.from_dict({"text": texts})["text"],
        "dict keys": dict.fromkeys(texts).keys(),
    }


@pytest.mark.parametrize("kind", list(columns()))
def test_sentences_may_be_any_list_or_column_of_texts(kind):
    found = load_sentences(columns()[kind])
    assert (found.texts, found.blank) == (tuple(TEXTS), 2)
    assert all(type(text) is str for text in found.texts)


def test_a_table_in_place_of_a_column_is_refused_with_its_columns():
    import datasets
    import pandas as pd

    content = {"body": ["a b"], "title": ["c d"]}
    frame = pl.DataFrame(content)
    for table in (
        frame,
        frame.lazy(),
        pd.DataFrame(content),
        frame.to_arrow(),
        datasets.Dataset(frame.to_arrow()),
    ):
        with pytest.raises(InputError, match=r"columns body, title: pass one of them, .* table\['body'\]"):
            load_sentences(table)


@pytest.mark.parametrize("value", [3, True, ["a"]])
def test_a_sentence_that_is_no_text_is_named_by_its_place(value):
    with pytest.raises(InputError, match=r"sentence 2 is .*: pass texts"):
        load_sentences(["a b", value])


def test_tokens_may_be_ids_or_texts_or_a_file_in_any_mixture(encoder, write):
    vocabulary = analyze_vocabulary(encoder)
    river, stone = (vocabulary.tokens.index(token) for token in ("river", "stone"))
    ways = [
        ["river", stone],
        [np.int64(river), np.str_("stone")],
        pl.Series([river, stone]),
        (token for token in ("river", "stone")),
        write("tokens.txt", "river\nstone\n"),
    ]
    found = [
        [each.token_id for each in probe(encoder, tokens, sentences=TEXTS, settings=planted.SMALL)]
        for tokens in ways
    ]
    assert found == [[river, stone]] * len(ways)
    (single,) = probe(encoder, "river", sentences=TEXTS, settings=planted.SMALL)
    assert single.token_id == river


@pytest.mark.slow
def test_detect_takes_a_folder_a_name_and_a_loaded_model(bert_folder, encoder, tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "backbone"), normalize=True)
    arguments = {"sentences": TEXTS, "settings": planted.SMALL, "tokens": ["river", "stone"]}
    runs = [
        detect(each, **arguments, out=tmp_path / str(place))
        for place, each in enumerate((encoder, bert_folder, str(bert_folder), model))
    ]
    assert all(run.tokens.equals(runs[0].tokens) for run in runs)
    (evidence,) = probe(bert_folder, ["river"], sentences=TEXTS, settings=planted.SMALL)
    assert evidence.token == "river"


def test_pairs_may_be_given_as_tuples(encoder, tmp_path):
    tuples = [("the bird sings.", "a quiet river.", value) for value in (0.1, 0.2)]
    settings = stickytoken.StdSettings(scoring_pairs=2, validation_pairs=2, copies=2)
    runs = [
        detect(encoder, pairs=pairs, tokens=[60], settings=settings, out=tmp_path / str(place))
        for place, pairs in enumerate((tuples, [SentencePair(*pair) for pair in tuples]))
    ]
    assert runs[0].record.identity == runs[1].record.identity


@pytest.mark.parametrize(
    "pair", [("a",), ("a", "b", "c"), ("a", 3, 0.5), ("a", " ", 0.5), ("a", "b", 1.5), "abc"]
)
def test_a_pair_that_is_none_is_named_by_its_place(encoder, pair):
    with pytest.raises(InputError, match="pair 2 "):
        detect(encoder, pairs=[("a b", "c d", 0.5), pair])


def test_a_report_is_written_as_its_ending_says(small_run, tmp_path):
    for name, start in {"a.md": "# ", "a.json": "{\n", "a.htm": "<!"}.items():
        report(small_run, out=tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
