"""Models behind an endpoint on the command line: what is shown, asked, refused, and never paid twice."""

import json
import os

import polars as pl
import pytest

import planted
import profiled
from embedding_server import Behaviour, EmbeddingServer
from stickytoken.detection import open_run
from stickytoken.encoders import load_encoder

pytest.importorskip("openai", reason="openai is not installed")

KEY = "sk-planted-0123456789-abcdefghij"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved model with a sticky token."""
    folder = tmp_path_factory.mktemp("planted") / "model"
    profiled.planted_model(2).save(str(folder))
    return folder


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    path.write_text("\n".join(profiled.corpus(160).texts) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def served(model, tmp_path, monkeypatch):
    """A server of the planted model that asks for a key, and its URL."""
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STICKYTOKEN_API_KEY", KEY)
    server = EmbeddingServer.of(load_encoder(model, device="cpu"), Behaviour(key=KEY))
    with server.running() as url:
        yield server, url


@pytest.mark.slow
def test_a_detection_finds_what_the_model_itself_finds_and_pays_once(served, model, corpus_file, tmp_path):
    server, url = served
    options = ("--tokenizer", model, "--sentences", corpus_file, "--no-report", "--format", "json")
    price = ("--price-per-million", "10")
    endpoint = ("--endpoint", url, "--endpoint-model", "mini", *options, "--out", tmp_path / "run")
    asked = planted.command("detect", *endpoint, *price)
    assert asked.exit_code == 1
    assert "estimate: " in asked.stderr
    assert "nobody can be asked whether to spend this: pass --yes" in asked.stderr
    before = server.tokens
    stopped = planted.command("detect", *endpoint, *price, "--yes", "--max-cost", "0.5")
    assert stopped.exit_code == 1
    assert "stopped at the maximum cost of 0.5" in stopped.stderr
    assert 0.25 < (server.tokens - before) * 10 / 1e6 <= 0.5
    done = planted.command("detect", *endpoint)
    assert done.exit_code == 0, done.stderr
    estimate = int(stopped.stderr.split(" tokens, cost")[0].split()[-1].replace(",", ""))
    assert server.tokens - before == pytest.approx(estimate, rel=0.05)
    sent = server.seen
    again = planted.command("detect", *endpoint)
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    assert server.seen == sent
    run = open_run(tmp_path / "run")
    local = planted.command(
        "detect", model, *options[2:], "--out", tmp_path / "local", "--insertion", "words"
    )
    assert local.exit_code == 0, local.stderr
    own = open_run(tmp_path / "local")
    assert run.tokens["verdict"].to_list() == own.tokens["verdict"].to_list()
    assert not run.sticky.is_empty()
    assert (run.tokens["lift"] - own.tokens["lift"]).abs().max() < 1e-6
    assert run.tokens["copies_seen"].min() > 0.8
    judged = planted.command("judge", run.path, "--sentences", corpus_file, "--format", "json")
    assert judged.exit_code == 0, judged.stderr
    refused = planted.command("explain", run.path, run.sticky["token"][0])
    assert refused.exit_code == 1
    assert "needs the model itself" in refused.stderr
    for root, _, files in os.walk(tmp_path):
        for file in files:
            with open(os.path.join(root, file), "rb") as stream:  # noqa: PTH118, PTH123 - any name
                assert KEY.encode() not in stream.read()
    for result in (asked, stopped, done, again, judged, refused):
        assert KEY not in result.stdout + result.stderr


@pytest.mark.slow
def test_candidates_are_examined_where_the_tokenizer_is_secret(served, corpus_file, tmp_path):
    _, url = served
    words = tmp_path / "words.txt"
    words.write_text("river\nstone\n!\n", encoding="utf-8")
    done = planted.command(
        "detect", f"{url}#mini", "--candidates", words, "--sentences", corpus_file, "--no-report",
        "--out", tmp_path / "run", "--format", "json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    tokens = pl.read_parquet(tmp_path / "run" / "tokens.parquet")
    assert tokens["token"].to_list() == ["river", "stone", "!"]
    assert json.loads(done.stdout)["looked_at"] == 3
    assert "estimate: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("detect MODEL --endpoint http://localhost:1/v1 --endpoint-model m", "both name a model"),
        ("detect --endpoint http://localhost:1/v1", "belong together"),
        ("detect --endpoint localhost:1/v1 --endpoint-model m", "localhost:1/v1 is not a URL: begin it with"),
        ("detect MODEL --max-cost 1", "--max-cost apply only to models behind an endpoint"),
        ("detect http://localhost:1/v1#m", "hides its vocabulary: pass its tokenizer"),
        ("detect http://localhost:1/v1#m --tokenizer MODEL --max-cost 1", "without a price"),
        ("detect http://localhost:1/v1#m --tokenizer MODEL --device cpu", "device cannot be set"),
        ("detect http://127.0.0.1:9/v1#m --tokenizer MODEL", "cannot be reached"),
        ("detect http://localhost:1/v1#m --candidates missing.txt", "missing.txt"),
        ("probe openai: river --tokenizer MODEL", "names no model"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(model, tmp_path, monkeypatch, arguments, said):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    result = planted.command(*(str(model) if word == "MODEL" else word for word in arguments.split()))
    assert result.exit_code == 1
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("error:"))
    assert said in line
