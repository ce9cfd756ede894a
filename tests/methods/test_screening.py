"""Lower precision for early rounds: close to the model's own, the same in every batch, nowhere else."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
import torch

import planted
import profiled
import tiny
import tiny_architectures
from stickytoken import detect, load_encoder
from stickytoken.encoders._batch_runner import _tf32, require_precision
from stickytoken.encoders.cpu.low_precision import BFloat16Linears, Int8Linears, calibration_inputs
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.insertion import Token
from stickytoken.machine import Precision
from stickytoken.measurement.engine import compute_shard
from stickytoken.measurement.stage import Shard
from stickytoken.methods.profile.settings import ProfileSettings

ON_CPU = [Precision.BFLOAT16, Precision.INT8]
# Architectures with a block that ends in a GELU, with gated blocks, causal ones, with relative positions.
NAMES = ["bert", "mpnet", "modernbert", "t5", "qwen2", "gemma2"]


def model_of(name, folder):
    architecture = {own.name: own for own in tiny_architectures.ARCHITECTURES}[name]
    return tiny_architectures.stacked(architecture.save(folder), pooling="mean", dense=16)


def inputs_of(encoder, count=60):
    generator = np.random.default_rng(0)
    entries = [entry for entry in encoder.tokenizer.entries if entry > 5]
    return [tuple(generator.choice(entries, size=1 + k % 9).tolist()) for k in range(count)]


def cosines(left, right):
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


@pytest.mark.parametrize("precision", ON_CPU)
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_near_those_of_the_models_own_precision(name, precision, tmp_path):
    encoder = load_encoder(model_of(name, tmp_path))
    contents = inputs_of(encoder)
    own = encoder.encode_ids(contents)
    lower = encoder.at(precision)
    found = lower.encode_ids(contents)
    least = 0.999 if precision is Precision.BFLOAT16 else 0.97
    assert cosines(own, found).min() > least
    # A lower precision that changes nothing is none.
    assert np.abs(own - found).max() > 1e-5
    assert np.array_equal(encoder.encode_ids(contents), own)


@pytest.mark.parametrize("precision", ON_CPU)
def test_a_vector_does_not_depend_on_its_batch(precision, tmp_path):
    model = model_of("bert", tmp_path)
    lower = load_encoder(model).at(precision)
    contents = inputs_of(lower)
    together = lower.encode_ids(contents)
    assert np.abs(np.vstack([lower.encode_ids([content]) for content in contents]) - together).max() < 1e-6
    other = load_encoder(model, token_budget=32).at(precision)
    assert np.abs(other.encode_ids(contents[::-1])[::-1] - together).max() < 1e-6


def test_the_same_precision_is_the_same_encoder(tmp_path):
    encoder = load_encoder(model_of("bert", tmp_path))
    assert encoder.at(None) is encoder
    assert encoder.at(Precision.BFLOAT16) is encoder.at(Precision.BFLOAT16)
    assert encoder.at(Precision.BFLOAT16) is not encoder.at(Precision.INT8)
    assert encoder.at(Precision.BFLOAT16).at(Precision.BFLOAT16) is encoder.at(Precision.BFLOAT16)


def test_an_int8_layer_is_its_product_of_rounded_numbers():
    """Against the arithmetic written out: scale, round, multiply integers, scale back."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 40)
    model, values = torch.nn.Sequential(layer), torch.randn(70, 24)
    with torch.inference_mode():
        linears = Int8Linears(model, lambda: model(values))
        with linears.active():
            found = model(values)
        low, high = (1.1 * bound.item() for bound in torch.aminmax(values))
        scale = (high - low) / 255
        zero = round(-low / scale)
        rounded = (torch.floor(values / scale + zero + 0.5).clamp(0, 255) - zero) * scale
        steps = layer.weight.abs().amax(1, keepdim=True) / 127
        weights = torch.round(layer.weight / steps) * steps
        assert torch.allclose(found, torch.nn.functional.linear(rounded, weights, layer.bias), atol=1e-4)
        assert torch.equal(model(values), layer(values))


def test_inputs_beyond_the_calibrated_range_are_cut_off_not_wrapped_around():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40, bias=False))
    values = torch.rand(64, 24)
    with torch.inference_mode():
        linears = Int8Linears(model, lambda: model(values))
        with linears.active():
            far, limit = model(1000 * values.sign()), model(torch.full_like(values, 1.1 * values.max()))
        assert torch.allclose(far, limit, atol=1e-2)


def test_a_layer_that_calibration_did_not_reach_stays_as_it_is():
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Linear(40, 8))
    with torch.inference_mode():
        linears = Int8Linears(model, lambda: model[0](torch.randn(5, 24)))
        with linears.active():
            assert ["forward" in vars(layer) for layer in model] == [True, False]
    assert not model[0]._forward_pre_hooks


@pytest.mark.parametrize("kind", [BFloat16Linears, lambda model: Int8Linears(model, lambda: None)])
def test_weights_of_nothing_but_zeros_and_models_without_layers_do_no_harm(kind):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Embedding(3, 4))
    torch.nn.init.zeros_(model[0].weight)
    with torch.inference_mode(), kind(model).active():
        assert torch.isfinite(model[0](torch.ones(2, 4))).all()


def test_calibration_sees_all_of_the_vocabulary_and_every_special_token():
    entries = list(range(10, 3000))
    found = calibration_inputs(entries, [10, 2999, 5])
    seen = {entry for content in found for entry in content}
    assert {10, 2999} <= seen <= set(entries)
    assert len(seen) >= 500
    assert any(content[-8:] == (2999,) * 8 for content in found)
    assert calibration_inputs(entries, [10, 2999, 5]) == found
    assert calibration_inputs([7], []) == [(7,), (7,) * 9]


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        (Precision.FLOAT16, "precision float16 is not available on cpu"),
        (Precision.TF32, "precision tf32 is not"),
    ],
)
def test_a_precision_that_the_device_lacks_is_an_error(precision, message, tmp_path):
    encoder = load_encoder(model_of("bert", tmp_path))
    with pytest.raises(InputError, match=message):
        encoder.at(precision)


def test_weights_that_are_half_as_wide_already_have_no_screening_precision(tmp_path):
    encoder = load_encoder(model_of("bert", tmp_path).to(torch.bfloat16))
    with pytest.raises(InputError, match="already computes in bfloat16: leave out the precision int8"):
        encoder.at(Precision.INT8)


def test_a_processor_without_the_instructions_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    with pytest.raises(InputError, match="precision int8 needs a processor with VNNI"):
        require_precision(model_of("bert", tmp_path), Precision.INT8, "m")


def coarse_in_int8(model):
    """Make one weight of every output so large that the others round to nothing."""
    with torch.no_grad():
        for layer in model[0].modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight[:, 0] *= 1e4
    return model


def test_a_precision_that_changes_the_vectors_too_much_is_an_error(tmp_path):
    model = coarse_in_int8(model_of("bert", tmp_path))
    with pytest.raises(InputError, match=r"int8 changes the vectors of .* too much \(mean cosine "):
        load_encoder(model).at(Precision.INT8)


# In a detection.


@pytest.mark.slow
@pytest.mark.parametrize("precision", ON_CPU)
def test_only_the_round_of_all_tokens_is_in_lower_precision_and_the_table_says_which(precision, tmp_path):
    """The rows of the other rounds are those of the plain run, for the tokens in both.

    Not to the bit: shards of the last round hold other tokens, so that a text is computed in another batch.
    """
    (tmp_path / "model").mkdir()
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "model", words=profiled.WORDS))
    plain = profiled.detect_profile(load_encoder(model), tmp_path / "plain")
    lower = profiled.detect_profile(load_encoder(model), tmp_path / "lower", screen_precision=precision)
    assert set(plain.tokens["precision"]) == {"float32"}
    assert set(lower.tokens["precision"]) == {"float32", precision.value}
    assert plain.result.screening_carriers == lower.result.screening_carriers
    for step, least in (("pilot", 128), ("confirm", 5)):
        rows = {run: shards(run, step) for run in (plain, lower)}
        both = set(rows[plain]) & set(rows[lower])
        assert len(both) >= least
        assert max(difference(rows, token) for token in both) < 1e-6
    early = {run: shards(run, "screen") for run in (plain, lower)}
    assert early[plain].keys() == early[lower].keys()
    assert max(difference(early, token) for token in early[plain]) > 1e-4
    exact = lower.tokens.filter(pl.col("precision") == "float32")["token_id"].to_list()
    assert set(exact) == {*shards(lower, "confirm"), *lower.plan.late_reference}


def difference(rounds, token):
    one, other = (np.array(rows[token]) for rows in rounds.values())
    return np.abs(one - other).max()


def shards(run, stage):
    frames = [pl.read_parquet(path) for path in sorted((run.path / "shards").glob(f"{stage}-*.parquet"))]
    return {row["token_id"]: row["lifts"] for row in pl.concat(frames).to_dicts()}


@dataclass(frozen=True)
class VectorStage:
    """Measures nothing but the vector itself."""

    precision: Precision | None
    name: str = "vectors"
    probes_per_token: int = 1

    def probes(self, token):
        return [(token.id, 7, 8)]

    def measure(self, token, vectors):
        return {"vector": vectors[0].tolist()}


@pytest.mark.parametrize("precision", [None, *ON_CPU])
def test_a_stage_is_computed_in_the_precision_that_it_asks_for(precision, tmp_path):
    encoder = load_encoder(model_of("bert", tmp_path))
    tokens = tuple(Token(token_id, "x") for token_id in range(9, 15))
    rows, _ = compute_shard(VectorStage(precision), Shard(0, tokens), encoder)
    expected = encoder.at(precision).encode_ids([(token.id, 7, 8) for token in tokens])
    assert np.array_equal(np.array([row["vector"] for row in rows], dtype=np.float32), expected)


@pytest.mark.parametrize("value", ["int4", "float32", 8])
def test_an_unknown_screening_precision_is_an_error(value):
    with pytest.raises(
        InputError, match=r"screen_precision is .* must be one of tf32, bfloat16, float16, int8"
    ):
        ProfileSettings(screen_precision=value)


def test_without_later_rounds_there_is_nothing_to_screen_for():
    with pytest.raises(InputError, match="without adaptive rounds there is nothing to screen for"):
        ProfileSettings(screen_precision="int8", adaptive=False)


def test_one_spelling_of_a_screening_precision():
    assert ProfileSettings(screen_precision="int8").screen_precision is Precision.INT8


@pytest.mark.slow
def test_a_model_that_does_not_bear_int8_is_screened_in_bfloat16_and_told_so(tmp_path):
    model = coarse_in_int8(tiny.sentence_transformer(tiny.bert_backbone(tmp_path)))
    asked = {
        "sentences": profiled.sentences(200, tiny.WORDS),
        "settings": ProfileSettings(screen_precision="int8"),
        "out": tmp_path / "run",
        "evidence": False,
    }
    said = (
        r"int8 changes the vectors of .* too much \(mean cosine .* with its own\): bfloat16 is used instead"
    )
    with pytest.warns(StickyTokenWarning, match=said):
        run = detect(model, **asked)
    assert run.settings.values["screen_precision"] == "bfloat16"
    with pytest.warns(StickyTokenWarning, match=said):
        assert detect(model, **asked).tokens.equals(run.tokens)


@pytest.mark.slow
def test_the_command_line_takes_it_and_says_so(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    tiny.sentence_transformer(tiny.bert_backbone(folder)).save(str(tmp_path / "saved"))
    (tmp_path / "sentences.txt").write_text("\n".join(profiled.sentences(200, tiny.WORDS)), encoding="utf-8")
    options = ["--sentences", tmp_path / "sentences.txt", "--device", "cpu", "--out", tmp_path / "run"]
    asked = ["detect", tmp_path / "saved", *options, "--screen-precision", "int8"]
    result = planted.command(*asked)
    assert result.exit_code == 0, result.stderr
    assert "screened in int8; numbers of the" in result.stdout
    refused = planted.command(*asked, "--no-adaptive")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "nothing to screen for" in refused.stderr
    refused = planted.command(*asked, "--method", "std")
    assert "--screen-precision is not an option of the method std" in refused.stderr
    refused = planted.command(*asked, "--dtype", "tf32")
    assert "dtype 'tf32' needs CUDA" in refused.stderr


def test_tf32_is_on_while_the_model_computes_and_then_as_before():
    before = torch.get_float32_matmul_precision()
    with _tf32():
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_a_model_that_reads_too_few_tokens_to_be_compared_is_named(tmp_path):
    encoder = load_encoder(tiny.sentence_transformer(tiny.bert_backbone(tmp_path, max_length=6)))
    with pytest.raises(InputError, match="reads too few tokens to compare int8"):
        encoder.at(Precision.INT8)
