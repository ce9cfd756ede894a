"""An output never replaces what a command reads, another output, or a file of a run."""

import os
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest

import planted
import scanned
from naming import naming, says
from stickytoken import Cleaner

TEXTS = f"{scanned.copies()} flows\nplain\n[SEP] special\n"
ROWS = f'[{{"text": "{scanned.copies()} flows"}},\n {{"text": "plain"}}]\n'


@pytest.fixture
def place(scanned_run, tmp_path, monkeypatch):
    """The current folder, with a run, rules, documents and lists."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(scanned_run, "run")
    Cleaner.from_run(scanned_run).save("rules.json")
    Path("folder").mkdir()
    for name in ("own.json", "folder/own.json"):
        Path(name).write_text(ROWS)
    Path("own.txt").write_text(TEXTS)
    Path("own.csv").write_text(f"id,text\n1,{scanned.copies()}\n")
    pl.DataFrame({"text": TEXTS.splitlines()}).write_parquet("own.parquet")
    Path("allow.json").write_text("zebra\n")
    Path("README.md").write_text("# Model\n\nA model.\n")
    Path("link.json").symlink_to("own.json")
    return tmp_path


def files(folder):
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path: content for path, content in contents.items() if path.name != ".lock"}


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("scan rules.json own.json --out own.json", "own.json"),
        ("scan rules.json own.csv --out ./folder/../own.csv", "own.csv"),
        ("scan rules.json link.json --out own.json", "own.json"),
        ("scan run own.json --out link.json", "link.json"),
        ("scan rules.json own.txt --out rules.json", "rules.json"),
        ("scan rules.json own.txt --allow allow.json --out allow.json", "allow.json"),
        ("scan rules.json own.txt --known allow.json --out allow.json", "allow.json"),
        ("scan rules.json folder --out folder/own.json", "folder/own.json"),
        ("scan rules.json own.txt --set write-known=rules.json", "rules.json"),
        ("scan rules.json own.txt --set write-known=own.txt", "own.txt"),
        ("scan rules.json own.txt --set write-known=README.md", "README.md"),
        ("scan rules.json own.txt --out new.json --set write-known=new.json", "new.json"),
        ("check rules.json --documents own.json --format json --out own.json", "own.json"),
        ("check rules.json --documents own.json --format sarif --out rules.json", "rules.json"),
        ("check run --documents own.json --format json --out run/run.json", "run/run.json"),
        ("clean rules.json own.txt --out kept.txt --quarantine kept.txt", "kept.txt"),
        ("clean rules.json own.txt --out kept.txt --quarantine ./folder/../kept.txt", "kept.txt"),
        ("clean rules.json own.txt --out kept.txt --quarantine own.txt", "own.txt"),
        ("clean rules.json own.json --out kept.json.gz --quarantine aside.json", "aside.json"),
        ("clean rules.json own.json --out rules.json", "rules.json"),
        ("clean rules.json own.txt --rules-out own.txt", "own.txt"),
        ("clean rules.json own.json --rules-out new.json --out new.json", "new.json"),
        ("report run --out run/tokens.parquet", "run/tokens.parquet"),
        ("report run --out run/plan.json", "run/plan.json"),
        ("card run --model-card run/run.json", "run/run.json"),
    ],
)
def test_an_output_that_would_replace_something_is_refused(place, arguments, output):
    before = files(place)
    planted.assert_refused(*arguments.split(), saying=naming(output))
    assert files(place) == before


def test_standard_input_is_not_replaced_either(place, monkeypatch):
    with Path("own.json").open() as stdin:
        kept = os.dup(0)
        os.dup2(stdin.fileno(), 0)
        try:
            planted.assert_refused("scan", "rules.json", "-", "--out", "own.json", saying=naming("own.json"))
        finally:
            os.dup2(kept, 0)
            os.close(kept)
    assert Path("own.json").read_text() == ROWS


@pytest.mark.parametrize(
    "arguments",
    [
        "clean rules.json own.txt --out own.txt",
        "clean rules.json own.txt --out run/own.txt --quarantine run/aside.txt",
        "clean rules.json --allow allow.json --rules-out rules.json",
        "scan rules.json own.txt --known known.txt --set write-known=known.txt",
        "scan run own.txt --out run/scan.json",
        "scan run own.txt --out /dev/null --format json",
        "report run --format json --out run/report.json",
        "report run --out run/report.html",
        "clean rules.json own.parquet --out run/own.parquet",
    ],
)
def test_every_other_output_may_be_written_again(place, arguments):
    Path("known.txt").write_text("# reviewed\n\n")
    for _ in range(2):
        result = planted.command(*arguments.split())
        assert result.exit_code == 0, result.stderr


# Files of more than 4,096 bytes can't be written, as on a full disk.
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits only")
def test_documents_stay_if_they_cannot_be_set_aside(place):
    # The quarantine fits into a buffer, which is written when the quarantine is finished.
    documents = "plain\n" + f"[SEP] {'special ' * 100}\n" * 6
    Path("own.txt").write_text(documents)
    arguments = "clean rules.json own.txt --out own.txt --quarantine aside.txt".split()
    done = planted.program(FULL_DISK + planted.COMMAND_LINE, *arguments, folder=place)
    assert done.returncode == 1, done.stderr
    assert "aside.txt" in done.stderr
    assert Path("own.txt").read_text() == documents
    assert not Path("aside.txt").exists()


def test_documents_set_aside_in_place_are_never_lost(place):
    command = ("clean", "rules.json", "own.txt", "--out", "own.txt", "--quarantine")
    assert planted.command(*command, "aside.txt").exit_code == 0
    before = files(place)
    planted.assert_refused(*command, "aside.txt", saying=naming("aside.txt", "--quarantine"))
    assert files(place) == before
    assert planted.command(*command, "later.txt").exit_code == 0
    assert [Path(name).read_text() for name in ("own.txt", "aside.txt", "later.txt")] == [
        "plain\n",
        f"{scanned.copies()} flows\n[SEP] special\n",
        "",
    ]


def test_known_documents_are_added_to_a_file_of_known_documents(place):
    result = planted.command("scan", "rules.json", "own.txt", "--set", "write-known=known.txt")
    assert says(result.stderr, "known.txt", 2)
    first = Path("known.txt").read_text()
    Path("known.txt").write_text(f"# reviewed by us\n\n{first}")
    Path("own.txt").write_text(f"{TEXTS}{scanned.copies()} again\n")
    result = planted.command("scan", "rules.json", "own.txt", "--set", "write-known=known.txt")
    assert says(result.stderr, "known.txt", 1)
    assert Path("known.txt").read_text().startswith(f"# reviewed by us\n\n{first}")
