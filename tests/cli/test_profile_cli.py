"""The profile method on the command line: detect, show and probe, at a dimension too."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

import planted
import profiled
from naming import naming, says
from stickytoken import open_run
from stickytoken.cli.console import minutes
from stickytoken.methods.profile import TOKEN_COLUMNS
from stickytoken.settings.profile import ProfileSettings

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    profiled.planted_model(2).save(str(folder / "planted"))
    profiled.planted_model(0).save(str(folder / "ordinary"))
    for name, texts in {
        "sentences.txt": profiled.sentences(200),
        "own.txt": profiled.sentences(300, seed=3),
        "chosen.txt": ["!", "river", "stone"],
    }.items():
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    rows = "\n".join(f'{k},"{text}"' for k, text in enumerate(profiled.sentences(300, seed=3)))
    (folder / "own.csv").write_text(f"number,body\n{rows}\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def options(workspace):
    return ["--sentences", workspace / "sentences.txt", "--device", "cpu"]


@pytest.fixture(scope="module")
def run(workspace, options):
    """The folder of a run over the whole vocabulary, and of its printed results."""
    result = planted.command("detect", workspace / "planted", *options, "--out", workspace / "run")
    assert result.exit_code == 0, result.stderr
    (workspace / "printed.txt").write_text(result.stdout, encoding="utf-8")
    return workspace / "run"


def test_detect_prints_what_show_prints(workspace, run):
    assert planted.command("show", run).stdout == (workspace / "printed.txt").read_text("utf-8")


def test_detect_and_show_print_the_stored_wall_time(workspace, run):
    stored = open_run(run)
    time_taken = f", {minutes(stored.result.seconds)}. Run folder: {run}"
    assert time_taken in (workspace / "printed.txt").read_text("utf-8")
    assert time_taken in planted.command("show", run).stdout
    document = planted.document(planted.command("show", run, "--format", "json"))
    assert document["seconds"] == stored.result.seconds


def test_the_answer_comes_first_and_says_the_harm_in_a_search(workspace, run):
    first, second, *_ = planted.command("show", run).stdout.splitlines()
    assert says(first, workspace / "planted", "1 sticky token", profiled.AVAILABLE)
    assert second == f"{open_run(run).worst_harm()}."


def test_the_table_lists_sticky_tokens_before_the_others(run):
    printed = planted.command("show", run).stdout
    sticky, others = printed.split("Strongest unflagged tokens (thresholds: 40%, 1.5×)")
    assert re.search(r"^! +\d+% .*sticky, serious$", sticky, re.MULTILINE)
    assert not re.search("sticky, ", others)
    assert len(re.findall(r" −?\d+% .*benign", others)) == others.count("benign") >= 4


def test_the_rule_and_the_effort_end_the_answer(run):
    lines = planted.command("show", run).stdout.splitlines()
    assert any("40%" in line and "1.5 times" in line for line in lines[-4:])
    assert lines[-1].endswith(f"Run folder: {run}")


def test_json_has_the_result_and_the_sticky_tokens(run):
    document = planted.document(planted.command("show", run, "--format", "json"))
    assert " ".join(sorted(document)) == (
        "available confirmed found headline in_documents looked_at method model ordinary_contraction "
        "ordinary_found ordinary_push random_in_documents random_pushing run screening_carriers seconds "
        "sequences sticky texts_per_token unconfirmed vectors_compared"
    )
    (sticky,) = document["sticky"]
    assert (set(sticky), sticky["token"]) == (set(TOKEN_COLUMNS), planted.PLANTED)


def test_a_clean_model_has_no_sticky_tokens(workspace, options, tmp_path):
    ordinary = planted.command("detect", workspace / "ordinary", *options, "--out", tmp_path / "run")
    assert ordinary.stdout.startswith(
        f"{workspace / 'ordinary'}: no sticky tokens among {profiled.AVAILABLE}\n"
    )


def test_few_tokens_are_all_listed(workspace, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = (
        "detect",
        workspace / "planted",
        *options,
        "--tokens",
        workspace / "chosen.txt",
        "--tokens",
        "a",
    )
    result = planted.command(*arguments)
    assert "Measured tokens" in result.stdout  # with special tokens, for which nobody asked
    for token in ("!", "a", "river", "stone"):
        assert re.search(rf"^{token} +−?\d+%", result.stdout, re.MULTILINE)
    lines = planted.lines_of(result.stderr)
    stages = [line.split(":")[0] for line in lines if line[:4] not in ("note", "Next")]
    assert stages == [
        "read",
        "pilot",
        "screen",
        "confirm-1",
        "report",
    ]
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"planted-profile-[0-9a-f]{12}", folder.name)
    special = ["[CLS]", "[MASK]", "[PAD]", "[SEP]", "[UNK]"]
    assert sorted(open_run(folder).tokens["token"]) == sorted(["!", "a", "river", "stone", *special])


def test_the_options_of_detect_reach_the_run(workspace, options, tmp_path):
    arguments = (
        "--method profile --seed 9 --insertion text --set budget=8 --set confidence=0.8 --set unusual=7 "
        "--set smallest-push=1.3 --set smallest-erased=0.35 --sample 20 --set report=false"
    ).split()
    result = planted.command("detect", workspace / "planted", *options, *arguments, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    run = open_run(tmp_path / "run")
    expected = {"seed": 9, "insertion": "text", "budget": 8, "confidence": 0.8, "unusual": 7}
    expected |= {"smallest_push": 1.3, "smallest_erased": 0.35}
    assert run.record.settings.items() >= expected.items()
    assert len(run.tokens) == 20 + len(run.record.beside_sample)


def test_without_options_a_run_has_the_default_settings(workspace, options, tmp_path):
    arguments = ("--sample", 3, "--out", tmp_path / "run")
    result = planted.command("detect", workspace / "planted", *options, *arguments)
    assert result.exit_code == 0, result.stderr
    settings = asdict(ProfileSettings(insertion="ids"))
    assert open_run(tmp_path / "run").record.settings == json.loads(json.dumps(settings))


@pytest.mark.parametrize(
    ("command", "saying"),
    [
        (
            "detect MODEL CORPUS --set confidence=2",
            naming("confidence", "2.0", "below 1"),
        ),
        ("detect MODEL CORPUS --set copies=3", naming("copies", "profile")),
        (
            "detect MODEL --set pairs=p.csv --set unusual=5",
            naming("unusual", "std"),
        ),
        ("show RUN --sort severity", naming("profile", "'severity'", "erased")),
        ("show RUN --validated --sort push", naming("profile", "--validated")),
    ],
)
def test_what_a_method_or_a_run_does_not_have_is_refused(
    workspace, run, tmp_path, monkeypatch, command, saying
):
    monkeypatch.chdir(tmp_path)
    words = {"MODEL": workspace / "planted", "RUN": run, "CORPUS": f"--sentences {workspace / 'own.txt'}"}
    for name, value in words.items():
        command = command.replace(name, str(value))
    planted.assert_refused(*command.split(), saying=saying)


def test_probe_prints_evidence_and_stores_nothing(workspace, run, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = planted.command("probe", workspace / "planted", "!", "river", *options)
    assert re.search(r"34 +! +OK +\d+% +\d+% to \d+% .* sticky, serious", result.stdout)
    assert "'!': leaves " in result.stdout
    assert says(result.stdout, "40%", "ordinary")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def short(workspace, options):
    """The folder of a run at 24 of 32 dimensions; its printed results lie beside it."""
    truncation = "--truncate-dim 24".split()
    result = planted.command(
        "detect", workspace / "planted", *options, *truncation, "--out", workspace / "short"
    )
    assert result.exit_code == 0, result.stderr
    (workspace / "short.txt").write_text(result.stdout, encoding="utf-8")
    return workspace / "short"


def test_a_run_at_a_dimension_says_so(workspace, short):
    assert says((workspace / "short.txt").read_text("utf-8"), "planted", 24, "1 sticky token")
