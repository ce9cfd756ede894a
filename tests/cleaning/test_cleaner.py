"""What a cleaner takes out, what it leaves, that it never has to be called twice; and the command."""

import json
import random
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from stickytoken import Cleaner
from stickytoken.cleaning import Action, CleaningRules, SpanKind, find_spans, spans
from stickytoken.cli.app import app
from stickytoken.data.rewriting import edited_text
from stickytoken.errors import InputError, RefusedTextError, RunError

RULES = CleaningRules(
    words=("able", "contract", "☃", "'s", "禾"), specials=("[SEP]", "<|endoftext|>", "</s>")
)
CLEANER = Cleaner(RULES)
PARTS = (
    "able", "able ", "ABLE ", "contract ", "the ", "flow ", "very ", "buy now ", "x", " ", ", ", ".", "\n",
    "[SEP]", "[SE", "P]", "<|endof", "text|>", "<|endoftext|>", "</", "s>", "\u200b", "\u0301", "ａｂｌｅ ",
    "禾", "☃", "'s ", "\ud800",
)  # fmt: skip
texts = st.lists(
    st.tuples(st.sampled_from(PARTS), st.sampled_from((1, 1, 1, 2, 4, 5))).map(
        lambda pair: pair[0] * pair[1]
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("the flow ABLE, Able, able, aBLE", "the flow"),
        ("able, able, able, able, the flow", "the flow"),
        ("a normal pregnancyableableableable", "a normal pregnancy"),
        ("flow able the able the able the able the", "flow"),
        ("the able flow able is able of able air", "the flow is of air"),
        ("the flow able river able window able river able window", "the flow"),
        ("river able window able river able window able the flow", "the flow"),
        ("the flow able - able. able - able -", "the flow"),
        (
            "able construction and able slab of able steel construction able and slab able of steel "
            "able able able able",
            "construction and slab of steel construction and slab of steel",
        ),
        ("able - able; able. able - the flow - and air", "the flow - and air"),
        ("able able able able - the flow", "- the flow"),
        ("very very very very good", "very good"),
        ("buy now buy now buy now buy now!", "buy now!"),
        ("air [SEP] flow", "air flow"),
        ("<|endof<|endof<|endoftext|>text|>text|>air", "air"),
        ("<|endofableableableabletext|>air", "air"),
        ("☃☃☃☃ air", "air"),
        ("flow\u200bable\u200bable\u200bable\u200bable\u200b air", "flow air"),
        ("She was able to sign the contract.", "She was able to sign the contract."),
        ("schools in DC NN NN VBP NN NN NN NN .", "schools in DC NN NN VBP NN NN NN NN ."),
        ("  two  spaces \t and a tab \r\n", "  two  spaces \t and a tab \r\n"),
    ],
)
def test_a_text_is_as_if_nothing_had_been_put_in(text, cleaned):
    assert CLEANER(text) == cleaned


@given(texts)
@settings(max_examples=400)
def test_a_cleaned_text_is_clean_and_removals_are_parts_of_the_original(text):
    once = CLEANER.clean(text)
    assert {span.kind for span in find_spans(once.text, RULES)} <= {SpanKind.SUSPECTED}
    assert CLEANER(once.text) == once.text
    assert not any(special in once.text for special in RULES.specials)
    for removal in reversed(once.removals):
        text = text[: removal.start] + text[removal.end :]
    assert text == once.text


@given(texts)
@settings(max_examples=80)
def test_every_mixture_of_actions_ends(text):
    mixed = Cleaner(
        RULES, {"special": "escape", "flagged": "replace", "repetition": "report"}, replacement="~"
    )
    once = mixed.clean(text)
    assert mixed(once.text) == once.text
    assert not any(special in once.text for special in RULES.specials)
    assert {span.kind for span in once.reported} <= {SpanKind.REPETITION, SpanKind.SUSPECTED}


def test_text_nested_too_deep_to_be_ordinary_takes_a_few_rounds_all_the_same():
    # Taking out each level makes the copies of the level around it neighbours.
    text = "able able able able"
    for level in range(400):
        word = ("contract", "able")[level % 2]
        text = f"{word} {word} q{level} r{level} {text} {word} {word}"
    once = CLEANER(text)
    assert CLEANER(once) == once


@pytest.mark.parametrize(
    "repeats",
    [
        lambda size: "able " * size,
        lambda size: "a" * size,
        lambda size: "<|endof" * size + "text|>" * size,
        lambda size: "".join(f"word{index % 16} " for index in range(size)),
        lambda size: "able\u200b" * size,
        lambda size: "".join(random.Random(7).choices("abc ", k=size)),
        lambda size: "".join(random.Random(7).choices(("zebra ", "lion ", "tiger ", "wolf "), k=size)),
        lambda size: "".join(map(chr, random.Random(7).choices(range(0x20, 0xD7FF), k=size))),
    ],
)
def test_the_work_is_linear_in_the_length(repeats):
    """Eight times the text takes at most sixteen times as many lines of Python, and not 64 times."""
    assert work(repeats(8_000)) < 16 * work(repeats(1_000)) + 10_000


def work(text):
    """Count the lines that are executed to clean a text, by a cleaner that remembers nothing."""
    spans.finder_of.cache_clear()
    lines = 0

    def traced(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        Cleaner(RULES)(text)
    finally:
        sys.settrace(before)
    return lines


def test_a_long_text_is_cleaned_in_segments_as_a_whole(monkeypatch):
    monkeypatch.setattr(spans, "_SEGMENT", 20_000)
    words = [f"word{index * 7 % 5000}" for index in range(6_000)]
    copies = ["able"] * 4
    assert CLEANER(" ".join([*copies, *words[:3_000], *copies, *words[3_000:], *copies])) == " ".join(words)
    assert CLEANER("able " * 8_000) == ""
    assert CLEANER("buy it now " * 4_000) == "buy it now "


def test_actions_say_what_is_done_with_each_kind():
    text = "air [SEP] able able able able"
    assert Cleaner(RULES, {"special": "escape"})(text) == "air [ SEP]"
    assert Cleaner(RULES, {SpanKind.FLAGGED: Action.REPLACE})(text) == "air …"
    reported = Cleaner(RULES, {"flagged": "report", "special": "report"}).clean(text)
    assert (reported.text, reported.removals) == (text, ())
    assert [span.kind for span in reported.reported] == [SpanKind.SPECIAL, SpanKind.FLAGGED]
    among = "able able [SEP] able able air"
    assert Cleaner(RULES, {"flagged": "report"})(among) == "able able able able air"
    with pytest.raises(RefusedTextError, match=r"special token \('\[SEP\]'\) at character 4"):
        Cleaner(RULES, {"special": "refuse"})(text)
    # Removals have offsets of the text as it was.
    once = Cleaner(RULES, {"special": "replace"}, replacement="~").clean("able, able; able, able [SEP]")
    assert [(removal.start, removal.end) for removal in once.removals] == [(0, 24), (23, 28)]
    assert once.text == ""


def test_a_lone_flagged_word_stays_unless_all_are_to_go():
    text = "The flow is very very very very good: she signed the contract today"
    assert CLEANER(text) == "The flow is very good: she signed the contract today"
    assert Cleaner(RULES, remove_all=True)(text) == "The flow is very good: she signed the today"
    with pytest.raises(InputError, match="remove_all is set, but the action for flagged is report"):
        Cleaner(RULES, {"flagged": "report"}, remove_all=True)


@given(texts)
@settings(max_examples=80)
def test_no_flagged_word_is_left_where_all_are_removed(text):
    everything = Cleaner(RULES, remove_all=True)
    once = everything.clean(text)
    assert everything(once.text) == once.text
    assert Cleaner(RULES)(once.text) == once.text
    assert not set(re.findall(r"\w+", once.text.casefold())) & {"able", "contract"}


@given(texts)
@settings(max_examples=80)
def test_edits_turn_a_text_into_the_cleaned_one(text):
    cleaned = Cleaner(RULES, {"special": "escape", "flagged": "replace"}, replacement="~").clean(text)
    assert edited_text(text, cleaned.edits) == cleaned.text


@given(st.lists(texts, min_size=2, max_size=3))
@settings(max_examples=80)
def test_texts_that_are_one_document_are_cleaned_as_one(parts):
    cleaned, edits = CLEANER.clean_parts(parts)
    after = [edited_text(text, text_edits) for text, text_edits in zip(parts, edits, strict=True)]
    assert " ".join(after) == cleaned.text
    assert edited_text(" ".join(parts), cleaned.edits) == cleaned.text
    assert CLEANER.clean_parts(after)[1] == [()] * len(parts)


def test_a_guess_is_reported_and_taken_out_only_on_request():
    words = [f"word{number}" for number in range(15)]
    text = " ".join(f"{word} zebra" if number % 2 else word for number, word in enumerate(words))
    cleaned = CLEANER.clean(text)
    assert cleaned.text == text
    assert {span.kind for span in cleaned.reported} == {SpanKind.SUSPECTED}
    assert Cleaner(RULES, {"suspected": "remove"})(text) == " ".join(words)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cleaner(RULES, {"repetition": "escape"}), "only special tokens can be escaped"),
        (lambda: Cleaner(RULES, {"runs": "remove"}), "'runs' is not a known kind of finding"),
        (lambda: Cleaner(RULES, {"repetition": "drop"}), "'drop' is not a known action"),
        (lambda: Cleaner(RULES, ["run"]), "actions is"),
        (lambda: Cleaner(("able",)), "pass CleaningRules"),
        (lambda: Cleaner(RULES, replacement="gone"), "letters or digits"),
        (lambda: Cleaner(RULES, replacement="☃"), "the rules find something"),
        (lambda: CLEANER(b"able"), "pass a string"),
        (lambda: CleaningRules(words=("able", " ")), "not blank"),
        (lambda: CleaningRules(words="able"), "pass a list"),
        (lambda: CleaningRules(longest_run=1), "at least 2"),
    ],
)
def test_what_cannot_be_used_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_cleaner_is_read_as_it_was_written(tmp_path):
    cleaner = Cleaner(RULES, {"repetition": "report"}, replacement="~", source={"model": "minilm"})
    cleaner.save(tmp_path / "rules.json")
    again = Cleaner.from_file(tmp_path / "rules.json")
    assert (again.rules, again.actions, again.replacement, again.source) == (
        RULES, cleaner.actions, "~", {"model": "minilm"},
    )  # fmt: skip
    assert (tmp_path / "rules.json").read_bytes().isascii()


def damaged(entry, value):
    document = CLEANER.to_json()
    return json.dumps(document | {"rules": document["rules"] | {entry: value}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "rules.json is not a rules file"),
        ('{"format": "stickytoken cleaner"}', "entry 'rules' is missing"),
        (damaged("version", 2), "rules.json: .* the version 2"),
        (damaged("words", "able"), "words"),
        (damaged("unknown", 1), "the unknown entry 'unknown'"),
    ],
)
def test_a_file_that_is_no_cleaner_is_refused(tmp_path, content, message):
    with pytest.raises(InputError, match="cannot be read"):
        Cleaner.from_file(tmp_path / "rules.json")
    (tmp_path / "rules.json").write_text(content)
    with pytest.raises(InputError, match=message):
        Cleaner.from_file(tmp_path / "rules.json")
    with pytest.raises(RunError, match="cannot be written"):
        CLEANER.save(tmp_path / "nowhere" / "rules.json")


@pytest.mark.slow
def test_a_cleaner_from_a_file_loads_nothing_heavy(tmp_path):
    CLEANER.save(tmp_path / "rules.json")
    code = (
        "import sys; from stickytoken import Cleaner\n"
        f"assert Cleaner.from_file({str(tmp_path / 'rules.json')!r})('able able able able air') == 'air'\n"
        "print(sorted({'torch', 'numpy', 'polars', 'pydantic', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def cleaner_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "rules.json"
    Cleaner(CleaningRules(words=("able",), specials=("[SEP]",))).save(path)
    return path


def clean(*arguments, content=b""):
    done = CliRunner().invoke(app, ["clean", *map(str, arguments)], input=content)
    return done.exit_code, done.stdout_bytes, done.stderr


def test_lines_are_cleaned_and_everything_else_passes_through(cleaner_file):
    content = b"able able able able air\r\nflow \xff \x00 x\n\n[SE[SEP]P] end"
    status, output, errors = clean(cleaner_file, content=content)
    assert (status, output) == (0, b"air\r\nflow \xff \x00 x\n\nend")
    assert "2 of 2 documents changed (flagged token: 1, special token: 1)" in errors
    assert "1 record without readable text, passed through unchanged:" in errors
    assert "standard input, line 2: byte 30 (0xff) is not UTF-8" in errors


def test_the_difference_and_the_removals_can_be_printed(cleaner_file, tmp_path):
    (tmp_path / "lines.txt").write_bytes("air\n\x1b[31m [SEP] é\n".encode())
    _, output, _ = clean(cleaner_file, tmp_path / "lines.txt", "--diff", "-q")
    assert output.decode() == "line 2\n  special token: \\x1b[31m [-[SEP]-] é\n"
    document = json.loads(clean(cleaner_file, tmp_path / "lines.txt", "--format", "json")[1])
    counts = document["documents"], document["changed"], document["changed_by_cause"]
    assert counts == (2, 1, {"special": 1})
    (removal,) = document["removals"]
    location = {"id": "line 2", "line": 2, "start": 6, "end": 12}
    assert removal == location | {"kind": "special", "what": "[SEP]", "text": "[SEP] "}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("nowhere", 1, "no run folder"),
        ("RULES nowhere.txt", 1, "no file 'nowhere.txt'"),
        ("RULES .", 1, "is a folder: pass one file at a time"),
        ("RULES --action run", 2, "not of the form KIND=ACTION"),
        ("RULES --action repetition=escape", 2, "only special tokens can be escaped"),
        ("RULES --remove-all --action flagged=report", 1, "the action for flagged is report"),
        ("RULES --diff --format json", 2, "pass either --diff or --format json"),
        ("RULES --action special=refuse", 1, "line 2: the text contains the text of a special token"),
    ],
)
def test_what_is_wrong_with_a_command_is_said_in_one_line(cleaner_file, arguments, status, message):
    arguments_of_case = arguments.replace("RULES", str(cleaner_file)).split()
    found, _, errors = clean(*arguments_of_case, content=b"air\n[SEP]\n")
    assert (found, errors.count("\n")) == (status, 1)
    assert message in errors


def test_the_rules_of_a_run_can_be_written_and_used(planted_run, tmp_path):
    status, output, errors = clean(planted_run, "--rules-out", tmp_path / "rules.json")
    assert (status, output) == (0, b"")
    cleaner = Cleaner.from_file(tmp_path / "rules.json")
    assert f"{len(cleaner.rules.words)} words" in errors
    assert "<|endoftext|>" in cleaner.rules.specials
    assert cleaner.source["identity"]
