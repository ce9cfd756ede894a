"""The command audit, and other commands that take an audit."""

import json
import shutil

import polars as pl
import pytest

import planted
import profiled
import scanned
from audited import WORDS, save_run
from naming import naming, says
from planted import command
from report_pages import Page
from stickytoken import open_run
from stickytoken.audits import wording
from stickytoken.measurement.store import ResultFolder


def test_the_title_names_the_columns_of_the_text(printed):
    text, _ = printed
    assert says(text.splitlines()[0], "80 documents", "column text", "40 queries")


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


def test_a_folder_of_runs_is_refused_with_a_run(tampered_run, files, printed):
    documents = ("--documents", files / "documents.jsonl", "--queries", files / "queries.txt", *OPTIONS)
    line = ("audit", tampered_run, *documents, "--out", printed[1])
    planted.assert_refused(*line, "--set", "runs=elsewhere", saying=naming(tampered_run, "runs"))


def test_queries_in_a_folder_of_nobody_are_not_called_documents(tampered_run, files):
    line = (
        "audit",
        tampered_run,
        "--documents",
        files / "documents.jsonl",
        "--queries",
        "~nobody-here/q.csv",
    )
    planted.assert_refused(*line, saying="^error: (?!documents)" + naming("~nobody-here/q.csv"))


def test_the_command_prints_tokens_documents_and_commands_in_this_order(printed):
    text, _ = printed
    expected_parts = [
        wording.TOKEN_QUESTION,
        scanned.STICKY,
        wording.DOCUMENT_QUESTION,
        "d70",
        "stickytoken repair",
    ]
    positions = [text.index(expected_part) for expected_part in expected_parts]
    assert positions == sorted(positions)


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


def test_an_audit_that_is_opened_again_gets_a_page_as_a_new_one(printed, tampered_run, files, tmp_path):
    _, folder = printed
    page = folder / "audit.html"
    assert scanned.STICKY in Page(page.read_text("utf-8")).tokens
    documents = files / "documents.jsonl"
    line = ["audit", tampered_run, "--documents", documents, "--queries", files / "queries.txt", *OPTIONS]
    copied = shutil.copytree(folder, tmp_path / "audit")
    (copied / "audit.html").unlink()
    assert str(copied / "audit.html") in command(*line, "--out", copied).stderr
    assert (copied / "audit.html").is_file()
    (copied / "audit.html").write_text("the page of an earlier version", "utf-8")
    command(*line, "--out", copied)
    assert scanned.STICKY in Page((copied / "audit.html").read_text("utf-8")).tokens


def test_a_page_that_cannot_be_written_does_not_hide_the_result(printed, tampered_run, files, tmp_path):
    _, folder = printed
    copied = shutil.copytree(folder, tmp_path / "audit")
    (copied / "audit.html").unlink()
    (copied / "audit.html").mkdir()  # no file can be written there
    documents = files / "documents.jsonl"
    line = ["audit", tampered_run, "--documents", documents, "--queries", files / "queries.txt", *OPTIONS]
    result = command(*line, "--out", copied)
    assert result.exit_code == 1
    assert scanned.STICKY in result.stdout
    assert says(result.stderr, copied / "audit.html")


def test_the_command_accepts_known_documents_and_allowed_words(tampered_run, files, tmp_path):
    (tmp_path / "allowed.txt").write_text(scanned.STICKY, "utf-8")
    line = ["audit", tampered_run, "--documents", files / "documents.jsonl", *OPTIONS, "--format", "json"]
    accepting = ["--allow", tmp_path / "allowed.txt", "--known", tmp_path / "known.txt"]
    (tmp_path / "known.txt").touch()
    document = planted.document(command(*line, *accepting))
    assert document["documents_with_copies"] == []


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
    assert command(*line).exit_code == 1  # inconclusive, because the run has measured no push
    assert command(*line, "--audit", folder).exit_code == 10


@pytest.mark.parametrize("name", ["scan", "clean", "check"])
def test_an_audit_of_another_run_is_refused(name, printed, new_documents, tmp_path):
    _, folder = printed
    other = save_run(tmp_path, strength=0)
    documents = ["--documents", new_documents] if name == "check" else [new_documents]
    planted.assert_refused(name, other, *documents, "--audit", folder, saying=naming(folder, "another run"))
