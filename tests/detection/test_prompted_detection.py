"""Detection on a language model that is read through a prompt: both engines, cut off and on."""

import json

import polars as pl
import pytest

import engines
import planted
import profiled
import tiny
import tiny_decoders
from interrupted import assert_same_run
from prompted_loading import load_prompted
from stickytoken import load_encoder
from stickytoken.data.corpora import collect_sentences
from stickytoken.detection import detect
from stickytoken.errors import InputError, RunError
from stickytoken.machine import Precision
from stickytoken.measurement.ray_engine import ShardWorker, ray_engine

pytestmark = pytest.mark.slow

READING = {"prompt": "prompteol", "token_prepending": True, "start": 1, "exit": 3, "layer": 3}
SAMPLE = 40
SHARD_PROBES = 6 * planted.SHARD_PROBES


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "model")


@pytest.fixture(autouse=True)
def small_shards():
    with planted.sharded(SHARD_PROBES):
        yield


def detect_profile(encoder, out, **options):
    corpus = collect_sentences(tiny.sentences(200), "test")
    return profiled.detect_profile(
        encoder, out, **{"sentences": corpus, "sample": SAMPLE, "shard_probes": SHARD_PROBES} | options
    )


def detect_std(encoder, out, **options):
    given = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "shard_probes": SHARD_PROBES}
    return detect(encoder, out=out, **given | options)


def test_a_run_that_is_cut_off_continues_to_the_same_bytes(qwen, tmp_path):
    encoder = load_prompted(qwen, device="cpu", **READING)
    whole = detect_profile(encoder, tmp_path / "whole")
    assert len(whole.tokens) == SAMPLE
    with pytest.raises(engines.InterruptionError):
        detect_profile(encoder, tmp_path / "run", progress=engines.interrupted_after("confirm", done=6))
    before = planted.shards_of(tmp_path / "run")
    assert before
    detect_profile(load_prompted(qwen, device="cpu", **READING), tmp_path / "run")
    after = planted.shards_of(tmp_path / "run")
    assert {name: after[name] for name in before} == before
    assert_same_run(tmp_path / "run", whole.path)
    other = load_prompted(qwen, device="cpu", **READING | {"prompt": "cot"})
    with pytest.raises(RunError, match="encoder"):
        detect_profile(other, tmp_path / "run")


def test_what_follows_a_run_reads_its_model_as_the_run_did(qwen, tmp_path):
    run = detect_profile(load_prompted(qwen, device="cpu", **READING), tmp_path / "run")
    record = json.loads((run.path / "run.json").read_text())
    assert record["model"]["loading"] == {
        "dtype": "float32",
        "revision": None,
        "endpoint": None,
        "contrast": False,
        "contrast_layer": None,
        "contrast_rule": None,
        "contrast_strength": None,
        "prompt": record["model"]["loading"]["prompt"],
        "layer_choice": "chosen by the user",
    } | {name: value for name, value in READING.items() if name != "prompt"}
    task = tmp_path / "sts.jsonl"
    lines = [{"sentence1": text, "sentence2": text[::-1], "score": len(text)} for text in tiny.sentences(12)]
    task.write_text("\n".join(json.dumps(line) for line in lines))
    token = run.tokens["token"][0]
    options = ("--device", "cpu", "--set", "repetitions=1")
    asked = ["impact", run.path, "--tokens", token, "--task", task, *options]
    moved = qwen.rename(tmp_path / "moved")
    refused = planted.command(*asked, "--format", "json")
    assert refused.exit_code == 1
    assert "if it has moved, pass --model" in refused.stderr
    measured = planted.command(*asked, "--model", moved, "--format", "json")
    assert measured.exit_code == 0, measured.stderr
    assert json.loads(measured.stdout)["effects"]
    other = planted.command(*asked, "--model", moved, "--set", "prompt=cot")
    assert other.exit_code == 1
    assert "was made with another model" in other.stderr
    moved.rename(qwen)


def test_tokens_that_would_end_the_quotation_are_not_looked_at(qwen, tmp_path):
    encoder = load_prompted(qwen, device="cpu", **READING)
    (quotation,) = (each for each, token in encoder.tokenizer.entries.items() if token == '"')
    with pytest.raises(InputError, match="UNREACHABLE_SINGLE_TOKEN"):
        detect_std(encoder, tmp_path / "run", tokens=[quotation, quotation + 1])
    plain = load_encoder(qwen, device="cpu", prompt="{sentence} means:")
    run = detect_std(plain, tmp_path / "plain", tokens=[quotation, quotation + 1])
    assert quotation in run.tokens["token_id"].to_list()


# Ray.


def test_workers_compute_the_bytes_of_one_process(qwen, tmp_path):
    encoder = load_prompted(qwen, device="cpu", **READING)
    whole = detect_std(encoder, tmp_path / "whole", tokens=range(30, 54))
    with engines.local_ray(), ray_engine(encoder, workers=2) as engine:
        detect_std(encoder, tmp_path / "run", tokens=range(30, 54), engine=engine)
    assert len(planted.shards_of(tmp_path / "run")) > 3
    assert_same_run(tmp_path / "run", whole.path)


@pytest.mark.parametrize(
    "options",
    [
        READING,
        {"prompt": "metaeol", "token_prepending": True, "max_length": 300, "token_budget": 64},
        {"prompt": 'A title: "*sent 0*" is about', "layer": 2, "dtype": "bfloat16"},
    ],
)
def test_a_worker_loads_the_same_encoder(qwen, options):
    encoder = load_prompted(qwen, device="cpu", **options)
    assert ShardWorker(encoder.spec, "cpu", 1).load().identity == encoder.identity


# Screening in a lower precision.


def test_the_first_rounds_are_screened_in_bfloat16(qwen, tmp_path):
    encoder = load_prompted(qwen, device="cpu", **READING)
    run = detect_profile(encoder, tmp_path / "run", screen_precision=Precision.BFLOAT16, sample=12)
    assert len(run.tokens) == 12
    screened = pl.read_parquet(run.path / "shards" / "screen-*.parquet").sort("token_id")
    plain = detect_profile(encoder, tmp_path / "plain", sample=12)
    own = pl.read_parquet(plain.path / "shards" / "screen-*.parquet").sort("token_id")
    assert screened["token_id"].equals(own["token_id"])
    assert not screened["contraction"].equals(own["contraction"])
