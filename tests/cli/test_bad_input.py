"""Bad input and unusable run folders: one line on stderr that says what is wrong, and nothing is written."""

import os
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
from sentence_transformers import SentenceTransformer

import planted
import tiny

PAIRS = "sentence1,sentence2,similarity\n"


@pytest.fixture(scope="module")
def place(bert_folder, tmp_path_factory):
    """A folder with what can be wrong."""
    folder = tmp_path_factory.mktemp("bad")
    for name, content in {
        "good.txt": "\n".join(tiny.sentences(60)),
        "columns.csv": "id,first,second\n1,the bird,a song\n",
        "pairs-one.csv": PAIRS + "the bird,a song,-0.5\n",
        "pairs-long.csv": PAIRS + f"{'the bird ' * 40},a song,-0.5\n",
        "unknown.txt": "river\nunheard\n",
        "unavailable.csv": "token_id\n5\n",
    }.items():
        (folder / name).write_text(content, encoding="utf-8")
    tiny.wordpiece_tokenizer().save_pretrained(folder / "tokenizer-only")
    for name in ("bad-config", "no-tokenizer"):
        shutil.copytree(bert_folder, folder / name)
    (folder / "bad-config" / "config.json").write_text("{")
    for path in (folder / "no-tokenizer").glob("token*"):
        path.unlink()
    damaged = SentenceTransformer(str(bert_folder), device="cpu")
    damaged[0].model.embeddings.word_embeddings.weight.data[50] = float("nan")
    damaged.save(str(folder / "nan-weights"))
    return folder


@pytest.fixture(scope="module")
def small(bert_folder, place):
    """What a small detection is called with."""
    return [bert_folder, "--sentences", place / "good.txt", *planted.SMALL_OPTIONS]


@pytest.mark.parametrize(
    ("model", "saying"),
    [
        ("absent/model", "no model 'absent/model'.*not in the hub cache"),
        ("./absent", "no folder"),
        ("not a name!", "no model 'not a name!'"),
        ("x" * 300, "no (model|folder)"),
        ("good.txt", "is a file: pass the folder of the model"),
        ("tokenizer-only", "has a tokenizer but no model: detection needs the weights"),
        ("bad-config", "cannot be loaded: .*not a valid JSON"),
        ("nan-weights", "the vector of the text .* is not finite: the weights are damaged"),
    ],
    ids=lambda value: value[:20],
)
def test_a_model_that_cannot_be_used_is_refused(place, small, tmp_path, model, saying):
    given = place / model if len(model) < 99 and (place / model).exists() else model
    planted.refused("detect", given, *small[1:], "--out", tmp_path / "run", saying=saying)


def test_tokens_needs_a_tokenizer_and_no_weights(place):
    found = planted.document(planted.command("tokens", place / "tokenizer-only", "--format", "json"))
    assert found["available"] == 95
    planted.refused("tokens", place / "no-tokenizer", saying="has no tokenizer")
    planted.refused("tokens", "absent", saying="no (tokenizer|folder) ")


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        ("--device toaster", "device 'toaster' is unknown: this machine has cpu"),
        ("--set candidate-share=nan", "candidate_share is nan"),
        ("--sample 96", "sample is 96: it must be between 1 and 95"),
        ("--set copies=40", "use shorter sentences or fewer copies"),
        ("--sentences absent.txt", "no file 'absent.txt' .in Python, pass sentences themselves as a list"),
        ("--sentences PLACE/columns.csv", "It has id, first, second: name one with the column option"),
        ("--sentences hub:nobody/nothing", "the data set 'nobody/nothing' cannot be read"),
        ("--set pairs=PLACE/pairs-one.csv", "both given: pairs replace the sentences"),
        ("--tokens PLACE/unknown.txt", "the vocabulary has no token 'unheard'"),
        ("--tokens PLACE/unavailable.csv", "token id 5 cannot occur in text .UNREACHABLE_SPECIAL.: leave it"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused(place, small, tmp_path, arguments, saying):
    given = [*small, "--out", tmp_path / "run", *arguments.replace("PLACE", str(place)).split()]
    planted.refused("detect", *given, saying=saying)


def test_pairs_that_cannot_be_used_are_refused(bert_folder, place, tmp_path):
    given = ["detect", bert_folder, *planted.SMALL_OPTIONS, "--out", tmp_path / "run", "--set"]
    saying = "--column 'sentence1' is given without --sentences: .*leave --column out"
    planted.refused(*given, f"pairs={place / 'pairs-one.csv'}", "--column", "sentence1", saying=saying)
    assert not (tmp_path / "run").exists()
    long = "is longer than .* reads .64 tokens.: use shorter sentences"
    planted.refused(*given, f"pairs={place / 'pairs-long.csv'}", saying=long)


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (["the", "unheard"], "has no token 'unheard': `stickytoken tokens` lists what there is"),
        (["[unused0]"], "cannot occur in text .UNREACHABLE_SPECIAL.: probe it with ids insertion"),
        (["five", "--ids"], "'five' is not a token id: pass a number, or leave --ids out"),
        (["125", "--ids"], "the vocabulary has no token id 125: it has 0 to 124"),
    ],
)
def test_a_token_that_cannot_be_probed_is_refused(bert_folder, place, arguments, saying):
    given = ("--sentences", place / "good.txt", *planted.PROBE_OPTIONS)
    planted.refused("probe", bert_folder, *arguments, *given, saying=saying)


@pytest.mark.parametrize(
    ("arguments", "status", "saying"),
    [
        (["--category", "odd"], 2, "'--category': 'odd' is not a category: use one of OK, OK_SPECIAL"),
        (["--limit", "0"], 2, "--limit"),
        (["--token", ""], 1, "has no token ''"),
        (["--contains", "", "--validated"], 1, "--contains is '': pass a part of a token's text"),
    ],
)
def test_a_list_that_cannot_be_shown_is_refused(planted_run, arguments, status, saying):
    planted.refused("show", planted_run, *arguments, status=status, saying=saying)


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        ("nonsense", r"No such command 'nonsense' \(see stickytoken --help\)"),
        ("--frobnicate", "No such option"),
        ("show", r"Missing argument 'run' \(see stickytoken show --help\)"),
        ("show r --limit many", r"--limit.*\(see stickytoken show --help\)"),
        ("show r --colour", "No such option: --colour"),
        ("tokens m -q -v", "use one of --quiet and --verbose"),
        ("detect m n", "unexpected extra argument"),
        ("detect m --sample 0", "--sample"),
        ("detect m --method guess", "--method"),
        ("detect m --set budget=much", "--set budget"),
        ("detect m --set workers=2", "it needs --set engine=ray"),
        ("explain m a --set placement=inside", "--set placement"),
        ("scan r d --effect --predict", "use one of --effect and --predict"),
        ("scan r d --queries q.txt", "it needs --effect or --predict"),
        ("check m --out x.json", "it needs --format json, junit or sarif"),
        ("check m --fail-on odd", "'odd' is not a severity: use one of sticky, serious, severe"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(tmp_path, monkeypatch, arguments, saying):
    monkeypatch.chdir(tmp_path)
    planted.refused(*arguments.split(), status=2, saying=saying)
    assert list(tmp_path.iterdir()) == []


# Run folders


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    result = planted.command("detect", *small, "--sample", "30", "--out", folder)
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def run_copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def detect_into(folder, small, saying, *others):
    planted.refused("detect", *small, "--sample", "30", *others, "--out", folder, saying=saying)


def test_a_folder_that_is_no_run_is_refused(small, place, tmp_path):
    planted.refused("show", place, saying="is not a run folder: it has no run.json")
    detect_into(place, small, "contains files but no run: choose an empty or new folder")
    planted.refused("show", tmp_path / "absent", saying="no run folder")
    planted.refused("show", place / "good.txt", saying="is not a run folder")
    detect_into(place / "good.txt" / "run", small, "good.txt is a file")


def test_a_run_that_is_not_finished_is_not_shown_but_continued(small, run_copy):
    planted.edit_record(run_copy, result=None)
    planted.refused("show", run_copy, saying="is not finished: run the same command again to continue it")
    result = planted.command("detect", *small, "--sample", "30", "--out", run_copy)
    assert result.exit_code == 0
    assert planted.command("show", run_copy).stdout == result.stdout


def test_damaged_files_of_a_run_are_named(small, finished, tmp_path):
    table = tmp_path / "other.parquet"
    pl.DataFrame({"token": ["a"]}).write_parquet(table)
    for name, content in (
        ("run.json", b'{"schema_version": 1'),
        ("plan.json", b"{}"),
        ("tokens.parquet", b"PAR1"),
        ("tokens.parquet", table.read_bytes()),
    ):
        folder = Path(shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True))
        (folder / name).write_bytes(content)
        planted.refused("show", folder, saying=name)


@pytest.mark.slow
def test_a_run_folder_that_another_process_writes_is_refused(small, tmp_path):
    with planted.held(tmp_path / "run"):
        detect_into(tmp_path / "run", small, "is being written by another process: wait for it, or choose")
    # Nor does a command that failed on its input block its folder.
    detect_into(tmp_path / "run", small, "distinct sentences, but 1000", "--set", "sentence-count=1000")
    result = planted.command("detect", *small, "--sample", "5", "--out", tmp_path / "run")
    assert result.exit_code == 0


def test_a_run_folder_that_cannot_be_written_is_refused(small, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    root = os.geteuid() == 0  # permissions do not hold root back, a file system for reading only does
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)]
    if root and subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let a test mount a file system")
    disk.chmod(0o500) if not root else None
    try:
        detect_into(disk / "run", small, "cannot be written: .*disk is read-only")
    finally:
        if root:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
