"""What a cleaner takes out, what it leaves, that it never has to be called twice; and the command."""

import base64
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import fields

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

import tokenizers_of_kinds as kinds
from naming import naming, says
from stickytoken import Cleaner, open_run
from stickytoken.cleaning import CleaningRules, Fix, SpanKind, find_spans, spans
from stickytoken.cleaning.files import clean_document
from stickytoken.cleaning.rules import rules_of_run
from stickytoken.cli.app import app
from stickytoken.data.documents import Document
from stickytoken.data.rewriting import cut
from stickytoken.errors import InputError, RunError
from stickytoken.settings.reading import Columns

BERT = kinds.description_of(kinds.tokenizer_with(kinds.normalizers_of_models()["BERT, uncased"]))
RULES = CleaningRules(
    words=("able", "contract", "☃", "'s", "禾"), specials=("[SEP]", "<|endoftext|>", "</s>"), normalizer=BERT
)
CLEANER = Cleaner(RULES)
EVERYTHING = Cleaner(RULES, unsafe_fixes=True)
PARTS = (
    "able", "able ", "ABLE ", "contract ", "the ", "flow ", "very ", "buy now ", "x", " ", ", ", ".", "\n",
    "[SEP]", "[SE", "P]", "<|endof", "text|>", "<|endoftext|>", "</", "s>", "\u200b", "\u0301", "(", ") ",
    "禾", "☃", "'s ", "\ud800", "<b>", "| ",
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
        ("(able) (able) (able) (able) the flow", "the flow"),
        ("able - able - able - able - the flow", "the flow"),
        ("a normal pregnancyableableableable", "a normal pregnancy"),
        ("able able contract able contract contract the flow", "the flow"),
        ("the flow able able able able, and air", "the flow, and air"),
        ("the flow, able able . able able the air", "the flow, . the air"),
        ("able able able able - the flow", "- the flow"),
        ("air [SEP] flow", "air flow"),
        ("able able [SEP] able able air", "air"),
        ("<|endof<|endof<|endoftext|>text|>text|>air", "air"),
        ("<|endofableableableabletext|>air", "air"),
        ("☃☃☃☃ air", "air"),
        ("ice☃☃☃☃ air", "ice☃☃☃☃ air"),  # BERT reads "ice☃" as one word, with another entry for "☃"
        ("wing [SEP] [SEP] [SEP]", "wing"),
        ("flow [SEP] [SEP]. next", "flow. next"),
        ("[SEP][SEP][SEP] air", "air"),
        ("air [SEP] [SEP] flow", "air flow"),
        ("</s>The wing is long.</s> </s>The flow is slow.</s>", "The wing is long. The flow is slow."),
        ("wing[SEP] [SEP]flow", "wing flow"),
        ("wing[SEP][SEP]  [SEP] [SEP]flow", "wing flow"),
        ("wing[SEP] [SEP][S[SEP]EP]flow", "wing flow"),
        ("wing[SEP] [SEP][S[SEP]EP].", "wing."),
        ("wing[SEP] [SEP], flow", "wing, flow"),
        ("wing[SEP] [SEP]\nflow", "wing\nflow"),
        ("wing[SEP]flow", "wingflow"),
        ("wing[SEP][SEP]flow", "wingflow"),
        ('"able able able able"', '""'),
        ("flow\u200bable\u200bable\u200bable\u200bable\u200b air", "flow air"),
        ("one\nable able able able\ntwo", "one\n\ntwo"),
        ("She was able to sign the contract.", "She was able to sign the contract."),
        ("very very very very good", "very very very very good"),
        ("flow able the able the able the able", "flow able the able the able the able"),
        ("  two  spaces \t and a tab \r\n", "  two  spaces \t and a tab \r\n"),
    ],
)
def test_what_is_certain_goes_and_nothing_else(text, cleaned):
    assert CLEANER(text) == cleaned


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("flow able the able river able window able", "flow the river window"),
        ("the able flow is able of able air able x", "the flow is of air x"),
        ("very very very very good", "very good"),
        ("buy now buy now buy now buy now!", "buy now!"),
        ("(very) (very) (very) (very) good", "(very) good"),
        ("She was able to sign the contract.", "She was able to sign the contract."),
    ],
)
def test_unsafe_fixes_remove_what_may_belong_to_the_text(text, cleaned):
    assert EVERYTHING(text) == cleaned


@pytest.mark.parametrize("cleaner", [CLEANER, EVERYTHING])
@given(texts)
@settings(max_examples=200)
def test_a_cleaned_text_is_clean_and_removals_are_parts_of_the_original(cleaner, text):
    once = cleaner.clean(text)
    wanted = {Fix.SAFE, Fix.UNSAFE} if cleaner.unsafe_fixes else {Fix.SAFE}
    assert not wanted & {span.fix for span in find_spans(once.text, RULES)}
    assert cleaner(once.text) == once.text
    for removal in reversed(once.removals):
        text = text[: removal.start] + text[removal.end :]
    assert text == once.text
    assert once.reported == tuple(find_spans(once.text, RULES))


def test_the_space_that_stays_between_findings_is_in_no_removal():
    text = "wing[SEP][SEP]  [SEP]flow"
    removals = CLEANER.clean(text).removals
    assert [text[removal.start : removal.end] for removal in removals] == ["[SEP]", "[SEP] ", "[SEP]"]


def test_what_is_nested_too_deeply_to_be_ordinary_is_reported():
    text = "[SEP]"
    for _ in range(200):
        text = f"[SE{text}P]"
    cleaned = CLEANER.clean(text)
    assert len(cleaned.text) < len(text)
    assert {span.kind for span in cleaned.reported} <= {SpanKind.SPECIAL}


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


def test_findings_say_how_sure_they_are():
    text = "air [SEP] able able able able and very very very very good"
    cleaned = CLEANER.clean(text)
    assert cleaned.text == "air and very very very very good"
    assert [(span.kind, span.fix) for span in cleaned.reported] == [(SpanKind.REPETITION, Fix.UNSAFE)]
    assert [(removal.kind, text[removal.start : removal.end]) for removal in cleaned.removals] == [
        (SpanKind.SPECIAL, "[SEP] "),
        (SpanKind.FLAGGED, "able able able able "),
    ]
    assert CLEANER.would_change(CLEANER.find(text))
    assert not CLEANER.would_change(cleaned.reported)
    assert EVERYTHING.would_change(cleaned.reported)


@given(
    st.lists(texts, min_size=2, max_size=3),
    st.sampled_from((None, "{0} {1}", "{0} | {1}", " {1}. {0} {1}", "{1} [SEP] able {0}")),
)
@settings(max_examples=160)
def test_texts_that_are_one_document_are_cleaned_as_one(parts, template):
    document = document_of(parts, template)
    cleaned, cuts_by_part = clean_document(CLEANER, document)
    removed = {offset for removal in cleaned.removals for offset in range(removal.start, removal.end)}
    in_parts = set()
    for part, part_starts, cuts in zip(parts, document.starts, cuts_by_part, strict=True):
        gone = {offset for start, end in cuts for offset in range(start, end)}
        offsets_in_text = [range(start, start + len(part)) for start in part_starts]
        in_parts |= {offset for offsets in offsets_in_text for offset in offsets}
        assert gone == {
            offset
            for offset in range(len(part))
            if any(offsets[offset] in removed for offsets in offsets_in_text)
        }
    assert all(in_parts.intersection(range(removal.start, removal.end)) for removal in cleaned.removals)
    # What is reported is what the columns, written back, still have; nothing else may go.
    cleaned_parts = list(map(cut, parts, cuts_by_part))
    again, further_cuts = clean_document(CLEANER, document_of(cleaned_parts, template))
    assert not any(further_cuts)
    assert findings_of(again) == findings_of(cleaned)
    assert cleaned.text.split() == document_of(cleaned_parts, template).text.split()
    whole = CLEANER.clean(document.text)
    if cleaned.text == whole.text:
        assert cleaned.reported == whole.reported
        assert template is not None or cleaned == whole
    if not any(span.fix is Fix.SAFE for span in CLEANER.find(document.text)):
        assert not any(cuts_by_part)


def document_of(parts, template=None):
    text, starts = Columns(template=template).fill({str(number): part for number, part in enumerate(parts)})
    return Document(0, "0", text, parts=tuple(parts), starts=tuple(starts.values()))


def findings_of(cleaned):
    return [(span.kind, span.what, span.count, span.fix) for span in cleaned.reported]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>air <s>flow</s></p>", False),  # ordinary HTML
        ("<p>air <s>flow</s> [MASK]</p>", True),
        ("air <s> flow", True),
        ("`air [MASK]` flow", True),  # stays, but somebody must decide
        ("<p>air `</s>` flow</p>", True),
        ("<p>air &lt;/s&gt; flow</p>", True),
        ("<p>" + "<s>" * 8 + "</p>", True),
    ],
)
def test_tags_of_html_are_no_reason_to_set_a_document_aside(text, expected):
    rules = CleaningRules(specials=("<s>", "</s>", "[MASK]"))
    for unsafe_fixes in (False, True):
        cleaner = Cleaner(rules, unsafe_fixes=unsafe_fixes)
        assert cleaner.would_change(cleaner.find(text)) is expected


def test_a_document_of_one_text_is_cleaned_as_the_text():
    text = "air [SEP] able able able able flow very very very very good"
    assert clean_document(CLEANER, document_of([text]))[0] == CLEANER.clean(text)


def test_what_a_cut_would_join_to_another_column_is_cleaned_apart():
    """Without both [SEP], the whole text would have "titleable", and two copies."""
    parts = ["A title[SEP]", "[SEP]able able able the flow"]
    cleaned, cuts_by_part = clean_document(CLEANER, document_of(parts))
    assert list(map(cut, parts, cuts_by_part)) == ["A title", "the flow"]
    assert cleaned.text == "A title the flow"
    assert [removal.what for removal in cleaned.removals] == ["[SEP]", "[SEP]", "able"]
    assert cleaned.reported == ()


def test_a_guess_is_reported_and_taken_out_only_on_request():
    words = [f"word{number}" for number in range(15)]
    text = " ".join(f"{word} zebra" if number % 2 else word for number, word in enumerate(words))
    cleaned = CLEANER.clean(text)
    assert cleaned.text == text
    assert {span.kind for span in cleaned.reported} == {SpanKind.SUSPECTED}
    assert EVERYTHING(text) == " ".join(words)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cleaner(("able",)), naming("rules", "('able',)")),
        (lambda: Cleaner(RULES, unsafe_fixes="yes"), naming("unsafe_fixes", "'yes'")),
        (lambda: CLEANER(b"able"), naming(b"able")),
        (lambda: CleaningRules(words=("able", " ")), naming("words", "' '")),
        (lambda: CleaningRules(words="able"), naming("words", "'able'")),
        (lambda: CleaningRules(longest_run=1), naming("longest_run", 1, 2)),
        (lambda: CleaningRules(words=("able", "a\ud800")), naming("words", r"'a\ud800'")),
        (lambda: CleaningRules(normalizer="{}"), naming("normalizer", "'{}'")),
    ],
)
def test_what_cannot_be_used_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_cleaner_is_read_as_it_was_written(tmp_path):
    cleaner = Cleaner(RULES, source={"model": "minilm"})
    cleaner.save(tmp_path / "rules.json")
    again = Cleaner.from_file(tmp_path / "rules.json")
    assert (again.rules, again.unsafe_fixes, again.source) == (RULES, False, {"model": "minilm"})
    assert Cleaner.from_file(tmp_path / "rules.json", unsafe_fixes=True).unsafe_fixes
    assert Cleaner.from_json(EVERYTHING.to_json()).unsafe_fixes
    assert (tmp_path / "rules.json").read_bytes().isascii()


def test_rules_that_were_written_before_special_tokens_were_normalised_are_read(tmp_path):
    (tmp_path / "rules.json").write_text(without("normalized_specials"), "utf-8")
    assert Cleaner.from_file(tmp_path / "rules.json").rules == RULES


def damaged(entry, value):
    document = CLEANER.to_json()
    return json.dumps(document | {"rules": document["rules"] | {entry: value}})


def without(entry):
    document = CLEANER.to_json()
    del document["rules"][entry]
    return json.dumps(document)


def charsmap(content):
    """A normaliser of SentencePiece; the tokenizers library panics if its content is damaged."""
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("", ()),
        ("[" * 100_000, ()),
        ("{}", ()),
        ('{"format": "stickytoken cleaner"}', ["'rules'"]),
        (damaged("version", 2), ["version", 2]),
        (damaged("words", "able"), ["words", "'able'"]),
        (damaged("unknown", 1), ["'unknown'"]),
        (json.dumps(CLEANER.to_json() | {"actions": {"flagged": "report"}}), ["'actions'", "--rules-out"]),
        (json.dumps(CLEANER.to_json() | {"remove_all": True}), ["'remove_all'", True]),
        (damaged("normalizer", {"type": "Unknown"}), ["normalizer", "Unknown"]),
        (damaged("normalizer", charsmap(b"\0\0\0")), ["normalizer"]),
        (damaged("normalizer", charsmap(b"\4\0\0\0" + b"\xff" * 4)), ["normalizer"]),
        (damaged("allowed", ["\ud800"]), ["allowed", r"'\ud800'"]),
        (without("version"), ["version"]),
        *(
            (without(field.name), [repr(field.name)])
            for field in fields(CleaningRules)
            if field.name != "normalized_specials"
        ),
    ],
)
def test_a_file_that_is_no_cleaner_is_refused(tmp_path, content, values):
    path = tmp_path / "rules.json"
    with pytest.raises(InputError, match=naming(path)):
        Cleaner.from_file(path)
    path.write_text(content)
    with pytest.raises(InputError, match=naming(path, *values)):
        Cleaner.from_file(path)
    with pytest.raises(RunError, match=naming(tmp_path / "nowhere" / "rules.json")):
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
    assert says(errors, "2 of 2", "flagged token: 1", "special token: 1")
    assert says(errors, "1 record", "unchanged")
    assert says(errors, "line 2", "byte 30", "0xff", "UTF-8")


@contextmanager
def cleaning_stream(cleaner_file, *arguments):
    """Start ``clean`` on a pipe; yield it, and a function that writes a line and reads the answer."""
    command = [sys.executable, "-m", "stickytoken", "clean", str(cleaner_file), "-", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:

        def answer(line):
            process.stdin.write(line)
            process.stdin.flush()
            return process.stdout.readline()

        yield process, answer


# Lines of a slow producer, and the answer to each, which it gets before it writes the next.
TEXT_LINES = [
    (b"[SEP] air\n", b"air\n"),
    (b"\n", b"\n"),
    (b"broken \xff\r\n", b"broken \xff\r\n"),
    (b"flow [SEP]\n", b"flow\n"),
]
JSON_LINES = [
    (b'{"kind": "begin"}\n', b'{"kind": "begin"}\n'),
    (b'{"text": "[SEP] air"}\n', b'{"text": "air"}\n'),
    (b'{"text": "brok\n', b'{"text": "brok\n'),
    (b"[1]\n", b"[1]\n"),
    (b" \n", b" \n"),
    (b'{"id": 2, "text": "flow [SEP]"}\r\n', b'{"id": 2, "text": "flow"}\r\n'),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "lines"), [((), TEXT_LINES), (("--column", "text"), JSON_LINES)], ids=["text", "json"]
)
def test_lines_of_standard_input_are_answered_one_by_one(cleaner_file, arguments, lines):
    with cleaning_stream(cleaner_file, *arguments) as (process, answer):
        for line, expected in lines:
            assert answer(line) == expected
        rest, errors = process.communicate()
    assert (process.returncode, rest) == (0, b"")
    assert says(errors.decode(), "special token: 2")


@pytest.mark.slow
def test_ctrl_c_ends_a_stream_in_one_line(cleaner_file):
    with cleaning_stream(cleaner_file) as (process, answer):
        assert answer(b"[SEP] air\n") == b"air\n"
        time.sleep(0.5)  # until it waits for the next line
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        process.kill()
        assert process.wait() == 130
        assert process.stderr.read() == b"interrupted\n"


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_a_stream_quietly(cleaner_file):
    with cleaning_stream(cleaner_file, "--column", "text") as (process, answer):
        assert answer(b'{"text": "[SEP] air"}\n') == b'{"text": "air"}\n'
        process.stdout.close()
        process.stdin.write(b'{"text": "flow"}\n')
        process.stdin.close()
        assert process.wait() == 141
        assert process.stderr.read() == b""


def test_a_column_that_no_line_has_is_an_error_at_the_end(cleaner_file):
    content = b'{"text": "[SEP] air"}\n'
    status, output, errors = clean(cleaner_file, "--column", "body", content=content)
    assert (status, output) == (1, content)
    assert says(errors, "'body'", "text")


def test_a_column_may_be_missing_from_the_first_line(cleaner_file):
    content = b'{"text": "[SEP] air"}\n{"title": "[SEP] wing", "text": "flow"}\n'
    status, output, _ = clean(cleaner_file, "--column", "title", "--column", "text", content=content)
    assert (status, output) == (0, content.replace(b"[SEP] ", b""))


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
    ("arguments", "status", "values"),
    [
        ("nowhere", 1, ["'nowhere'"]),
        ("RULES nowhere.txt", 1, ["nowhere.txt"]),
        ("RULES .", 1, ["folder", "file"]),
        ("RULES --diff --format json", 2, ["--diff", "--format json"]),
        ("RULES --quarantine aside.txt", 2, ["--quarantine", "--out"]),
        ("RULES --allow nowhere.txt", 1, ["nowhere.txt"]),
    ],
)
def test_what_is_wrong_with_a_command_is_said_in_one_line(cleaner_file, arguments, status, values):
    arguments_of_case = arguments.replace("RULES", str(cleaner_file)).split()
    found, _, errors = clean(*arguments_of_case, content=b"air\n[SEP]\n")
    assert (found, errors.count("\n")) == (status, 1)
    assert says(errors, *values)


def test_the_rules_of_a_run_can_be_written_and_used(planted_run, tmp_path):
    status, output, errors = clean(planted_run, "--rules-out", tmp_path / "rules.json")
    assert (status, output) == (0, b"")
    cleaner = Cleaner.from_file(tmp_path / "rules.json")
    assert f"{len(cleaner.rules.words)} words" in errors
    assert "<|endoftext|>" in cleaner.rules.specials
    assert cleaner.source["identity"]


def test_a_tag_that_is_an_ordinary_entry_stays_in_documents(planted_run, tmp_path):
    """As in the vocabulary of Gemma, which has tags of HTML beside its special tokens."""
    folder = tmp_path / "run"
    shutil.copytree(planted_run, folder)
    vocabulary = open_run(folder).vocabulary
    is_special = pl.col("special")
    ordinary_id = vocabulary.filter(~is_special, category="OK")["token_id"][0]
    renamed = pl.when(token_id=ordinary_id).then(pl.lit("<table>"))
    vocabulary.with_columns(
        token=renamed.otherwise("token"), decoded=renamed.otherwise("decoded")
    ).write_parquet(folder / "vocabulary.parquet")
    rules = rules_of_run(open_run(folder))
    assert "<table>" not in rules.specials
    assert set(vocabulary.filter(is_special, category="OK")["decoded"]) <= set(rules.specials)
    text = "<table> of wings"
    assert Cleaner(rules)(text) == text


@pytest.mark.parametrize(
    "text", ["&lt;|endoftext|&gt; wing", "&#60;|endoftext|> wing", "&lsqb;CLS&rsqb; wing"]
)
def test_special_tokens_written_as_entities_are_reported_and_left_alone(text):
    cleaner = Cleaner(CleaningRules(specials=("<|endoftext|>", "[CLS]")), unsafe_fixes=True)
    cleaned = cleaner.clean(text)
    assert [span.kind for span in cleaned.reported] == ["special"]
    assert cleaned.text == text


def test_cells_of_a_table_in_latex_are_data():
    row = r"a & yes & yes & yes & yes & yes \\ \hline"
    assert Cleaner(CleaningRules(), unsafe_fixes=True).clean(row).text == row
    prose = "harbor & harbor & harbor & harbor & harbor"
    assert Cleaner(CleaningRules()).find(prose)


@pytest.mark.parametrize("invisible", ["\u200b", "\u00ad", "\u2060"])
def test_an_invisible_character_that_separates_words_stays(invisible):
    text = f"the wing {invisible.join(['harbor'] * 6)} is safe"
    cleaned = Cleaner(CleaningRules(), unsafe_fixes=True).clean(text).text
    assert "harborharbor" not in cleaned
    assert cleaned.replace(invisible, " ").split() == "the wing harbor is safe".split()
