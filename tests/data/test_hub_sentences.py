"""Sentences from data sets of the hub, and every way in which they can be bad."""

import re
import sys

import datasets
import polars as pl
import pytest

from stickytoken.data import PAPER_DATASETS, load_sentences, sentences_from_hub
from stickytoken.data.documents import Meter, Wanted, open_documents
from stickytoken.errors import InputError, MissingExtraError


@pytest.fixture
def local_hub(tmp_path, monkeypatch):
    """A folder that `datasets` reads in place of a repository; its cache is temporary."""
    assert datasets.config.HF_HUB_OFFLINE
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def texts_of(source):
    """What sentences and documents are read from a source."""
    documents = [record.text for record in open_documents(source, Wanted()).read(Meter())]
    assert load_sentences(source).texts == tuple(documents)
    return documents


@pytest.mark.parametrize(
    ("splits", "named", "read"),
    [
        (["validation"], "", "validation"),
        (["train", "test"], "", "train"),
        (["train", "test"], "@test", "test"),
    ],
)
def test_sentences_and_documents_are_read_from_the_same_split(local_hub, splits, named, read):
    for split in splits:
        (local_hub / f"{split}.csv").write_text(f"text\nthe {split} split\n")
    assert texts_of(f"hub:{local_hub}{named}") == [f"the {read} split"]


def test_without_a_usual_split_the_splits_are_listed(local_hub):
    for split in ("validation", "test"):
        (local_hub / f"{split}.csv").write_text("text\nno\n")
    message = re.escape(
        f"which split of {str(local_hub)!r}? It has validation, test: pass hub:{local_hub}@SPLIT"
    )
    with pytest.raises(InputError, match=f"^{message}$"):
        load_sentences(f"hub:{local_hub}")
    with pytest.raises(InputError, match=f"^{message}$"):
        list(open_documents(f"hub:{local_hub}", Wanted()).read(Meter()))


def test_a_data_set_of_parquet_files_is_read_with_a_named_column(local_hub):
    pl.DataFrame({"text": ["no"], "body": ["yes"], "n": [1]}).write_parquet(local_hub / "test.parquet")
    assert load_sentences(f"hub:{local_hub}", "body").texts == ("yes",)
    with pytest.raises(InputError, match=r"column 'n' of .* contains Int64, not text"):
        load_sentences(f"hub:{local_hub}", "n")
    with pytest.raises(InputError, match=r"has no column 'title': it has text, body, n"):
        load_sentences(f"hub:{local_hub}", "title")


def test_the_english_configuration_is_taken_where_there_are_several(local_hub):
    for language in ("de", "en"):
        (local_hub / f"{language}.csv").write_text(f"text\n{language}\n")
    configurations = "".join(
        f"- config_name: {language}\n  data_files:\n  - split: test\n    path: {language}.csv\n"
        for language in ("de", "en")
    )
    (local_hub / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n")
    assert texts_of(f"hub:{local_hub}") == ["en"]


def test_several_data_sets_are_put_together(local_hub, tmp_path):
    second = tmp_path / "second"
    second.mkdir()
    (local_hub / "test.csv").write_text("text\na\nb\n")
    (second / "test.csv").write_text("sentence1,sentence2\nb,c\n")
    found = sentences_from_hub((str(local_hub), str(second)))
    assert found.texts == ("a", "b", "c")
    assert (found.source, found.duplicates) == ("2 hub data sets", 1)


def test_a_split_that_does_not_exist_is_named(local_hub):
    (local_hub / "test.csv").write_text("text\nno\n")
    with pytest.raises(InputError, match="split 'dev'") as error:
        load_sentences(f"hub:{local_hub}@dev")
    assert str(local_hub) in str(error.value)
    with pytest.raises(InputError, match="names no data set"):
        load_sentences("hub:@train")
    with pytest.raises(InputError, match=re.escape(f"the data set {PAPER_DATASETS[0]!r} (split 'test')")):
        load_sentences("paper")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".hidden", "a folder without data"),
        ("test.jsonl", '{"text": "a"}\nno json\n'),
    ],
)
def test_a_data_set_that_cannot_be_read_is_named(local_hub, name, content):
    (local_hub / name).write_text(content)
    for source in (str(local_hub), "nobody/nothing"):
        with pytest.raises(InputError, match=f"the data set '{source}' .*cannot be read: "):
            load_sentences(f"hub:{source}")


def test_without_the_package_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'stickytoken\[hub\]'"):
        load_sentences("paper")
