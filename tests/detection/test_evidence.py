"""What a run keeps for its reports, against plain computations; run folders that somebody has changed."""

import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import planted
import profiled
from stickytoken import load_encoder, open_run, report
from stickytoken.detection import evidence as measuring
from stickytoken.detection.evidence import unknown_copies
from stickytoken.detection.run_folder import EVIDENCE_FILE, EVIDENCE_RECORD_FILE
from stickytoken.methods.symptoms import SymptomStage
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import categorize

FILES = (EVIDENCE_FILE, EVIDENCE_RECORD_FILE)


@pytest.fixture(scope="module")
def model(planted_profile):
    return load_encoder(planted_profile[0])


@pytest.fixture(scope="module")
def run(planted_profile):
    return open_run(planted_profile[1])


def plain_similarities(encoder, run, token_id):
    """Similarities before, and with each number of copies behind the carrier, one text at a time."""
    plan, record = run.plan, run.evidence.record
    fixed = unit_vectors(encoder.encode(plan.anchors))
    copies = run.evidence.tokens["copies"][0].to_list()
    ids = [text.ids for text in encoder.tokenize(record.carriers)]
    return {
        n: np.array([unit_vectors(encoder.encode_ids([(*row, *[token_id] * n)]))[0] @ fixed.T for row in ids])
        for n in copies
    }


def test_curves_and_pairs_are_those_of_a_plain_computation(model, run):
    evidence = run.evidence
    sentences = run.plan.anchors
    for row in evidence.tokens.filter(~pl.col("ordinary")).head(2).to_dicts():
        similarities = plain_similarities(model, run, row["token_id"])
        below = similarities[0] < run.mean_similarity
        for side, pairs in (("below", below), ("above", ~below)):
            expected = [float(similarities[n][pairs].mean()) for n in row["copies"]]
            assert row[side] == pytest.approx(expected, abs=1e-5)
        after = similarities[evidence.record.pair_copies]
        before = similarities[0]
        readable = [[len(carrier.split()) >= 4] for carrier in evidence.record.carriers]
        if not np.any(readable):
            readable = True
        rises = np.where(below & readable, after - before, np.nan)
        mean = (after - before)[below].mean()
        for kind, rise in (
            ("largest", np.nanmax(rises)),
            ("typical", rises.flat[np.nanargmin(np.abs(rises - mean))]),
        ):
            carrier = evidence.record.carriers.index(row[f"{kind}_carrier"])
            anchor = sentences.index(row[f"{kind}_anchor"])
            assert row[f"{kind}_before"] == pytest.approx(before[carrier, anchor], abs=1e-5)
            assert row[f"{kind}_after"] == pytest.approx(after[carrier, anchor], abs=1e-5)
            assert row[f"{kind}_after"] - row[f"{kind}_before"] == pytest.approx(rise, abs=1e-5)


def test_the_planted_token_is_shown_first_beside_ordinary_ones(run):
    tokens = run.evidence.tokens
    assert tokens["token_id"][0] == run.sticky["token_id"][0]
    assert tokens["ordinary"].to_list() == [False] * 4 + [True] * 8
    assert tokens["token_id"].n_unique() == len(tokens)
    flagged = run.tokens.filter(pl.col("verdict") != "benign")["token_id"]
    assert not tokens.filter("ordinary")["token_id"].is_in(flagged.to_list()).any()
    curve = tokens.row(0, named=True)
    control = np.mean(tokens.filter("ordinary")["below"].to_list(), axis=0)
    assert curve["below"][-1] - curve["below"][0] > 2 * abs(control[-1] - control[0])


@pytest.mark.slow
def test_evidence_changes_no_number_of_the_run(model, run, tmp_path):
    without = profiled.detect_in_documents(model, tmp_path / "run", evidence=False)
    assert without.evidence is None
    assert not any((without.path / name).exists() for name in FILES)
    assert without.record.identity == run.record.identity
    assert without.result.sequences == run.result.sequences
    assert (without.path / "tokens.parquet").read_bytes() == (run.path / "tokens.parquet").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_a_finished_run_gets_what_is_missing_and_nothing_else(model, run, tmp_path, name):
    run_copy = Path(shutil.copytree(run.path, tmp_path / "run"))
    (run_copy / name).unlink()
    assert open_run(run_copy).evidence is None
    before = {key: content for key, content in planted.files_of(run_copy).items() if key not in FILES}
    assert profiled.detect_in_documents(model, run_copy).evidence.tokens.equals(run.evidence.tokens)
    after = {key: content for key, content in planted.files_of(run_copy).items() if key not in FILES}
    assert after == before


COMMANDS = [["show"], ["card"], ["report", "--format", "md"], ["check"], ["clean", "documents.txt"]]


def changed(**columns):
    return lambda table: table.with_columns(**columns)


HALF = pl.int_range(pl.len()) % 2 == 0
CHANGES = {
    "tokens.parquet": {
        "erased as text": changed(erased=pl.col("erased").cast(pl.String)),
        "severity as numbers": changed(severity=pl.lit(3)),
        "no rows": lambda table: table.clear(),
        "shares not numbers": changed(erased=pl.lit(float("nan"))),
        "tokens unknown": changed(token=pl.when(HALF).then("token")),
        "ids twice": changed(token_id=pl.lit(7)),
        "no verdict": changed(verdict=pl.lit(None, dtype=pl.String)),
        "a column missing": lambda table: table.drop("erased_low"),
    },
    "vocabulary.parquet": {
        "entries unknown": changed(token=pl.when(HALF).then("token")),
        "a long entry": changed(token=pl.lit("a b" * 100_000), decoded=pl.lit("a b" * 100_000)),
        "no rows": lambda table: table.clear(),
        "ids missing": lambda table: table.drop("token_id"),
    },
    "evidence.parquet": {
        "other ids": changed(token_id=pl.col("token_id") + 10**6),
        "no rows": lambda table: table.clear(),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name, changes in CHANGES.items() for change in changes],
    ids=lambda value: value.replace(" ", "-"),
)
def test_every_command_ends_in_a_line(planted_profile, name, change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents.txt").write_text("the river sings\n", encoding="utf-8")
    folder = tmp_path / "run"
    shutil.copytree(planted_profile[1], folder)
    path = folder / name
    CHANGES[name][change](pl.read_parquet(path)).write_parquet(path)
    for command, *arguments in COMMANDS:
        result = planted.command(command, folder, *arguments)
        assert isinstance(result.exception, SystemExit | None), (command, result.exception)
        if result.exit_code not in (0, 10):
            assert re.search("^(error|inconclusive):", result.stderr, re.MULTILINE), (command, result.stderr)


def test_copies_that_become_an_unknown_word_are_found(encoder):
    stage = SymptomStage(("the old bird", "a stone"), (1, 8, 40), panel=None)
    index = categorize(encoder.tokenizer).tokens.index("river")
    assert unknown_copies(encoder, stage, categorize(encoder.tokenizer).token(index)) == {40}


def test_curves_leave_out_copies_that_become_an_unknown_word(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "unknown_copies", lambda encoder, stage, token: {2} & set(stage.copies))
    run = planted.detect_thirty(encoder, tmp_path / "run")
    row = run.evidence.tokens.row(0, named=True)
    for copies, value in zip(row["copies"], row["below"], strict=True):
        assert (value is None) == (copies == 2)
    message = run.evidence.cut_curves()
    assert re.match(r"the curve of token \d+ \(also of \d+ more tokens\) leaves out 2 copies", message)
    assert "symptom-curves" in report(run)
