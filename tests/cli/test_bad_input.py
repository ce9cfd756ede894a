"""Bad input and unusable run folders: one line on stderr that says what is wrong, and nothing is written."""

import shutil

import pytest
from sentence_transformers import SentenceTransformer

import planted
import tiny
from stickytoken.detection.run_folder import RunFolder


@pytest.fixture(scope="module")
def place(bert_folder, tmp_path_factory):
    """A folder with what can be wrong."""
    folder = tmp_path_factory.mktemp("bad")
    for name, content in {
        "good.txt": "\n".join(tiny.sentences(60)),
        "pairs-one.csv": "sentence1,sentence2,similarity\nthe bird,a song,-0.5\n",
        "unknown.txt": "river\nunheard\n",
    }.items():
        (folder / name).write_text(content, encoding="utf-8")
    tiny.wordpiece_tokenizer().save_pretrained(folder / "tokenizer-only")
    shutil.copytree(bert_folder, folder / "no-tokenizer", ignore=shutil.ignore_patterns("token*"))
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
        ("nan-weights", "the vector of the text .* is not finite: the weights are damaged"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused(place, small, tmp_path, model, saying):
    given = place / model if (place / model).exists() else model
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
        ("--sentences absent.txt", "no file 'absent.txt' .in Python, pass sentences themselves as a list"),
        ("--set pairs=PLACE/pairs-one.csv", "both given: pairs replace the sentences"),
        ("--tokens PLACE/unknown.txt", "the vocabulary has no token 'unheard'"),
        ("--tokens #125", "token id 125 cannot occur in text .not in the vocabulary"),
        ("--set pairs=PLACE/pairs-one.csv --column a", "--column 'a' is given without --sentences"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused(place, small, tmp_path, arguments, saying):
    corpus = small[:1] if "--column" in arguments else small[:3]
    words = arguments.replace("PLACE", str(place)).split()
    given = [*corpus, *small[3:], "--out", tmp_path / "run", *words]
    planted.refused("detect", *given, saying=saying)


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
        ("show", r"Missing argument 'run' \(see stickytoken show --help\)"),
        ("show r --limit many", r"--limit.*\(see stickytoken show --help\)"),
        ("show r --colour", "No such option: --colour"),
        ("tokens m -q -v", "use one of --quiet and --verbose"),
        ("detect m n", "unexpected extra argument"),
        ("detect m --set workers=2", "it needs --set engine=ray"),
        ("scan r d --effect --predict", "use one of --effect and --predict"),
        ("scan r d --queries q.txt", "it needs --effect or --predict"),
        ("scan r d --set workers=0", "--set workers"),
        ("check m --out x.json", "it needs --format json, junit or sarif"),
        ("check m --fail-on odd", "'odd' is not a severity: use one of sticky, serious, severe"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(tmp_path, monkeypatch, arguments, saying):
    monkeypatch.chdir(tmp_path)
    planted.refused(*arguments.split(), status=2, saying=saying)
    assert list(tmp_path.iterdir()) == []


# Run folders


@pytest.mark.slow
def test_a_run_folder_that_another_process_writes_is_refused(small, tmp_path):
    given = ("detect", *small, "--sample", "5", "--out", tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        saying = "is being written by another process: wait for it, or choose"
        planted.refused(*given, saying=saying)
    # Nor does a command that failed on its input block its folder.
    planted.refused(*given, "--set", "sentence-count=1000", saying="distinct sentences, but 1000")
    assert planted.command(*given).exit_code == 0
