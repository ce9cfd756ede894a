"""Bad input through the command line: one line on stderr that says what is wrong, nothing on stdout."""

import json
import shutil

import pytest
from sentence_transformers import SentenceTransformer

import planted
import tiny

PAIRS = "sentence1,sentence2,similarity\n"


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


def options(place):
    return ["--sentences", place / "good.txt", *planted.SMALL_OPTIONS]


MODELS = {
    "absent/model": "no model 'absent/model'.*not in the hub cache",
    "absent": "no model 'absent'",
    "./absent": "no folder",
    "a/b/c": "no folder 'a/b/c'",
    "not a name!": "no model 'not a name!'",
    "x" * 300: "no (model|folder)",
    "no-model": "has no model",
    "good.txt": "is a file: pass the folder of the model",
    "tokenizer-only": "has a tokenizer but no model: detection needs the weights",
    "no-weights": "has no weights",
    "cut-off-weights": "cannot be loaded",
    "bad-config": "cannot be loaded: .*not a valid JSON",
    "no-tokenizer": "tokenizer",
    "nan-weights": "the vector of the text .* is not finite: the weights are damaged",
}


@pytest.mark.parametrize("model", MODELS, ids=lambda name: name[:20])
def test_a_model_that_cannot_be_used_is_refused(place, tmp_path, model):
    given = place / model if "/" not in model and len(model) < 99 and (place / model).exists() else model
    planted.refused("detect", given, *options(place), "--out", tmp_path / "run", saying=MODELS[model])
    arguments = ("--sentences", place / "good.txt", *planted.PROBE_OPTIONS)
    planted.refused("probe", given, "the", *arguments, saying=MODELS[model])


def test_a_tokenizer_without_weights_is_enough_for_tokens(place):
    result = planted.command("tokens", place / "tokenizer-only", "--format", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["available"] == 95


@pytest.mark.parametrize("model", ["absent/model", "absent", "a/b/c", "no-model", "good.txt", "no-tokenizer"])
def test_a_tokenizer_that_cannot_be_used_is_refused(place, model):
    given = place / model if (place / model).exists() else model
    saying = {"good.txt": "is a file", "no-model": "has no tokenizer", "no-tokenizer": "has no tokenizer"}
    planted.refused("tokens", given, saying=saying.get(model, "no (tokenizer|folder) "))


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (["--device", "toaster"], "device 'toaster' is unknown: this machine has cpu"),
        (["--device", "cuda:99"], "device 'cuda:99' is not available: this machine has cpu"),
        (["--device", "meta"], "device 'meta' has no values, only shapes: this machine has cpu"),
        (["--revision", "v2"], "revision 'v2' .* is a folder: leave out the revision"),
        (["--dtype", "int3"], "dtype 'int3' is unknown: use one of float32, float16, bfloat16"),
        (["--prompt-name", "poem"], "has no prompt named 'poem'"),
        (["--candidate-share", "0"], "candidate_share is 0.0: it must be above 0 and at most 1"),
        (["--candidate-share", "1.1"], "candidate_share is 1.1"),
        (["--candidate-share", "nan"], "candidate_share is nan"),
        (["--outlier-range", "inf"], "outlier_range is inf"),
        (["--sample", "96"], "sample is 96: it must be between 1 and 95"),
        (["--sentence-count", "61"], "has 60 distinct sentences, but 61 are needed"),
        (["--scoring-pairs", "9999"], "sentence pairs have a similarity below .* scoring needs 9999"),
        (["--copies", "40"], "use shorter sentences or fewer copies"),
        (["--column", "text"], "is a text file without columns"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_that_cannot_be_met_is_refused(bert_folder, place, tmp_path, arguments, saying):
    arguments = [*options(place), "--sample", "9", *arguments]
    planted.refused("detect", bert_folder, *arguments, "--out", tmp_path / "run", saying=saying)


@pytest.mark.parametrize(
    ("name", "saying"),
    [
        ("absent.txt", "no file"),
        ("x" * 300 + ".txt", "(cannot be read: File name too long|no file)"),
        ("", "is a folder"),
        ("empty.txt", "is empty"),
        ("blank.txt", "is empty"),
        ("binary.txt", "is (not UTF-8 text|a binary file)"),
        ("latin.txt", "is not UTF-8 text .byte 3.: convert it"),
        ("two.txt", "has 2 distinct sentences, but 40 are needed"),
        ("notes.pdf", "has the ending '.pdf': use .txt"),
        ("columns.csv", "which column of .* It has id, first, second: name one with the column option"),
        ("columns.csv --column third", "has no column 'third': it has id, first, second"),
        ("numbers.jsonl", "column 'text' of .* contains Int64, not text"),
        ("broken.jsonl", "is not a readable jsonl file"),
        ("broken.parquet", "is not a readable parquet file"),
        ("hub:nobody/nothing", "the data set 'nobody/nothing' .* cannot be read"),
    ],
)
def test_sentences_that_cannot_be_used_are_refused(bert_folder, place, tmp_path, name, saying):
    file, *column = name.split(" ") if name else [""]
    source = file if ":" in file else place / file
    arguments = ["--sentences", source, *column, *planted.SMALL_OPTIONS, "--out", tmp_path / "run"]
    planted.refused("detect", bert_folder, *arguments, saying=saying)
    planted.refused(
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
        ("pairs-none.csv", "has no pairs"),
        ("pairs-blank.csv", "pair 1 has a blank sentence"),
        ("pairs-word.csv", "pair 1 has the similarity .* between -1 and 1"),
        ("pairs-nan.csv", "pair 1 has the similarity .* between -1 and 1"),
        ("pairs-range.csv", "pair 2 has the similarity .* between -1 and 1"),
        ("pairs-high.csv", "none of the 2 sentence pairs has a similarity below the model's mean"),
        ("pairs-long.csv", "is longer than .* reads .64 tokens.: use shorter sentences"),
        ("pairs-one.csv", "only 1 sentence pairs have a similarity below .* scoring needs 2"),
    ],
)
def test_pairs_that_cannot_be_used_are_refused(bert_folder, place, tmp_path, name, saying):
    arguments = ["--pairs", place / name, *planted.SMALL_OPTIONS, "--out", tmp_path / "run"]
    planted.refused("detect", bert_folder, *arguments, saying=saying)


def test_a_column_for_pairs_is_refused(bert_folder, place, tmp_path):
    pairs = ["--pairs", place / "pairs-one.csv", "--column", "sentence1"]
    saying = "--column 'sentence1' is given without --sentences: .*leave --column out"
    arguments = [*planted.SMALL_OPTIONS, "--out", tmp_path / "run"]
    planted.refused("detect", bert_folder, *pairs, *arguments, saying=saying)
    planted.refused("probe", bert_folder, "the", *pairs, *planted.PROBE_OPTIONS, saying=saying)
    assert not (tmp_path / "run").exists()


def test_sentences_and_pairs_together_are_refused(bert_folder, place, tmp_path):
    arguments = [*options(place), "--pairs", place / "pairs-one.csv", "--out", tmp_path / "run"]
    planted.refused("detect", bert_folder, *arguments, saying="both given: pairs replace the sentences")
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
    planted.refused("detect", bert_folder, *arguments, saying=saying)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (["unheard"], "the vocabulary has no token 'unheard': `stickytoken tokens` lists what there is"),
        (["the", "unheard"], "the vocabulary has no token 'unheard'"),
        ([""], "the vocabulary has no token ''"),
        (["[unused0]"], "cannot occur in text .UNREACHABLE_SPECIAL.: probe it with ids insertion"),
        (["five", "--ids"], "'five' is not a token id: pass a number, or leave --ids out"),
        (["125", "--ids"], "the vocabulary has no token id 125: it has 0 to 124"),
        (["5", "--ids"], "cannot occur in text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_token_that_cannot_be_probed_is_refused(bert_folder, place, arguments, saying):
    planted.refused(
        "probe",
        bert_folder,
        *arguments,
        "--sentences",
        place / "good.txt",
        *planted.PROBE_OPTIONS,
        saying=saying,
    )


def test_an_unknown_category_is_refused_with_the_known_ones(bert_folder, planted_run):
    saying = "'--category': 'odd' is not a category: use one of OK, OK_SPECIAL, MEANINGLESS, "
    planted.refused("tokens", bert_folder, "--category", "odd", status=2, saying=saying)
    planted.refused("show", planted_run, "--category", "odd", status=2, saying=saying)


@pytest.mark.parametrize("token", ["unheard", ""])
def test_a_token_that_a_run_does_not_have_is_refused(planted_run, token):
    planted.refused("show", planted_run, "--token", token, saying=f"has no token '{token}'")


def test_a_text_of_nothing_is_not_looked_for(planted_run):
    saying = "--contains is '': pass a part of a token's text, or leave it out"
    planted.refused("show", planted_run, "--contains", "", saying=saying)
    planted.refused("show", planted_run, "--contains", "", "--validated", saying=saying)


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
        "show RUN --limit 0",
        "frobnicate",
        "--frobnicate",
    ],
)
def test_wrong_usage_is_status_2(bert_folder, planted_run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    given = {"MODEL": bert_folder, "RUN": planted_run}
    planted.refused(*(given.get(word, word) for word in arguments.split()), status=2)
    assert list(tmp_path.iterdir()) == []


def test_no_command_at_all_shows_the_help(place):
    result = planted.command()
    assert result.exit_code == 2
    assert "Usage: stickytoken" in result.stderr + result.stdout
