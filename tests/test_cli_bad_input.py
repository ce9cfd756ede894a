"""Bad input through the command line: one line on stderr that says what is wrong, nothing on stdout."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
from sentence_transformers import SentenceTransformer

import planted
import tiny

PAIRS = "sentence1,sentence2,similarity\n"


def refused(*arguments, status=1, saying=""):
    """Run a command that must fail, with one line that says why."""
    result = planted.command(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == status
    assert result.stdout == ""
    lines = planted.lines_of(result.stderr)
    errors = [line for line in lines if line.startswith("error:" if status == 1 else "Error:")]
    assert errors == [lines[-1]]
    assert "Traceback" not in result.stderr
    assert re.search(saying, errors[0]), errors[0]


@pytest.fixture(scope="module")
def place(bert_folder, tmp_path_factory):
    """A folder with everything that can be wrong."""
    folder = tmp_path_factory.mktemp("bad")

    def file(name, content):
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    file("good.txt", "\n".join(tiny.sentences(60)))
    file("empty.txt", "")
    file("blank.txt", "\n  \n\t\n")
    file("binary.txt", b"the bird\x00\x01\x02\xff" * 9)
    file("latin.txt", "caf\xe9 au lait".encode("latin-1"))
    file("two.txt", "the bird.\na song.\n")
    file("notes.pdf", b"%PDF-1.7")
    file("columns.csv", "id,first,second\n1,the bird,a song\n")
    file("numbers.jsonl", '{"text": 1}\n{"text": 2}\n')
    file("broken.jsonl", "{")
    file("broken.parquet", b"PAR1 and no more")
    file("pairs.txt", PAIRS)
    file("pairs-missing-column.csv", "sentence1,sentence2\nthe bird,a song\n")
    file("pairs-none.csv", PAIRS)
    file("pairs-blank.csv", PAIRS + "the bird,,0.5\n")
    file("pairs-word.csv", PAIRS + "the bird,a song,close\n")
    file("pairs-nan.csv", PAIRS + "the bird,a song,nan\n")
    file("pairs-range.csv", PAIRS + "the bird,a song,0.5\nthe bird,a song,7\n")
    file("pairs-high.csv", PAIRS + "the bird,a song,0.99\na river,the stone,0.98\n")
    file("pairs-one.csv", PAIRS + "the bird,a song,-0.5\n")
    file("pairs-long.csv", PAIRS + f"{'the bird ' * 40},a song,-0.5\n")
    file("unknown.txt", "river\nunheard\n")
    file("unavailable.csv", "token_id\n5\n")
    file("word.csv", "token_id\nfive\n")
    file("neither.csv", "rank\n1\n")

    tokenizer = folder / "tokenizer-only"
    tiny.wordpiece_tokenizer().save_pretrained(tokenizer)
    (folder / "no-model").mkdir()
    file("no-model/notes.txt", "nothing")
    for name in ("no-weights", "cut-off-weights", "bad-config", "no-tokenizer"):
        shutil.copytree(bert_folder, folder / name)
    weights = (bert_folder / "model.safetensors").read_bytes()
    (folder / "no-weights" / "model.safetensors").unlink()
    file("cut-off-weights/model.safetensors", weights[:1000])
    file("bad-config/config.json", "{")
    for path in (folder / "no-tokenizer").glob("token*"):
        path.unlink()
    damaged = SentenceTransformer(str(bert_folder), device="cpu")
    damaged[0].model.embeddings.word_embeddings.weight.data[50] = float("nan")
    damaged.save(str(folder / "nan-weights"))
    return folder


@pytest.fixture(scope="module")
def finished(bert_folder, place):
    """A finished run."""
    folder = place / "finished-run"
    result = planted.command("detect", bert_folder, *options(place), "--sample", "30", "--out", folder)
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def run_copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def options(place):
    return ["--sentences", place / "good.txt", *planted.SMALL_OPTIONS]


def edit_record(folder, **changes):
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


MODELS = {
    "absent/model": "no model 'absent/model'.*not in the hub cache",
    "absent": "no model 'absent'",
    "./absent": "no folder",
    "a/b/c": "no folder 'a/b/c'",
    "not a name!": "no model 'not a name!'",
    "x" * 300: "no (model|folder)",
    "no-model": "holds no model",
    "good.txt": "is a file: pass the folder that holds the model",
    "tokenizer-only": "holds a tokenizer but no model: detection needs the weights",
    "no-weights": "holds no weights",
    "cut-off-weights": "cannot be loaded",
    "bad-config": "cannot be loaded: .*not a valid JSON",
    "no-tokenizer": "tokenizer",
    "nan-weights": "the vector of the text .* is not finite: the weights are damaged",
}


@pytest.mark.parametrize("model", MODELS, ids=lambda name: name[:20])
def test_a_model_that_cannot_be_used_is_refused(place, tmp_path, model):
    given = place / model if "/" not in model and len(model) < 99 and (place / model).exists() else model
    refused("detect", given, *options(place), "--out", tmp_path / "run", saying=MODELS[model])
    arguments = ("--sentences", place / "good.txt", *planted.PROBE_OPTIONS)
    refused("probe", given, "the", *arguments, saying=MODELS[model])


def test_a_tokenizer_without_weights_is_enough_for_tokens(place):
    result = planted.command("tokens", place / "tokenizer-only", "--format", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["available"] == 95


@pytest.mark.parametrize("model", ["absent/model", "absent", "a/b/c", "no-model", "good.txt", "no-tokenizer"])
def test_a_tokenizer_that_cannot_be_used_is_refused(place, model):
    given = place / model if (place / model).exists() else model
    saying = {"good.txt": "is a file", "no-model": "holds no tokenizer", "no-tokenizer": "holds no tokenizer"}
    refused("tokens", given, saying=saying.get(model, "no (tokenizer|folder) "))


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (["--device", "toaster"], "cannot be loaded: .*toaster"),
        (["--device", "cuda:99"], "cannot be loaded"),
        (["--dtype", "int3"], "dtype 'int3' is unknown: use one of float32, float16, bfloat16"),
        (["--prompt-name", "poem"], "has no prompt named 'poem'"),
        (["--candidate-share", "0"], "candidate_share is 0.0: it must be above 0 and at most 1"),
        (["--candidate-share", "1.1"], "candidate_share is 1.1"),
        (["--candidate-share", "nan"], "candidate_share is nan"),
        (["--outlier-range", "inf"], "outlier_range is inf"),
        (["--sample", "96"], "a sample of 96 tokens is asked for: it must be between 1 and 95"),
        (["--sentence-count", "61"], "has 60 distinct sentences, 61 are asked for"),
        (["--scoring-pairs", "9999"], "sentence pairs have a similarity below .* scoring needs 9999"),
        (["--copies", "40"], "use shorter sentences or fewer copies"),
        (["--column", "text"], "is a text file without columns"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_that_cannot_be_met_is_refused(bert_folder, place, tmp_path, arguments, saying):
    arguments = [*options(place), "--sample", "9", *arguments]
    refused("detect", bert_folder, *arguments, "--out", tmp_path / "run", saying=saying)


@pytest.mark.parametrize(
    ("name", "saying"),
    [
        ("absent.txt", "no file"),
        ("", "is a folder"),
        ("empty.txt", "is empty"),
        ("blank.txt", "is empty"),
        ("binary.txt", "is (not UTF-8 text|a binary file)"),
        ("latin.txt", "is not UTF-8 text .byte 3.: convert it"),
        ("two.txt", "has 2 distinct sentences, 40 are asked for"),
        ("notes.pdf", "has the ending '.pdf': use .txt"),
        ("columns.csv", "which column of .* It has id, first, second: name one with the column option"),
        ("columns.csv --column third", "has no column 'third': it has id, first, second"),
        ("numbers.jsonl", "column 'text' of .* holds Int64, not text"),
        ("broken.jsonl", "is not a readable jsonl file"),
        ("broken.parquet", "is not a readable parquet file"),
        ("hub:nobody/nothing", "the data set 'nobody/nothing' .* cannot be read"),
    ],
)
def test_sentences_that_cannot_be_used_are_refused(bert_folder, place, tmp_path, name, saying):
    file, *column = name.split(" ") if name else [""]
    source = file if ":" in file else place / file
    arguments = ["--sentences", source, *column, *planted.SMALL_OPTIONS, "--out", tmp_path / "run"]
    refused("detect", bert_folder, *arguments, saying=saying)
    refused(
        "probe", bert_folder, "the", "--sentences", source, *column, *planted.PROBE_OPTIONS, saying=saying
    )


@pytest.mark.parametrize(
    ("name", "saying"),
    [
        ("absent.csv", "no file"),
        ("empty.txt", "pairs are read from .csv"),
        ("pairs.txt", "pairs are read from .csv"),
        ("columns.csv", "lacks the column 'sentence1'"),
        ("pairs-missing-column.csv", "lacks the column 'similarity'"),
        ("pairs-none.csv", "holds no pair"),
        ("pairs-blank.csv", "pair 1 has a blank sentence"),
        ("pairs-word.csv", "the similarity of pair 1 is no number between -1 and 1"),
        ("pairs-nan.csv", "the similarity of pair 1 is no number between -1 and 1"),
        ("pairs-range.csv", "the similarity of pair 2 is no number between -1 and 1"),
        ("pairs-high.csv", "none of the 2 sentence pairs has a similarity below the model's mean"),
        ("pairs-long.csv", "is longer than .* reads .64 tokens.: use shorter sentences"),
        ("pairs-one.csv", "only 1 sentence pairs have a similarity below .* scoring needs 2"),
    ],
)
def test_pairs_that_cannot_be_used_are_refused(bert_folder, place, tmp_path, name, saying):
    arguments = ["--pairs", place / name, *planted.SMALL_OPTIONS, "--out", tmp_path / "run"]
    refused("detect", bert_folder, *arguments, saying=saying)


def test_sentences_and_pairs_together_are_refused(bert_folder, place, tmp_path):
    arguments = [*options(place), "--pairs", place / "pairs-one.csv", "--out", tmp_path / "run"]
    refused("detect", bert_folder, *arguments, saying="both given: pairs replace the sentences")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "saying"),
    [
        ("absent.txt", "no file"),
        ("empty.txt", "is empty"),
        ("binary.txt", "is (not UTF-8 text|a binary file)"),
        ("unknown.txt", "the vocabulary has no token 'unheard'"),
        ("unavailable.csv", r"token id 5 cannot occur in text .UNREACHABLE_SPECIAL.: leave it out"),
        ("word.csv", "the token_id of row 1 is"),
        ("neither.csv", "has no column 'token_id' or 'token': it has rank"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_refused(bert_folder, place, tmp_path, name, saying):
    arguments = [*options(place), "--tokens", place / name, "--out", tmp_path / "run"]
    refused("detect", bert_folder, *arguments, saying=saying)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (["unheard"], "the vocabulary has no token 'unheard': `stickytoken tokens` lists what there is"),
        (["the", "unheard"], "the vocabulary has no token 'unheard'"),
        ([""], "the vocabulary has no token ''"),
        (["[unused0]"], "cannot occur in text .UNREACHABLE_SPECIAL.: probe it with ids insertion"),
        (["five", "--ids"], "'five' is no token id: leave --ids out"),
        (["125", "--ids"], "the vocabulary has no token id 125: it has 0 to 124"),
        (["5", "--ids"], "cannot occur in text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_token_that_cannot_be_probed_is_refused(bert_folder, place, arguments, saying):
    refused(
        "probe",
        bert_folder,
        *arguments,
        "--sentences",
        place / "good.txt",
        *planted.PROBE_OPTIONS,
        saying=saying,
    )


def test_an_unknown_category_is_refused_with_the_known_ones(bert_folder, finished):
    saying = "category 'odd' is unknown: use one of OK, OK_SPECIAL, MEANINGLESS"
    refused("tokens", bert_folder, "--category", "odd", saying=saying)
    refused("show", finished, "--category", "odd", saying=saying)


@pytest.mark.parametrize("token", ["unheard", ""])
def test_a_token_that_a_run_does_not_have_is_refused(finished, token):
    refused("show", finished, "--token", token, saying=f"has no token '{token}'")


# Run folders


def detect_into(folder, bert_folder, place, saying, *others):
    refused("detect", bert_folder, *options(place), "--sample", "30", *others, "--out", folder, saying=saying)


def test_a_folder_that_is_no_run_is_refused(bert_folder, place, tmp_path):
    for folder in (place, place / "no-model"):
        refused("show", folder, saying="is not a run folder: it has no run.json")
        detect_into(folder, bert_folder, place, "holds files but no run: choose an empty or a new folder")
    refused("show", tmp_path / "absent", saying="no run folder")
    refused("show", place / "good.txt", saying="is not a run folder")
    assert (place / "good.txt").read_text("utf-8").startswith(tiny.sentences(1)[0])


def test_a_run_that_is_not_finished_is_not_shown_but_continued(bert_folder, place, run_copy):
    edit_record(run_copy, result=None)
    refused("show", run_copy, saying="is not finished: run the same command again to continue it")
    result = planted.command("detect", bert_folder, *options(place), "--sample", "30", "--out", run_copy)
    assert result.exit_code == 0
    assert planted.command("show", run_copy).stdout == result.stdout


def test_the_folder_of_another_run_is_refused_with_what_differs(bert_folder, place, run_copy):
    before = planted.files_of(run_copy)
    for others, names in (
        (["--seed", "1"], "settings.seed, tokens"),
        (["--insertion", "ids"], "settings.insertion"),
        (["--prompt", "the bird:"], "encoder.prompt"),
        (["--dtype", "bfloat16"], "encoder.dtype, encoder.weights"),
        (["--copies", "2", "--sentence-count", "50"], "settings.copies, settings.sentences"),
    ):
        saying = rf"holds another run .it differs in {names}.: choose another folder"
        detect_into(run_copy, bert_folder, place, saying, *others)
    assert planted.files_of(run_copy) == before


def test_a_run_of_a_newer_version_is_refused(bert_folder, place, run_copy):
    edit_record(run_copy, schema_version=2, novelty={})
    saying = "has schema version 2, this stickytoken reads up to 1: upgrade it"
    refused("show", run_copy, saying=saying)
    detect_into(run_copy, bert_folder, place, saying)


def test_damaged_files_of_a_run_are_named(bert_folder, place, finished, tmp_path):
    for name, content in (
        ("run.json", b""),
        ("run.json", b'{"schema_version": 1'),
        ("plan.json", b"{}"),
        ("tokens.parquet", b"PAR1"),
    ):
        folder = Path(shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True))
        (folder / name).write_bytes(content)
        refused("show", folder, saying=name)
        detect_into(folder, bert_folder, place, name)


def test_a_result_table_without_its_columns_is_named(run_copy):
    pl.DataFrame({"token": ["a"]}).write_parquet(run_copy / "tokens.parquet")
    refused("show", run_copy, saying="tokens.parquet")


def test_a_run_folder_that_another_process_writes_is_refused(bert_folder, place, tmp_path):
    saying = "is being written by another process: wait for it, or choose another folder"
    with planted.held(tmp_path / "run"):
        detect_into(tmp_path / "run", bert_folder, place, saying)
    result = planted.command(
        "detect", bert_folder, *options(place), "--sample", "5", "--out", tmp_path / "run"
    )
    assert result.exit_code == 0


def test_a_run_folder_that_cannot_be_written_is_refused(bert_folder, place, tmp_path):
    saying = "cannot be used as a run folder: "
    detect_into(place / "good.txt" / "run", bert_folder, place, saying + "Not a directory")
    if os.geteuid() == 0:  # permissions do not hold root back, a file system for reading only does
        disk = tmp_path / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this machine does not let a test mount a file system")
        try:
            detect_into(disk / "run", bert_folder, place, saying + "Read-only file system")
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        detect_into(tmp_path / "closed" / "run", bert_folder, place, saying + "Permission denied")


def test_a_command_that_failed_on_its_input_does_not_block_its_folder(bert_folder, place, tmp_path):
    wrong = [*options(place), "--sentence-count", "1000", "--out", tmp_path / "run"]
    refused("detect", bert_folder, *wrong, saying="has 60 distinct sentences, 1000 are asked for")
    right = [*options(place), "--sample", "5", "--out", tmp_path / "run"]
    assert planted.command("detect", bert_folder, *right).exit_code == 0


# Wrong usage


@pytest.mark.parametrize(
    "arguments",
    [
        "detect MODEL --sample 0",
        "detect MODEL --sample many",
        "detect MODEL --copies 0",
        "detect MODEL --scoring-pairs 0",
        "detect MODEL --validation-pairs -1",
        "detect MODEL --pair-count 0",
        "detect MODEL --sentence-count 1",
        "detect MODEL --seed -1",
        "detect MODEL --outlier-range -0.1",
        "detect MODEL --token-budget 0",
        "detect MODEL --method guess",
        "detect MODEL --insertion glue",
        "detect MODEL --format yaml",
        "detect MODEL --frobnicate",
        "detect MODEL RUN",
        "detect",
        "tokens",
        "tokens MODEL --limit 0",
        "probe MODEL",
        "probe MODEL the --copies 0",
        "show",
        "show RUN --verdict odd",
        "show RUN --sort token",
        "show RUN --limit 0",
        "frobnicate",
        "--frobnicate",
    ],
)
def test_wrong_usage_is_status_2(bert_folder, finished, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    given = {"MODEL": bert_folder, "RUN": finished}
    refused(*(given.get(word, word) for word in arguments.split()), status=2)
    assert list(tmp_path.iterdir()) == []


def test_no_command_at_all_shows_the_help(place):
    result = planted.command()
    assert result.exit_code == 2
    assert "Usage: stickytoken" in result.stderr + result.stdout
