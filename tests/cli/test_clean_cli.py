"""stickytoken clean: lines in, lines out, and not a byte lost of what is not touched."""

import json

import pytest
from typer.testing import CliRunner

from stickytoken import Cleaner
from stickytoken.cleaning import CleaningRules
from stickytoken.cli.app import app


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "cleaner.json"
    Cleaner(CleaningRules(words=("able",), specials=("[SEP]",))).save(path)
    return path


def clean(*arguments, content=b""):
    done = CliRunner().invoke(app, ["clean", *map(str, arguments)], input=content)
    return done.exit_code, done.stdout_bytes, done.stderr


def test_lines_are_cleaned_and_everything_else_passes_through(rules):
    content = b"able able able able air\r\nflow \xff \x00 x\n\n[SE[SEP]P] end"
    status, output, said = clean(rules, content=content)
    assert (status, output) == (0, b"air\r\nflow \xff \x00 x\n\nend")
    assert "2 of 4 lines changed (1 flagged, 1 special)" in said
    assert "1 of 4 lines of standard input are not UTF-8, first line 2 at byte 6" in said


def test_the_difference_and_the_removals_can_be_printed(rules, tmp_path):
    (tmp_path / "lines.txt").write_bytes("air\n\x1b[31m [SEP] é\n".encode())
    _, output, _ = clean(rules, tmp_path / "lines.txt", "--diff", "-q")
    assert output.decode() == "line 2\n- \\x1b[31m [SEP] é\n+ \\x1b[31m é\n"
    document = json.loads(clean(rules, tmp_path / "lines.txt", "--format", "json")[1])
    assert (document["lines"], document["changed"], document["removed"]) == (2, 1, {"special": 1})
    assert document["removals"] == [
        {"line": 2, "start": 6, "end": 12, "kind": "special", "what": "[SEP]", "text": "[SEP] "}
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("nowhere", 1, "no run folder"),
        ("RULES nowhere.txt", 1, "nowhere.txt cannot be read"),
        ("RULES --action run", 2, "not of the form KIND=ACTION"),
        ("RULES --action run=escape", 2, "only special tokens can be escaped"),
        ("RULES --diff --format json", 2, "use one of --diff and --format json"),
        ("RULES --action special=refuse", 1, "line 2: the text contains the text of a special token"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(rules, arguments, status, message):
    given = arguments.replace("RULES", str(rules)).split()
    found, _, said = clean(*given, content=b"air\n[SEP]\n")
    assert (found, said.count("\n")) == (status, 1)
    assert message in said


def test_the_rules_of_a_run_can_be_written_and_used(planted_run, tmp_path):
    status, output, said = clean(planted_run, "--rules-out", tmp_path / "cleaner.json")
    assert (status, output) == (0, b"")
    cleaner = Cleaner.from_file(tmp_path / "cleaner.json")
    assert f"{len(cleaner.rules.words)} words" in said
    assert "<|endoftext|>" in cleaner.rules.specials
    assert cleaner.source["identity"]
