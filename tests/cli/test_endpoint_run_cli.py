"""Commands that go on from a run of a model behind an endpoint."""

import base64
import json
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import planted
import profiled
import scanned
from embedding_server import Behaviour, EmbeddingServer
from stickytoken.encoders import load_encoder
from web_app import WIDE, browsing, drawn

pytest.importorskip("openai", reason="openai is not installed")
pytestmark = pytest.mark.slow

KEY = "sk-planted-0123456789-abcdefghij"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A server of a model with one sticky word, and a run of what is behind it."""
    folder = tmp_path_factory.mktemp("endpoint")
    profiled.planted_model(2, token=scanned.STICKY).save(str(folder / "model"))
    server = EmbeddingServer.of(load_encoder(folder / "model", device="cpu"), Behaviour(key=KEY))
    with pytest.MonkeyPatch.context() as patch, server.running() as url:
        patch.setenv("STICKYTOKEN_CACHE", str(folder / "cache"))
        patch.setenv("STICKYTOKEN_API_KEY", KEY)
        encoder = load_encoder(f"{url}#mini", tokenizer=str(folder / "model"))
        run = profiled.detect_profile(encoder, folder / "run", smallest_effect=1, insertion="words")
        assert run.sticky["token"].to_list() == [scanned.STICKY]
        yield SimpleNamespace(server=server, url=url, folder=folder, run=run.path)


def sent(place, *command):
    """The result of a command, and the tokens that the server counted for it."""
    before = place.server.tokens
    result = planted.command(*command)
    assert result.exit_code in (0, 10), result.stderr
    assert KEY not in result.stdout + result.stderr
    return result, place.server.tokens - before


def number(pattern, text):
    return int(re.search(pattern, text).group(1).replace(",", ""))


def test_a_judgement_is_estimated_by_what_is_certain_and_what_it_may_be_at_most(place):
    corpus = place.folder / "own.txt"
    corpus.write_text("\n".join(profiled.sentences(300, seed=3)) + "\n", encoding="utf-8")
    result, tokens = sent(place, "judge", place.run, "--sentences", corpus, "--format", "json")
    assert [row["token"] for row in json.loads(result.stdout)["flagged"]] == [scanned.STICKY]
    certain = number(r"estimate: .* texts, ([\d,]+) tokens", result.stderr)
    most = number(r"at most ([\d,]+) tokens", result.stderr)
    assert certain < tokens <= most
    _, again = sent(place, "judge", place.run, "--sentences", corpus, "--format", "json")
    assert again == 0


def test_a_scan_says_what_the_copies_do(place):
    documents = place.folder / "documents.txt"
    documents.write_text("\n".join(scanned.documents(30, range(3, 6))) + "\n", encoding="utf-8")
    result, tokens = sent(
        place, "scan", place.run, documents, "--effect", "--scan-folder", place.folder / "scan",
        "--format", "json",
    )  # fmt: skip
    assert tokens == pytest.approx(number(r"texts, ([\d,]+) tokens", result.stderr), rel=0.05)
    assert scanned.STICKY in result.stdout


def test_a_check_does_not_call_the_default_a_setting_of_its_own(place):
    result, tokens = sent(place, "check", place.run, "--format", "json")
    assert result.exit_code == 10
    assert tokens == 0
    assert "insertion" not in " ".join(json.loads(result.stdout)["notes"])


def test_a_check_of_the_model_takes_its_run_and_never_makes_one(place, tmp_path):
    name = f"{place.url}#mini"
    result, tokens = sent(place, "check", name, "--folder", place.run)
    assert result.exit_code == 10
    assert 0 < tokens < 200  # the fixed texts: is it the model that it was?
    refused = planted.command("check", name, "--folder", tmp_path)
    assert refused.exit_code == 1
    assert "detect it first" in refused.stderr


def test_scores_need_no_tokenizer_and_are_announced(place):
    task = place.folder / "sts.jsonl"
    texts = profiled.sentences(20, seed=5)
    rows = [
        {"sentence1": first, "sentence2": second, "score": score}
        for score, (first, second) in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]
    task.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result, tokens = sent(place, "evaluate", f"{place.url}#mini", "--task", task, "--format", "json")
    assert number(r"estimate: .* requests, ([\d,]+) texts", result.stderr) == 20
    assert tokens > 0
    local = planted.command("evaluate", place.folder / "model", "--task", task, "--format", "json")
    ours, own = (json.loads(each.stdout)["scores"][0]["scores"] for each in (result, local))
    assert ours == pytest.approx(own, abs=1e-4)


def test_vectors_need_no_tokenizer_and_are_announced(place):
    texts, out = place.folder / "texts.txt", place.folder / "vectors.parquet"
    texts.write_text("\n".join(profiled.sentences(10, seed=9)) + "\n", encoding="utf-8")
    result, _ = sent(place, "embed", f"{place.url}#mini", "--input", texts, "--out", out)
    assert number(r"estimate: .* requests, ([\d,]+) texts", result.stderr) == 10
    assert out.is_file()


def test_the_vocabulary_of_an_endpoint_is_that_of_its_tokenizer(place):
    refused = planted.command("tokens", f"{place.url}#mini")
    assert refused.exit_code == 1
    assert "hides its vocabulary: name its tokenizer" in refused.stderr
    missing = planted.command("tokens", "tiktoken:nothing")
    assert "tiktoken has no encoding 'nothing'" in missing.stderr


def test_the_web_app_tries_tokens_of_the_run(place, browser):
    command = [sys.executable, "-m", "stickytoken", "demo", "--run", str(place.run), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--folder", str(place.folder / "none"), "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed = ""
        while not printed.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            printed += line
        url = json.loads(printed)["url"]
        with browsing(browser, url, **WIDE) as (page, heard):
            assert scanned.STICKY in page.inner_text("#try-answer")
            drawn(page, 2)
            assert heard == []
            assert KEY not in page.content() + page.request.get(f"{url}/config").text()
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)
    assert "Traceback" not in said[1]
    assert KEY not in "".join(said)


MAIN = "from stickytoken.cli.main import main; main()"
CRASHING = """
import sys
from stickytoken.encoders.endpoint import _client

def read_answer(content, texts):
    raise RuntimeError("a bug")

_client.read_answer = read_answer
sys.argv[0] = "stickytoken"
from stickytoken.__main__ import main
main()
"""


def said_by(*command, code=MAIN, **variables):
    """What a process prints, on both streams."""
    done = planted.program(code, *command, **variables)
    return done.stdout + done.stderr


def test_the_key_is_in_no_file_and_no_output(place, monkeypatch):
    texts = place.folder / "spoken.txt"
    texts.write_text("\n".join(profiled.sentences(10, seed=11)) + "\n", encoding="utf-8")

    def embedding(out):
        return ("embed", f"{place.url}#mini", "--input", texts, "--out", place.folder / out, "--verbose")

    logged = said_by(*embedding("first.parquet"), OPENAI_LOG="debug")
    assert "HTTP Request" in logged
    crashed = said_by(*embedding("second.parquet"), "--prompt", "never sent: ", code=CRASHING)
    assert "RuntimeError: a bug" in crashed
    assert "Traceback" in crashed
    report = place.folder / "report.html"
    reported = said_by("report", place.run, "--out", report)
    assert report.is_file(), reported
    monkeypatch.setattr(place.server.behaviour, "key", "another")
    refused = said_by(*embedding("second.parquet"), "--prompt", "never sent: ", "--format", "json")
    assert "Incorrect API key provided: [key]" in refused
    kept = [path.read_bytes() for path in place.folder.rglob("*") if path.is_file()]
    assert any(b"report" in content for content in kept)
    for spelling in (KEY, KEY[::-1], base64.b64encode(KEY.encode()).decode().rstrip("=")):
        assert spelling not in logged + crashed + reported + refused
        assert not any(spelling.encode() in content for content in kept)


@pytest.mark.parametrize("command", [["explain", scanned.STICKY], ["repair", "--out", "mended"], ["why"]])
def test_what_needs_the_model_itself_refuses_an_endpoint(place, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    name, *others = command
    given = {
        "why": [f"{place.url}#mini", "the river", "a boat", "--run", place.run],
    }.get(name, [place.run, *others])
    planted.refused(name, *given, saying="needs the model itself")
    assert not list(tmp_path.iterdir())


def test_the_tokenizer_of_a_run_may_have_moved(place):
    corpus = place.folder / "moved.txt"
    corpus.write_text("\n".join(profiled.sentences(300, seed=3)) + "\n", encoding="utf-8")
    moved = (place.folder / "model").rename(place.folder / "moved")
    try:
        command = ("judge", place.run, "--sentences", corpus, "--format", "json")
        planted.refused(*command, saying="model")
        result, _ = sent(place, *command, "--tokenizer", moved)
    finally:
        moved.rename(place.folder / "model")
    assert [row["token"] for row in json.loads(result.stdout)["flagged"]] == [scanned.STICKY]
