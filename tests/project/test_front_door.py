"""The first things that people type: each works, or is one error that says what to pass."""

import subprocess
import sys
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
from stickytoken.corpora.pairs import SentencePair
from stickytoken.errors import InputError

TEXTS = tiny.sentences(60)
QUICK = ExplainSettings(benign=3, carriers=2, attribution=False)
WRONG = {
    "None": None,
    "number": 3,
    "fraction": 2.5,
    "boolean": True,
    "dict": {"a": 1},
    "bytes": b"river",
    "missing path": Path("no/such/place"),
    "name": "no such thing",
    "blank": "",
    "null character": "a\0b",
    "empty list": [],
    "list with None": [None],
    "list with NaN": [float("nan")],
    "list of numbers": [1.5, 2.5],
    "list of lists": [["a"], ["b"]],
    "nested array": np.zeros((2, 2)),
    "scalar array": np.array(3),
    "frame": pl.DataFrame({"text": ["a"], "id": [1]}),
    "lazy frame": pl.LazyFrame({"text": ["a"]}),
    "set": {"a", "unheard"},
    "class": str,
    "function": len,
    "object": object(),
}
# What is a proper value of an argument after all.
PROPER = {
    "detect.tokens": {"None", "number"},
    "detect.sample": {"None", "number", "scalar array"},
    "detect.sentences": {"None"},
    "detect.pairs": {"None"},
    "detect.settings": {"None"},
    "detect.method": {"None"},
    "detect.seed": {"None", "number", "scalar array"},
    "report.format": {"None"},
    "detect.out": {"None", "missing path", "name"},
    "load_encoder.model": {"function"},
    "detect.progress": {"class", "function"},
    "probe.tokens": {"number"},
    "probe.sentences": {"None"},
    "probe.settings": {"None"},
    "probe.method": {"None"},
    "probe.pairs": {"None"},
    "probe.progress": {"class", "function"},
    "explain.tokens": {"number"},
    "explain.texts": {"None", "name", "null character", "set"},
    "explain.sentences": {"None"},
    "explain.run": {"None"},
    "explain.settings": {"None"},
    "explain.out": {"None", "missing path", "name"},
    "explain.progress": {"class", "function"},
    "impact.run": {"None"},
    "impact.settings": {"None"},
    "impact.exclude": {"empty list"},
    "impact.out": {"None", "missing path", "name"},
    "report.out": {"None", "name"},
    "report.explanations": {"None"},
    "load_sentences.source": {"None"},
}


def wrong_values(name):
    return [
        pytest.param(name, value, id=f"{name} {label}")
        for label, value in WRONG.items()
        if label not in PROPER.get(name, ())
    ]


def wrong_arguments(*names):
    return pytest.mark.parametrize(("name", "value"), [each for name in names for each in wrong_values(name)])


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    assert 10 < len(text) < 500


@wrong_arguments("detect.encoder", "probe.encoder", "explain.encoder", "impact.encoder", "load_encoder.model")
def test_what_is_no_model_is_refused(name, value):
    call = {
        "detect": lambda model: detect(model, sentences=TEXTS, settings=planted.SMALL, out="run"),
        "probe": lambda model: probe(model, ["river"], sentences=TEXTS, settings=planted.SMALL),
        "explain": lambda model: explain(model, ["river"], sentences=TEXTS, settings=QUICK),
        "impact": lambda model: impact(model, [], intrusion="bundled", tokens=["river"]),
        "load_encoder": load_encoder,
    }[name.partition(".")[0]]
    with pytest.raises(StickyTokenError) as error:
        call(value)
    one_line(error)


@wrong_arguments(
    "detect.sentences",
    "detect.pairs",
    "detect.tokens",
    "detect.sample",
    "detect.settings",
    "detect.method",
    "detect.seed",
    "detect.out",
    "detect.engine",
    "detect.progress",
)
def test_detect_refuses_what_it_cannot_use(encoder, tmp_path, name, value):
    arguments = {"sentences": TEXTS, "settings": planted.SMALL, "tokens": [60], "out": tmp_path / "run"}
    if name == "detect.pairs":
        del arguments["sentences"]
    with pytest.raises(StickyTokenError) as error:
        detect(encoder, **arguments | {name.partition(".")[2]: value})
    one_line(error)


@wrong_arguments(
    "probe.tokens", "probe.sentences", "probe.pairs", "probe.settings", "probe.method", "probe.progress"
)
def test_probe_refuses_what_it_cannot_use(encoder, name, value):
    arguments = {"tokens": ["river"], "sentences": TEXTS, "settings": planted.SMALL}
    if name == "probe.pairs":
        del arguments["sentences"]
    with pytest.raises(StickyTokenError) as error:
        probe(encoder, **arguments | {name.partition(".")[2]: value})
    one_line(error)


@wrong_arguments(
    "explain.tokens",
    "explain.run",
    "explain.texts",
    "explain.sentences",
    "explain.settings",
    "explain.out",
    "explain.progress",
)
def test_explain_refuses_what_it_cannot_use(encoder, name, value):
    arguments = {"tokens": ["river"], "sentences": TEXTS, "settings": QUICK}
    with pytest.raises(StickyTokenError) as error:
        explain(encoder, **arguments | {name.partition(".")[2]: value})
    one_line(error)


@wrong_arguments(
    "impact.tasks", "impact.run", "impact.tokens", "impact.exclude", "impact.settings", "impact.out"
)
def test_impact_refuses_what_it_cannot_use(encoder, name, value):
    arguments = {"tokens": ["river"], "tasks": []}
    with pytest.raises(StickyTokenError) as error:
        impact(encoder, **arguments | {name.partition(".")[2]: value})
    one_line(error)


@wrong_arguments("report.run", "repair.run", "open_run.path", "open_impact.path", "open_repair.path")
def test_what_is_no_run_is_refused(name, value):
    opening = {
        "report.run": report,
        "repair.run": lambda run: repair(run, out="out"),
        "open_run.path": open_run,
        "open_impact.path": open_impact,
        "open_repair.path": open_repair,
    }[name]
    with pytest.raises(StickyTokenError) as error:
        opening(value)
    one_line(error)


@wrong_arguments("report.format", "report.out", "report.explanations")
def test_report_refuses_what_it_cannot_use(small_run, name, value):
    with pytest.raises(StickyTokenError) as error:
        report(small_run, **{name.partition(".")[2]: value})
    one_line(error)


@wrong_arguments("load_sentences.source", "load_tokenizer.model", "analyze_vocabulary.encoder")
def test_the_other_functions_refuse_what_they_cannot_use(name, value):
    function = {
        "load_sentences": load_sentences,
        "load_tokenizer": load_tokenizer,
        "analyze_vocabulary": analyze_vocabulary,
    }[name.partition(".")[0]]
    with pytest.raises(StickyTokenError) as error:
        function(value)
    one_line(error)


def columns():
    import datasets
    import pandas as pd

    frame = pl.DataFrame({"text": TEXTS})
    return {
        "list": TEXTS,
        "tuple": tuple(TEXTS),
        "generator": (text for text in TEXTS),
        "polars": frame["text"],
        "pandas": pd.Series(TEXTS),
        "pandas column": pd.DataFrame({"text": TEXTS})["text"],
        "numpy": np.array(TEXTS),
        "numpy objects": np.array(TEXTS, dtype=object),
        "arrow": frame["text"].to_arrow(),
        "datasets": datasets.Dataset.from_dict({"text": TEXTS})["text"],
        "dict keys": dict.fromkeys(TEXTS).keys(),
    }


@pytest.mark.parametrize("kind", list(columns()))
def test_sentences_may_be_any_list_or_column_of_texts(kind):
    found = load_sentences(columns()[kind])
    assert found.texts == tuple(TEXTS)
    assert all(type(text) is str for text in found.texts)


def test_given_sentences_are_the_same_corpus_as_the_same_sentences_in_a_file(
    encoder, small_run, sentence_file, tmp_path
):
    arguments = {"settings": planted.SMALL, "tokens": [55, 60]}
    given = detect(encoder, sentences=pl.Series(TEXTS), **arguments, out=tmp_path / "given")
    read = detect(encoder, sentences=sentence_file, **arguments, out=tmp_path / "read")
    assert given.record.identity == read.record.identity
    assert given.tokens.equals(read.tokens)


def test_missing_values_of_a_column_count_as_blank():
    import pandas as pd

    found = load_sentences(pd.Series(["a b", None, "c d", float("nan"), pd.NA, " "], dtype=object))
    assert (found.texts, found.blank) == (("a b", "c d"), 4)


@pytest.mark.parametrize("library", ["polars", "lazy", "pandas", "arrow", "datasets"])
def test_a_table_in_place_of_a_column_is_refused_with_its_columns(library):
    import datasets
    import pandas as pd

    content = {"body": ["a b"], "title": ["c d"]}
    table = {
        "polars": lambda: pl.DataFrame(content),
        "lazy": lambda: pl.LazyFrame(content),
        "pandas": lambda: pd.DataFrame(content),
        "arrow": lambda: pl.DataFrame(content).to_arrow(),
        "datasets": lambda: datasets.Dataset.from_dict(content),
    }[library]()
    with pytest.raises(InputError, match=r"columns body, title: pass one of them, such as table\['body'\]"):
        load_sentences(table)


def test_a_sentence_in_place_of_a_list_is_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"no file 'Mr. Stone sings.' .*pass sentences themselves as a list"):
        load_sentences("Mr. Stone sings.")


@pytest.mark.parametrize("value", [3, 2.5, True, b"a", ["a"], object()])
def test_a_sentence_that_is_no_text_is_named_by_its_place(value):
    with pytest.raises(InputError, match=r"sentence 2 is .*: pass texts"):
        load_sentences(["a b", value])


def test_tokens_may_be_ids_or_texts_or_a_file_in_any_mixture(encoder, write):
    vocabulary = analyze_vocabulary(encoder)
    river, stone = (vocabulary.tokens.index(token) for token in ("river", "stone"))
    ways = [
        ["river", stone],
        ("river", "stone"),
        [np.int64(river), np.str_("stone")],
        np.array([river, stone]),
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


def test_explain_takes_the_folder_of_a_run(encoder, small_run):
    by_folder = explain(encoder, ["river"], run=str(small_run.path), settings=QUICK)
    by_run = explain(encoder, ["river"], run=small_run, settings=QUICK)
    assert by_folder.document() == by_run.document()


def test_an_opened_run_is_opened_already(small_run):
    assert open_run(small_run) is small_run
    assert report(small_run, format="md") == report(str(small_run.path), format="md")


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


def test_everything_that_is_exported_is_there_and_sorted():
    names = stickytoken.__all__
    assert names == sorted(names)
    assert set(names) >= {
        "Encoder", "Run", "__version__", "detect", "explain", "impact", "load_encoder", "open_run", "probe",
        "report", "ProfileSettings", "StdSettings", "ExplainSettings", "ImpactSettings", "InputError",
    }  # fmt: skip
    assert all(getattr(stickytoken, name) is not None for name in names)
    assert dir(stickytoken) == names
    with pytest.raises(AttributeError, match="no attribute 'defect'"):
        stickytoken.defect  # noqa: B018 - the access itself is tested


def test_the_version_is_that_of_the_installed_package():
    code = "import stickytoken, sys; print(stickytoken.__version__); assert 'polars' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout[0].isdigit()


def test_a_report_is_written_as_its_ending_says(small_run, tmp_path):
    report(small_run, out=tmp_path / "a.md")
    report(small_run, out=tmp_path / "a.json")
    report(small_run, out=tmp_path / "a.htm")
    report(small_run, out=tmp_path / "b.md", format="json")
    started = {path.name: path.read_text(encoding="utf-8")[:2] for path in tmp_path.iterdir()}
    assert started == {"a.md": "# ", "a.json": "{\n", "a.htm": "<!", "b.md": "{\n"}
