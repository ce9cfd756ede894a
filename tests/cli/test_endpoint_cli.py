"""Models behind an endpoint on the command line: what is shown, asked, refused, and never paid twice."""

import base64
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest

import planted
import profiled
import scanned
from embedding_server import Behaviour, EmbeddingServer
from naming import naming, says
from stickytoken import load_encoder
from stickytoken.detection import open_run, probe
from stickytoken.errors import EncodingError
from stickytoken.insertion import Insertion

pytest.importorskip("openai", reason="openai is not installed")

KEY = "sk-planted-0123456789-abcdefghij"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A server of a model with one sticky word, and a run of what is behind it."""
    folder = tmp_path_factory.mktemp("endpoint")
    profiled.planted_model(2, token=scanned.STICKY).save(str(folder / "model"))
    server = EmbeddingServer(load_encoder(folder / "model", device="cpu"), Behaviour(key=KEY))
    with pytest.MonkeyPatch.context() as patch, server.running() as url:
        patch.setenv("STICKYTOKEN_CACHE", str(folder / "cache"))
        patch.setenv("STICKYTOKEN_API_KEY", KEY)
        encoder = load_encoder(f"{url}#mini", tokenizer=str(folder / "model"))
        run = profiled.detect_profile(encoder, folder / "run", insertion="words")
        assert run.sticky["token"].to_list() == [scanned.STICKY]
        (folder / "corpus.txt").write_text("\n".join(profiled.corpus(160).texts) + "\n", encoding="utf-8")
        texts = "\n".join(profiled.sentences(300, seed=3))
        (folder / "own.txt").write_text(f"{texts}\n", encoding="utf-8")
        yield SimpleNamespace(server=server, url=url, folder=folder, run=run.path)


def sent(service, *command):
    """Return the result of a command, and the tokens that the server counted for it."""
    before = service.server.tokens
    result = planted.command(*command)
    assert result.exit_code in (0, 10), result.stderr
    assert KEY not in result.stdout + result.stderr
    return result, service.server.tokens - before


def number(pattern, text):
    return int(re.search(pattern, text).group(1).replace(",", ""))


@pytest.mark.slow
def test_an_endpoint_gives_the_verdicts_of_the_model_and_is_paid_once(service, tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    server = service.server
    model = service.folder / "model"
    options = ("--sentences", service.folder / "corpus.txt", "--set", "report=false", "--format", "json")
    endpoint = (f"{service.url}#mini", "--set", f"tokenizer={model}", *options, "--out", tmp_path / "run")
    price = ("--set", "price-per-million=10")
    refusal = planted.command("detect", *endpoint, *price)
    assert refusal.exit_code == 1
    assert "estimate: " in refusal.stderr
    assert "pass --yes" in refusal.stderr
    before = server.tokens
    stopped = planted.command("detect", *endpoint, *price, "--yes", "--max-cost", "0.5")
    assert stopped.exit_code == 1
    assert says(stopped.stderr, "cost", 0.5)
    assert "sent, with the checks: " in stopped.stderr
    assert 0.25 < (server.tokens - before) * 10 / 1e6 <= 0.5
    done = planted.command("detect", *endpoint)
    assert done.exit_code == 0, done.stderr
    lowest = number(r"estimate: .*? ([\d,]+) tokens, cost", stopped.stderr)
    highest = number(r"at most ([\d,]+) tokens, cost .*, depending on what is found", stopped.stderr)
    assert lowest < server.tokens - before <= highest
    requests_before = server.seen
    again = planted.command("detect", *endpoint)
    assert (again.exit_code, again.stdout, server.seen) == (0, done.stdout, requests_before)
    local = ("detect", model, *options, "--out", tmp_path / "local", "--insertion", "words")
    assert planted.command(*local).exit_code == 0
    run = open_run(tmp_path / "run")
    local_run = open_run(tmp_path / "local")
    assert run.tokens["verdict"].to_list() == local_run.tokens["verdict"].to_list()
    assert not run.sticky.is_empty()
    # Without rows of the model, the last round takes some other tokens.
    is_measured_closely = (run.tokens["texts"] == local_run.tokens["texts"]) & (
        run.tokens["texts"] > run.tokens["texts"].min()
    )
    assert is_measured_closely.sum() > 128
    assert (run.tokens["contraction"] - local_run.tokens["contraction"]).filter(
        is_measured_closely
    ).abs().max() < 1e-6
    assert run.tokens["copies_seen"].min() > 0.8
    for result in (refusal, stopped, done):
        assert KEY not in result.stdout + result.stderr
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_quiet_question_comes_with_the_estimate(service, tmp_path, monkeypatch):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(profiled.sentences(7, seed=17)), encoding="utf-8")
    monkeypatch.setattr(
        "stickytoken.cli._options.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    )
    questions = []
    monkeypatch.setattr(
        "typer.confirm", lambda question, **_: questions.append(question)
    )  # as if answered no
    embedding = ("embed", f"{service.url}#mini", "--input", texts, "--out", tmp_path / "vectors.parquet")
    result = planted.command(*embedding, "--set", "price-per-million=10", "--quiet")
    assert (result.exit_code, questions) == (1, ["go on?"])
    (line,) = planted.lines_of(result.stderr)
    assert number(r"estimate: .* requests, ([\d,]+) texts", line) == 7


@pytest.mark.slow
def test_a_check_takes_a_run_and_never_makes_one(service, tmp_path):
    result, tokens = sent(service, "check", service.run, "--format", "json")
    assert (result.exit_code, tokens) == (10, 0)
    assert "insertion" not in " ".join(json.loads(result.stdout)["notes"])
    name = f"{service.url}#mini"
    result, tokens = sent(service, "check", name, "--folder", service.run)
    assert result.exit_code == 10
    assert 0 < tokens < 200  # the fixed texts: is it the model that it was?
    planted.assert_refused("check", name, "--folder", tmp_path, saying="stickytoken detect")


CRASHING = f"""
from stickytoken.encoders.endpoint import _client

def read_answer(content, texts):
    raise RuntimeError("a bug")

_client.read_answer = read_answer
{planted.COMMAND_LINE}
"""


def said_by(*command, code=planted.COMMAND_LINE, **variables):
    done = planted.program(code, *command, **variables)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_key_is_in_no_file_and_no_output(service, monkeypatch):
    texts = service.folder / "spoken.txt"
    texts.write_text("\n".join(profiled.sentences(10, seed=11)) + "\n", encoding="utf-8")

    def embedding(out):
        return ("embed", f"{service.url}#mini", "--input", texts, "--out", service.folder / out, "--verbose")

    logged = said_by(*embedding("first.parquet"), OPENAI_LOG="debug")  # vectors need no tokenizer
    assert "HTTP Request" in logged
    assert number(r"estimate: .* requests, ([\d,]+) texts", logged) == 10
    crashed = said_by(*embedding("second.parquet"), "--prompt", "never sent: ", code=CRASHING)
    assert "RuntimeError: a bug" in crashed
    assert "Traceback" in crashed
    report = service.folder / "report.html"
    reported = said_by("report", service.run, "--out", report)
    assert report.is_file(), reported
    monkeypatch.setattr(service.server.behaviour, "key", "another")
    refused = said_by(*embedding("second.parquet"), "--prompt", "never sent: ", "--format", "json")
    assert "Incorrect API key provided: [key]" in refused
    contents = [path.read_bytes() for path in service.folder.rglob("*") if path.is_file()]
    assert any(b"report" in content for content in contents)
    for spelling in (KEY, KEY[::-1], base64.b64encode(KEY.encode()).decode().rstrip("=")):
        assert spelling not in logged + crashed + reported + refused
        assert not any(spelling.encode() in content for content in contents)


@pytest.mark.slow
def test_what_needs_the_model_itself_refuses_an_endpoint(service, tmp_path):
    planted.assert_refused("repair", service.run, "--out", tmp_path / "out", saying=naming("model"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_copies_as_ids_are_refused_if_asked_for(service, tmp_path):
    texts = service.folder / "own.txt"
    before = service.server.tokens
    options = ("--documents", texts, "--set", "insertion=ids", "--out", tmp_path / "out")
    planted.assert_refused("audit", service.run, *options, saying=naming("insertion", "ids", "text"))
    assert not list(tmp_path.iterdir())
    assert service.server.tokens - before < 200  # the fixed texts: is it the model that it was?


@pytest.mark.slow
def test_the_tokenizer_of_a_run_may_have_moved(service):
    moved = (service.folder / "model").rename(service.folder / "moved")
    try:
        settings = ("--set", "stuffed=16", "--set", "tokens=1")
        documents = service.folder / "own.txt"
        command = ("audit", service.run, "--documents", documents, *settings, "--format", "json")
        planted.assert_refused(*command, saying="model")
        result, _ = sent(service, *command, "--set", f"tokenizer={moved}")
    finally:
        moved.rename(service.folder / "model")
    audited = json.loads(result.stdout)
    tokens = audited["tokens"]
    assert scanned.STICKY in [row["token"] for row in tokens if row["group"] == "flagged"]
    # The estimate that was confirmed has no texts that depend on what is found.
    assert audited["further_ids"] == []
    assert {row["documents"] for row in tokens} == {16}


def test_a_text_without_a_vector_is_null_in_the_file_and_named(service, tmp_path, monkeypatch):
    monkeypatch.setattr(service.server.behaviour, "bad_text", "nan")
    texts = tmp_path / "texts.txt"
    texts.write_text("river\na nan text\nstone\n", encoding="utf-8")
    out = tmp_path / "vectors.parquet"
    result, _ = sent(
        service, "embed", f"{service.url}#mini", "--input", texts, "--out", out, "--format", "json"
    )
    assert json.loads(result.stdout)["without_vector"] == ["a nan text"]
    assert says(result.stderr, "'a nan text'", 500)
    vectors = pl.read_parquet(out)["vector"]
    assert vectors.is_null().to_list() == [False, True, False]


@pytest.mark.slow
def test_a_token_without_vectors_has_no_verdict(service, tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    full = open_run(service.run).tokens.sort("token_id")
    bad = next(token for token in full["decoded"].to_list() if len(token) > 4 and token.isalpha())
    monkeypatch.setattr(service.server.behaviour, "bad_text", f"{bad} {bad}")
    encoder = load_encoder(f"{service.url}#mini", tokenizer=str(service.folder / "model"))
    run = profiled.detect_profile(encoder, tmp_path / "run", insertion="words")
    assert run.sticky["token"].to_list() == [scanned.STICKY]
    row = run.tokens.filter(pl.col("decoded") == bad).row(0, named=True)
    assert (row["erased"], row["contraction"], row["verdict"]) == (None, None, None)
    assert says(row["reason"], "not judged", "server")
    others = run.tokens.filter(pl.col("decoded") != bad)
    assert others["erased"].null_count() == 0
    assert any(says(note, "1 token", "no verdict", "server") for note in run.description.notes)


@pytest.mark.parametrize("settings", [profiled.SMALL, planted.SMALL], ids=["profile", "std"])
def test_probing_a_token_without_vectors_is_refused(settings, service, tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    good, bad = [token for token in open_run(service.run).tokens["decoded"] if token.isalpha()][:2]
    monkeypatch.setattr(service.server.behaviour, "bad_text", f"{bad} {bad}")
    encoder = load_encoder(f"{service.url}#mini", tokenizer=str(service.folder / "model"))
    settings = replace(settings, insertion=Insertion.WORDS)
    sentences = profiled.corpus(160)
    with pytest.raises(EncodingError, match=naming(f"{bad} {bad}")):
        probe(encoder, [good, bad], settings=settings, sentences=sentences)
    (evidence,) = probe(encoder, [good], settings=settings, sentences=sentences)
    assert evidence.token == good
