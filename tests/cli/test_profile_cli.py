"""The profile method on the command line: the default of detect and probe, and show on its runs."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest

import planted
import profiled
import tiny
from hostile import HOSTILE, assert_harmless
from stickytoken import open_run
from stickytoken.methods.profile._judging import ProfileEvidence
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import TOKEN_COLUMNS

SUMMARY = set("run method model available looked_at candidates sticky topical sequences seconds".split()) | {
    "ordinary_lift", "ordinary_spread", "empirical_null", "screening_carriers", "texts_per_token",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with models and sentences."""
    folder = tmp_path_factory.mktemp("profile")
    profiled.planted_model(2).save(str(folder / "planted"))
    profiled.planted_model(0).save(str(folder / "ordinary"))
    profiled.planted_model(2, words=()).save(str(folder / "small"))
    profiled.planted_model(2, common=3).save(str(folder / "above"))
    constant = profiled.planted_model(0)
    constant[0].embedding.weight.data[:] = 1
    constant.save(str(folder / "constant"))
    for name, texts in {
        "sentences.txt": profiled.sentences(200),
        "90.txt": profiled.sentences(90),
        "equal.txt": ["baba kora."] * 300,
        "chosen.txt": ["!", "river", "stone"],
        "small.txt": tiny.sentences(120),
    }.items():
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    pairs = "sentence1,sentence2,similarity\nthe bird.,a song.,-0.5\na river.,the stone.,-0.4\n"
    (folder / "pairs.csv").write_text(pairs, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def options(place):
    """The least that a command needs beside the model."""
    return ["--sentences", place / "sentences.txt", "--device", "cpu"]


@pytest.fixture(scope="module")
def run(place, options):
    """The folder of a run over the whole vocabulary."""
    result = planted.command("detect", place / "planted", *options, "--out", place / "run")
    assert result.exit_code == 0, result.stderr
    return place / "run"


# detect


def test_detect_gives_one_document_which_show_repeats(place, options, tmp_path):
    arguments = ("detect", place / "planted", *options, "--out", tmp_path / "run", "-f", "json")
    found = planted.document(planted.command(*arguments))
    assert set(found) == SUMMARY
    assert (found["method"], found["run"]) == ("profile", str(tmp_path / "run"))
    assert found["available"] == found["looked_at"] == profiled.AVAILABLE
    assert found["empirical_null"] is False  # its ordinary tokens differ by no more than noise
    (sticky,) = found["sticky"]
    assert set(sticky) == set(TOKEN_COLUMNS)
    assert (sticky["token"], sticky["verdict"]) == (planted.PLANTED, "sticky")
    for again in (arguments, ("show", tmp_path / "run", "--format", "json")):
        assert planted.document(planted.command(*again)) == found


@pytest.mark.slow
def test_detect_says_first_whether_there_is_a_problem(place, run, options, tmp_path):
    shown = planted.command("show", run)
    detected = planted.command("detect", place / "planted", *options, "--out", run)
    assert shown.exit_code == 0
    assert shown.stdout == detected.stdout
    first, second, *_ = shown.stdout.splitlines()
    found = open_run(run)
    moved = (found.sticky["lift"].item() - found.result.ordinary_lift) / found.plan.similarity_spread
    assert first == (
        f"{place / 'planted'} has 1 sticky token (1 severe); the worst, '!', moves unrelated texts together "
        f"by {moved:.1f} standard deviations of the model's similarities more than an ordinary token does."
    )
    assert second.strip() == f"Sticky tokens of {place / 'planted'}"
    assert re.search(r"34 +! +( +[\d.]+){4} +severe +sticky", shown.stdout)
    assert f"method profile, all {profiled.AVAILABLE} of {profiled.AVAILABLE} available" in shown.stdout
    assert f"{found.result.texts_per_token:g} texts per token" in shown.stdout
    assert "its tokens too similar, to tell what is ordinary" in shown.stderr
    ordinary = planted.command("detect", place / "ordinary", *options, "--out", tmp_path / "run")
    assert f"{place / 'ordinary'} has no sticky tokens; the one that lifts texts most, " in ordinary.stdout


def test_tokens_that_were_asked_for_are_all_listed(place, options, tmp_path):
    given = [*options, *"--tokens ! --tokens a --out".split(), tmp_path / "run"]
    result = planted.command("detect", place / "planted", *given)
    assert result.stdout.splitlines()[1].strip() == f"Tokens of {place / 'planted'} that were asked for"
    assert re.search(r"34 +! +.* sticky *\n *\d+ +a +.* benign *$", result.stdout, re.MULTILINE)


def test_progress_goes_to_stderr_round_by_round(place, options, tmp_path):
    result = planted.command(
        "detect", place / "planted", *options, "--sample", "9", "--out", tmp_path / "run"
    )
    assert result.exit_code == 0
    stages = [one.split(":")[0] for one in planted.lines_of(result.stderr) if one[:4] not in ("note", "next")]
    assert stages == ["mean similarity", "pilot", "screen", "confirm", "evidence", "report"]
    assert f"a selection of 9 of {profiled.AVAILABLE} available tokens; random tokens" in result.stdout
    assert "texts a token" not in result.stdout


def test_detect_names_its_folder_after_the_method(place, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = (*options, "--tokens", place / "chosen.txt", "-f", "json")
    found = planted.document(planted.command("detect", place / "planted", *arguments))
    assert re.fullmatch(r"runs/planted-profile-[0-9a-f]{12}", Path(found["run"]).as_posix())
    assert open_run(found["run"]).tokens["token"].to_list() == ["!", "river", "stone"]
    assert found["looked_at"] == 3
    assert [row["token"] for row in found["sticky"]] == ["!"]


@pytest.mark.slow
def test_the_options_of_detect_reach_the_run(place, options, tmp_path):
    given = (
        "--method profile --seed 9 --insertion text --budget 8 --confidence 0.8 --fdr 0.1 "
        "--smallest-effect 0.3 --no-adaptive --sample 12"
    ).split()
    result = planted.command("detect", place / "planted", *options, *given, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    run = open_run(tmp_path / "run")
    settings = run.record.settings
    assert (settings["seed"], settings["insertion"], settings["budget"]) == (9, "text", 8)
    assert (settings["confidence"], settings["fdr"], settings["smallest_effect"]) == (0.8, 0.1, 0.3)
    assert settings["adaptive"] is False
    assert set(run.tokens["texts"]) == {8}
    assert len(run.tokens) == 12
    defaults = planted.command(
        "detect", place / "planted", *options, "--adaptive", "--sample", "3", "--out", tmp_path / "other"
    )
    assert defaults.exit_code == 0, defaults.stderr
    assert open_run(tmp_path / "other").record.settings == json.loads(json.dumps(asdict(ProfileSettings())))


def test_a_small_vocabulary_is_noted(place, tmp_path):
    corpus = ("--sentences", place / "small.txt", "--device", "cpu")
    result = planted.command("detect", place / "small", *corpus, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    (note,) = [line for line in planted.lines_of(result.stderr) if line.startswith("note:")]
    assert (
        "the vocabulary is too small, or its tokens too similar, to tell what is ordinary: verdicts rest"
        in note
    )
    found = planted.document(planted.command("show", tmp_path / "run", "--limit", "999", "-f", "json"))
    assert found["empirical_null"] is False
    assert {row["q_value"] for row in found["tokens"]} == {None}
    assert len(found["tokens"]) == 95


def test_sticky_tokens_of_a_negligible_size_are_counted_as_such(run, tmp_path):
    """They exist where the smallest effect that matters was set to nothing."""
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    table = pl.read_parquet(folder / "tokens.parquet")
    sticky = table["token"].is_in(["river", "stone"])
    table.with_columns(
        verdict=pl.when(sticky).then(pl.lit("sticky")).otherwise("verdict"),
        severity=pl.when(sticky).then(pl.lit("negligible")).otherwise("severity"),
    ).write_parquet(folder / "tokens.parquet")
    assert (
        "has 3 sticky tokens (1 severe, 2 negligible); the worst, '!',"
        in planted.command("show", folder).stdout
    )


# What is refused

USAGE = {
    "--budget 1": "budget is 1.0: it must be a finite number of texts per available token, at least 3",
    "--budget nan": "budget is nan: it must be a finite number of texts per available token, at least 3",
    "--budget inf": "budget is inf: it must be a finite number of texts per available token, at least 3",
    "--budget 1e9": "only 200 sentences of .* leave room for the copies, .* are needed: use more or shorter",
    "--fdr 0": "fdr is 0.0: it must lie between 0 and 1",
    "--fdr 1": "fdr is 1.0: it must lie between 0 and 1",
    "--fdr 2": "fdr is 2.0: it must lie between 0 and 1",
    "--confidence 0": "confidence is 0.0: it must lie between 0 and 1",
    "--confidence 1": "confidence is 1.0: it must lie between 0 and 1",
    "--smallest-effect -1": "smallest_effect is -1.0: it must be a finite number of at least 0",
    "--sample 336": "sample is 336: it must be between 1 and 335",
    "--copies 3": "--copies is not an option of the method profile: leave it out, or use std",
    "--scoring-pairs 3": "--scoring-pairs is not an option of the method profile: leave it out, or use std",
    "--sentence-count 9": "--sentence-count is not an option of the method profile: leave it out, or use std",
    "--pair-count 9": "--pair-count is not an option of the method profile: leave it out, or use std",
    "--outlier-range 0.7": "--outlier-range is not an option of the method profile: leave it out, or use std",
    "--method std --budget 6": "--budget is not an option of the method std: leave it out, or use profile",
    "--method std --fdr 0.1": "--fdr is not an option of the method std: leave it out, or use profile",
    "--method std --no-adaptive": "--adaptive/--no-adaptive is not an option of the method std: leave it out",
}


@pytest.mark.parametrize("given", USAGE)
def test_an_option_that_cannot_be_met_is_refused(place, options, tmp_path, given):
    out = ("--out", tmp_path / "run")
    planted.refused("detect", place / "planted", *options, *given.split(), *out, saying=USAGE[given])


@pytest.mark.parametrize("given", ["--confidence 1", "--copies 3", "--pair-count 9"])
def test_an_option_that_a_probe_cannot_meet_is_refused(place, options, given):
    planted.refused("probe", place / "planted", "!", *options, *given.split(), saying=USAGE[given])


@pytest.mark.parametrize(
    ("model", "sentences", "saying"),
    [
        (
            "planted",
            "90.txt",
            "leaves 39 sentences to compare with: 51 carriers and at least 40 other sentences",
        ),
        ("planted", "equal.txt", "only 1 sentences of .* are needed: use more or shorter sentences$"),
        (
            "constant",
            "sentences.txt",
            "the same similarity .1.0000.: there is nothing that a token",
        ),
        (
            "above",
            "sentences.txt",
            "have a similarity below the model's mean .* on more varied",
        ),
    ],
)
def test_sentences_that_show_nothing_are_refused(place, tmp_path, model, sentences, saying):
    arguments = ("--sentences", place / sentences, "--device", "cpu")
    planted.refused("detect", place / model, *arguments, "--out", tmp_path / "run", saying=saying)
    planted.refused("probe", place / model, "!", *arguments, saying=saying)


def test_pairs_belong_to_the_method_std(place, tmp_path):
    pairs = ("--pairs", place / "pairs.csv", "--device", "cpu")
    saying = "takes no pairs: pass sentences, or use the method std"
    named = (*pairs, "--method", "profile")
    planted.refused("detect", place / "planted", *named, "--out", tmp_path / "run", saying=saying)
    planted.refused("probe", place / "planted", "!", *named, saying=saying)
    saying = "--fdr is not an option of the method std: leave it out, or use profile"
    planted.refused("detect", place / "planted", *pairs, "--fdr", "0.1", saying=saying)
    enough = ("--scoring-pairs", "2", "--validation-pairs", "2", "--tokens", place / "chosen.txt")
    found = planted.document(
        planted.command(
            "detect", place / "planted", *pairs, *enough, "--out", tmp_path / "run", "--format", "json"
        )
    )
    assert found["method"] == "std"


# show

LISTS = {
    "--limit 3": lambda table: table.sort("lift", descending=True).head(3),
    "--sort lift --limit 7": lambda table: table.sort("lift", descending=True).head(7),
    "--sort validation_rate --limit 1": lambda table: table.sort("validation_rate", descending=True).head(1),
    "--verdict sticky": lambda table: table.filter(verdict="sticky"),
    "--verdict topical": lambda table: table.filter(verdict="topical").sort("lift", descending=True),
    "--verdict benign --limit 9": lambda table: (
        table.filter(verdict="benign").sort("lift", descending=True).head(9)
    ),
    "--token river": lambda table: table.filter(token="river"),
    "--contains in --sort lift": lambda table: table.filter(
        pl.col("decoded").str.contains("in", literal=True)
    ).sort("lift", descending=True),
}


@pytest.fixture(scope="module")
def topical_run(run, tmp_path_factory):
    """The run with two tokens that are topical, which no static model of this size has."""
    folder = Path(shutil.copytree(run, tmp_path_factory.mktemp("topical") / "run"))
    table = pl.read_parquet(folder / "tokens.parquet")
    topical = table["token"].is_in(["river", "stone"])
    changed = table.with_columns(
        verdict=pl.when(topical).then(pl.lit("topical")).otherwise("verdict"),
        severity=pl.when(topical).then(pl.lit("mild")).otherwise("severity"),
        kind=pl.when(topical).then(pl.lit("law")).otherwise("kind"),
    )
    changed.write_parquet(folder / "tokens.parquet")
    return folder


@pytest.mark.parametrize("arguments", LISTS)
def test_show_lists_what_its_filters_choose(topical_run, arguments):
    wanted = LISTS[arguments](open_run(topical_run).tokens)
    assert len(wanted) > 0
    found = planted.document(planted.command("show", topical_run, *arguments.split(), "-f", "json"))
    assert found["tokens"] == wanted.to_dicts()
    table = planted.command("show", topical_run, *arguments.split())
    assert table.exit_code == 0
    assert re.search(rf"^{len(wanted)} of \d+ tokens *$", table.stdout, re.MULTILINE)
    header = next(line for line in table.stdout.splitlines() if "universality" in line)
    with_values = [name for name in ("kind", "severity") if wanted[name].null_count() < len(wanted)]
    assert re.split(" {2,}", header.strip()) == [
        "id", "token", "lift", "low", "high", "universality", *with_values, "verdict",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (
            "--sort sticky_score",
            "used the method profile, which cannot be sorted by 'sticky_score': sort by lift, lift_low",
        ),
        ("--validated", "used the method profile, which judges every token: leave --validated out"),
        ("--sort token", "cannot be sorted by 'token': sort by lift, lift_low"),
        ("--sort severity", "cannot be sorted by 'severity': sort by lift, lift_low"),
        ("--verdict odd", "has no verdict 'odd': list by sticky or topical or benign"),
        ("--validated --sort lift", "used the method profile, which judges every token: leave --validated"),
    ],
)
def test_show_refuses_what_a_profile_run_does_not_have(run, arguments, saying):
    planted.refused("show", run, *arguments.split(), saying=saying)
    planted.refused("show", run, *arguments.split(), "--format", "json", saying=saying)


@pytest.mark.slow
@pytest.mark.parametrize("filters", [[], ["--verdict", "sticky"]], ids=["summary", "list"])
def test_hostile_tokens_are_printed_escaped(run, tmp_path, filters):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    texts = pl.Series(list(HOSTILE))
    table = pl.read_parquet(folder / "tokens.parquet").head(len(texts))
    table = table.with_columns(token=texts, decoded=texts, verdict=pl.lit("sticky"))
    printed = ""
    for worst in range(len(HOSTILE)):  # each is once first: the summary lists twenty
        lifts = pl.Series([2.0 if row == worst else 1.0 for row in range(len(HOSTILE))])
        table.with_columns(lift=lifts).write_parquet(folder / "tokens.parquet")
        printed += planted.command("show", folder, *filters).stdout
    assert_harmless(printed)
    assert [shown for shown in HOSTILE.values() if f" {shown} " not in printed] == []


# probe


@pytest.mark.slow
def test_probe_gives_one_document(place, options):
    arguments = ("probe", place / "planted", "!", "river", *options)
    result = planted.command(*arguments, "--format", "json")
    found = planted.document(result)
    assert [each["token"] for each in found] == ["!", "river"]
    assert [each["verdict"] for each in found] == ["sticky", "benign"]
    for each in found:
        assert set(each) == set(ProfileEvidence.__slots__)
        assert each["curve"]["copies"] == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
        assert set(each["by_placement"]) == {"prefix", "suffix", "random"}
    assert "symptoms: 10 of 10" in result.stderr
    by_id = planted.command("probe", place / "planted", "34", "55", "--ids", *options, "-f", "json")
    assert planted.document(by_id) == found


def test_probe_prints_the_evidence_and_both_curves(place, run, options):
    result = planted.command("probe", place / "planted", "!", "river", *options)
    assert result.exit_code == 0
    assert re.search(r"34 +! +OK( +[\d.]+){4} +severe +sticky", result.stdout)
    for side in ("below", "above"):
        assert f"Similarity of pairs {side} the mean similarity, by number of copies" in result.stdout
    for name in ("!", "river", r"\(ordinary tokens\)"):
        assert len(re.findall(rf"^{name}( +-?\d\.\d{{4}}){{7}} *$", result.stdout, re.MULTILINE)) == 2
    u = open_run(run).plan.mean_similarity
    assert result.stdout.endswith(f"the model's mean similarity is {u:.4f}.\n")


def test_probe_measures_an_unreachable_token_by_id(place, options):
    arguments = ("probe", place / "planted", "5", "--ids", *options)
    (found,) = planted.document(planted.command(*arguments, "--format", "json"))
    assert (found["token"], found["category"]) == ("[unused0]", "UNREACHABLE_SPECIAL")
    table = planted.command(*arguments)
    assert "[unused0]" in table.stdout
    saying = "cannot occur in text .UNREACHABLE_SPECIAL.: probe it with ids insertion"
    planted.refused(*arguments, "--insertion", "text", saying=saying)


def test_probe_stores_nothing(place, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert planted.command("probe", place / "planted", "!", *options).exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_a_probe_of_a_detected_token_agrees_with_the_run(place, run, options):
    """Rounds are the same; only what is ordinary is shown by fewer tokens."""
    (evidence,) = planted.document(planted.command("probe", place / "planted", "!", *options, "-f", "json"))
    row = open_run(run).token("!").row(0, named=True)
    assert evidence["lift"] == pytest.approx(row["lift"], rel=0.02)
    assert evidence["mean_similarity"] == pytest.approx(open_run(run).plan.mean_similarity, abs=1e-9)
