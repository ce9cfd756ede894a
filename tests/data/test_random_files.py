"""The same file gives every command the same texts, or one refusal."""

import io
import os
from pathlib import Path

import pytest

from random_files import REFUSED, random_file
from stickytoken.cleaning import Cleaner
from stickytoken.cleaning.rules import CleaningRules
from stickytoken.data import load_sentences
from stickytoken.data.documents import NamedColumns
from stickytoken.data.rewriting import open_source, rewrite
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.evaluation import read_text_file
from stickytoken.scanning.scan import scan

FILES = int(os.environ.get("RANDOM_FILES", "100"))


def embedded(path, columns):
    """The texts that `embed` writes, without the blank lines of a text file, which it keeps as rows."""
    return [text for text in read_text_file(path, columns).texts if text != ""]


def rewritten(path, columns):
    """The texts as `clean` gets them, and the file that it writes if nothing is edited."""
    texts = []

    def revise(document):
        texts.append(document.text)
        return [()] * len(document.parts)

    output = io.BytesIO()
    rewrite(
        open_source(path, NamedColumns(columns)), output, revise, lambda _: texts.append(None), compress=False
    )
    return texts


def scanned(path, columns):
    """How many documents `scan`, `check` and `audit` read, and how many they skip."""
    rules = CleaningRules(words=("river",), specials=())
    result = scan(Cleaner(rules), path, column=columns, workers=1).result
    return result.documents, result.skipped


def sentences(path, columns):
    return set(load_sentences(path, columns).texts)


@pytest.mark.slow
@pytest.mark.filterwarnings(f"ignore::{StickyTokenWarning.__module__}.StickyTokenWarning")
def test_every_command_reads_the_same_texts_of_a_random_file(tmp_path):
    for seed in range(FILES):
        path, columns, expected = random_file(seed, tmp_path)
        refusing = [embedded, scanned, sentences] if expected == REFUSED or not any(expected) else []
        if expected == REFUSED:
            refusing.append(rewritten)
        else:
            assert rewritten(path, columns) == expected, path.read_bytes()
        for read in refusing:
            with pytest.raises(InputError):
                read(path, columns)
        if refusing:
            continue
        assert embedded(path, columns) == expected
        readable = [text for text in expected if text is not None]
        assert scanned(path, columns) == (len(readable), len(expected) - len(readable))
        assert sentences(path, columns) == {text.strip() for text in readable if text.strip()}
        path.unlink()


def test_only_one_module_parses_documents():
    source = Path(load_sentences.__code__.co_filename).parents[1]
    parsers = ("csv.reader", "read_ndjson", "scan_parquet", "scan_csv", "scan_ndjson")
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if any(parser in path.read_text() for parser in parsers)
    }
    assert found == {"data/rows.py"}
