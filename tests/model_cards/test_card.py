"""The block of a model card: what it says, and that it touches nothing else."""

import html
import json
import math
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt

import planted
import profiled
from hostile import HOSTILE, assert_harmless
from naming import naming, says
from stickytoken import model_cards as cards, open_run
from stickytoken.errors import InputError, RunError

BLOCK = f"{cards.BEGIN}\n\n## Sticky tokens\n\nnone\n\n{cards.END}"
OTHER = f"{cards.BEGIN}\n\nanother\n\n{cards.END}"
FRONT = b"---\nlicense: mit   # \xc3\xa9\ntags:\n- a\n---\n\n# A model\r\n\n"


@pytest.fixture(scope="module")
def run(planted_profile):
    return open_run(planted_profile[1])


@pytest.fixture
def changed(run, tmp_path):
    folder = Path(shutil.copytree(run.path, tmp_path / "changed"))
    record = json.loads((folder / "run.json").read_text("utf-8"))
    identity_parts = {
        "model": {"name": "/secret/place/my-model"},
        "corpus": {"source": "/secret/place/texts.jsonl"},
    }
    planted.edit_record(folder, **{name: record[name] | change for name, change in identity_parts.items()})
    return folder


def test_it_says_what_the_run_found(run):
    block = cards.card_block(run)
    assert block.startswith(f"{cards.BEGIN}\n")
    assert block.endswith(f"\n{cards.END}")
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(block)
    row = run.sticky.row(0, named=True)
    # An interval is rounded outward.
    low, high = math.floor(100 * row["erased_low"]), math.ceil(100 * row["erased_high"])
    assert f"{100 * row['erased']:.0f}% ({low}% to {high}%)" in page
    assert says(page, f"1 of {profiled.AVAILABLE}")
    assert "no longer found for what they say" in page
    assert run.record.identity[:12] in page
    assert block == cards.card_block(open_run(run.path))


def test_a_token_has_its_measures_in_the_units_of_the_rule(run):
    row = run.sticky.row(0, named=True)
    (item,) = [line for line in cards.card_block(run).split("\n") if line.startswith("- ")]
    assert f"erased {100 * row['erased']:.0f}%" in item
    # The share of a whole text is another number, and would contradict this one.
    assert "of a text" not in item


def test_what_holds_for_all_tokens_stands_once(changed):
    table = pl.read_parquet(changed / "tokens.parquet").sort("erased", descending=True).head(3)
    flagged = {"verdict": pl.lit("sticky"), "severity": pl.lit("severe"), "erased_low": pl.lit(0.8)}
    planted.replace_tokens(changed, table.with_columns(**flagged))
    block = cards.card_block(open_run(changed))
    assert len([line for line in block.split("\n") if line.startswith("- ")]) == 3
    assert block.count("no longer found for what they say") == 1


def test_a_card_without_pushes_says_so(changed):
    plan = json.loads((changed / "plan.json").read_text("utf-8"))
    (changed / "plan.json").write_text(json.dumps(plan | {"documents": None}), encoding="utf-8")
    result = json.loads((changed / "run.json").read_text("utf-8"))["result"]
    planted.edit_record(changed, result=result | {"ordinary_push": None, "in_documents": 0})
    assert "No token's push was measured" in cards.card_block(open_run(changed))


def test_folders_of_this_machine_stay_out_of_it(changed):
    block = cards.card_block(open_run(changed))
    assert "secret" not in block
    assert "my-model" in block
    assert "texts.jsonl" in block


def test_the_folder_of_a_run_of_the_paper_stays_out_of_it_too(small_run):
    block = cards.card_block(small_run)
    (line,) = [line for line in block.split("\n") if "candidates.csv" in line]
    assert "/" not in line


def test_hostile_texts_stay_text(changed):
    table = pl.read_parquet(changed / "tokens.parquet").sort("erased", descending=True)
    texts = [f"{cards.END}\n", "<!-- stickytoken:begin -->", "|a|`b`@c #1", "<img src=x>", *HOSTILE]
    planted.edit_record(changed, versions={"stickytoken": texts[0]})
    flagged = {"verdict": pl.lit("sticky"), "severity": pl.lit("severe")}
    for start in range(0, len(texts), 8):
        named = table.head(8).with_columns(token=pl.Series((texts + texts)[start : start + 8]), **flagged)
        planted.replace_tokens(changed, named)
        block = cards.card_block(open_run(changed))
        assert_harmless(block)
        assert (block.count("<"), block.count("<!--")) == (2, 2)
        page = MarkdownIt("commonmark", {"html": True}).enable("table").render(block)
        assert page.count("<table>") == 1
        assert "<a" not in page


PAGE = Path(__file__).resolve().parents[2] / "docs" / "models" / "README.md"
HEADER = next(line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| model |"))


def cells_of(row):
    """The cells of a row below the header of the table of measured models, without escapes."""
    columns = HEADER.count("|") - 1
    page = MarkdownIt("commonmark").enable("table").render(f"{HEADER}\n{'|---' * columns}|\n{row}")
    return [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page)]


def test_a_row_names_the_worst_token_of_each_measure_and_the_cost(run):
    name, measured, sticky, hides, pushes, cost = cells_of(cards.table_row(run))
    assert name == run.record.model.short_title
    assert measured.startswith(run.record.started[:10])
    assert sticky == f"1 of {profiled.AVAILABLE}"
    worst = run.sticky.row(0, named=True)
    assert hides.startswith(f"{worst['token']!r} {100 * worst['erased']:.0f}% (")
    confirmed = run.tokens.filter("confirmed")
    largest = confirmed.sort("push", descending=True, nulls_last=True).row(0, named=True)
    assert pushes.startswith(f"{largest['token']!r} {largest['push']:.1f}× (")
    assert cost == f"{run.result.sequences:,} texts, 1 minute, 1 CPU thread"


def test_a_row_says_that_only_a_sample_was_examined(changed):
    planted.replace_tokens(changed, pl.read_parquet(changed / "tokens.parquet").head(40))
    planted.edit_record(changed, beside_sample=[])
    assert cells_of(cards.table_row(open_run(changed)))[2].endswith("(a random sample)")


def test_a_row_of_hostile_texts_stays_one_row(changed):
    table = pl.read_parquet(changed / "tokens.parquet").sort("erased", descending=True)
    for text in ("|a|`b`\n", "<img src=x>", *HOSTILE):
        named = pl.when(pl.int_range(pl.len()) == 0).then(pl.lit(text)).otherwise("token").alias("token")
        table.with_columns(named).write_parquet(changed / "tokens.parquet")
        row = cards.table_row(open_run(changed))
        assert_harmless(row)
        assert len(cells_of(row)) == 6


TEXT = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "stickytoken" not in text)


@given(TEXT, st.sampled_from(["", "\n", "\r\n", "\n\n", "\r\n\r\n"]))
def test_a_new_block_goes_behind_all_bytes(text, ending):
    card = (text + ending).encode()
    after = cards.with_block(card, BLOCK, "card")
    assert after.startswith(card)
    assert after.replace(b"\r\n", b"\n").count(BLOCK.encode()) == 1
    assert cards.with_block(after, BLOCK, "card") == after


@given(TEXT, TEXT, st.sampled_from(["\n", "\r\n"]))
def test_a_block_replaces_the_earlier_one_and_no_other_byte(above, below, newline):
    head = f"{above}{newline}".encode()
    tail = f"{newline}{below}".encode()
    card = head + OTHER.replace("\n", newline).encode() + tail
    after = cards.with_block(card, BLOCK, "card")
    assert after.startswith(head)
    assert after.endswith(tail)
    assert after[len(head) : len(after) - len(tail)].replace(b"\r\n", b"\n") == BLOCK.encode()
    assert cards.with_block(after, OTHER, "card").replace(b"\r\n", b"\n") == card.replace(b"\r\n", b"\n")


def test_damaged_markers_are_refused_and_nothing_is_written(tmp_path):
    path = tmp_path / "README.md"
    for card in (
        cards.BEGIN,
        f"{cards.END}\n{cards.BEGIN}",
        f"{BLOCK}\n{BLOCK}",
        f"text {cards.BEGIN}\n{cards.END}",
        f"{BLOCK}\n<!-- StickyToken:beg",
    ):
        path.write_bytes(card.encode())
        with pytest.raises(InputError, match=naming(path, cards.BEGIN, cards.END)):
            cards.write_block(BLOCK, path)
        assert path.read_bytes() == card.encode()


def test_the_file_is_written_once(tmp_path):
    path = tmp_path / "README.md"
    path.write_bytes(FRONT)
    path.chmod(0o640)
    link = tmp_path / "link.md"
    link.symlink_to(path)
    assert cards.write_block(BLOCK, link) is True
    written = path.stat()
    assert link.is_symlink()
    assert written.st_mode & 0o777 == 0o640
    assert cards.write_block(BLOCK, str(path)) is False
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    path.write_bytes(b"")
    assert cards.write_block(BLOCK, path) is True
    assert path.read_text("utf-8") == f"{BLOCK}\n"
    with pytest.raises(InputError, match=naming(tmp_path / "absent.md")):
        cards.write_block(BLOCK, tmp_path / "absent.md")
    with pytest.raises(RunError, match=naming(tmp_path)):
        cards.write_block(BLOCK, tmp_path)
    path.write_bytes("# a".encode("utf-16"))
    with pytest.raises(InputError, match=naming(path, "UTF-8")):
        cards.write_block(BLOCK, path)


def test_the_command_prints_writes_and_says_what_changed(run, tmp_path):
    assert planted.command("card", run.path).stdout == f"{cards.card_block(run)}\n"
    path = tmp_path / "README.md"
    path.write_bytes(FRONT)
    first = planted.command("card", run.path, "--model-card", path)
    assert (first.exit_code, first.stdout, "written" in first.stderr) == (0, "", True)
    again = planted.document(planted.command("card", run.path, "--model-card", path, "--format", "json"))
    assert (again["changed"], again["block"]) == (False, cards.card_block(run))
    planted.assert_refused("card", run.path, "--table", "--model-card", path, saying="--table")
    assert planted.command("card", run.path, "--table").stdout == f"{cards.table_row(run)}\n"
