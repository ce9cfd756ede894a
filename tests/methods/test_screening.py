"""Lower precision for early rounds: close to the model's own, the same in every batch, nowhere else."""

import numpy as np
import polars as pl
import pytest
import torch

import profiled
import tiny
import tiny_architectures
from stickytoken import load_encoder
from stickytoken.encoders.compute.linear import require_agreement
from stickytoken.errors import InputError
from stickytoken.machine import Precision

# Architectures with a block that ends in a GELU, with gated blocks, and a causal one.
NAMES = ["bert", "modernbert", "gemma2"]


def model_of(name, folder):
    architecture = {own.name: own for own in tiny_architectures.ARCHITECTURES}[name]
    return tiny_architectures.stacked(architecture.save(folder), pooling="mean", dense=16)


def inputs_of(encoder, count=60):
    generator = np.random.default_rng(0)
    entries = [entry for entry in encoder.tokenizer.entries if entry > 5]
    return [tuple(generator.choice(entries, size=1 + k % 9).tolist()) for k in range(count)]


def cosines(left, right):
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_near_those_of_the_models_own_precision(name, tmp_path):
    encoder = load_encoder(model_of(name, tmp_path))
    contents = inputs_of(encoder)
    own = encoder.encode_ids(contents)
    lower = encoder.at(Precision.BFLOAT16)
    found = lower.encode_ids(contents)
    assert cosines(own, found).min() > 0.999
    # A lower precision that changes nothing is none.
    assert np.abs(own - found).max() > 1e-5
    assert np.array_equal(encoder.encode_ids(contents), own)


def test_a_precision_that_cannot_be_had_is_an_error_that_names_it(tmp_path):
    encoder = load_encoder(model_of("bert", tmp_path))
    assert encoder.at(Precision.BFLOAT16) is encoder.at(Precision.BFLOAT16)
    for precision in (Precision.FLOAT16, Precision.TF32):
        with pytest.raises(InputError, match=f"precision {precision} is not available on cpu"):
            encoder.at(precision)
    half = load_encoder(model_of("bert", tmp_path).to(torch.bfloat16))
    with pytest.raises(InputError, match="already computes in bfloat16: leave out the precision bfloat16"):
        half.at(Precision.BFLOAT16)
    short = load_encoder(tiny.sentence_transformer(tiny.bert_backbone(tmp_path, max_length=6)))
    with pytest.raises(InputError, match="reads too few tokens to compare bfloat16"):
        short.at(Precision.BFLOAT16)
    exact, other = np.eye(3, dtype=np.float32), np.ones((3, 3), dtype=np.float32)
    with pytest.raises(InputError, match=r"bfloat16 changes the vectors of m too much \(mean cosine 0.58 "):
        require_agreement(exact, other, Precision.BFLOAT16, "m")


# In a detection.


@pytest.mark.slow
def test_only_the_round_of_all_tokens_is_in_lower_precision_and_the_table_says_which(tmp_path):
    """The rows of the other rounds are those of the plain run, for the tokens in both.

    Not to the bit: shards of the last round hold other tokens, so that a text is computed in another batch.
    """
    (tmp_path / "model").mkdir()
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "model", words=profiled.WORDS))
    plain = profiled.detect_profile(load_encoder(model), tmp_path / "plain")
    lower = profiled.detect_profile(load_encoder(model), tmp_path / "lower", screen_precision="bfloat16")
    assert set(plain.tokens["precision"]) == {"float32"}
    assert set(lower.tokens["precision"]) == {"float32", "bfloat16"}
    assert plain.result.screening_carriers == lower.result.screening_carriers
    for step, least in (("pilot", 128), ("confirm", 5)):
        rows = {run: profiled.shard_rows(run, step) for run in (plain, lower)}
        both = set(rows[plain]) & set(rows[lower])
        assert len(both) >= least
        assert max(difference(rows, token) for token in both) < 1e-6
    early = {run: profiled.shard_rows(run, "screen") for run in (plain, lower)}
    assert early[plain].keys() == early[lower].keys()
    assert max(difference(early, token) for token in early[plain]) > 1e-4
    exact = lower.tokens.filter(pl.col("precision") == "float32")["token_id"].to_list()
    assert set(exact) == {*profiled.shard_rows(lower, "confirm"), *lower.plan.late_reference}
    assert any("screened in bfloat16; numbers of the" in line for line in lower.method.lines(lower))


def difference(rounds, token):
    one, other = (np.array(rows[token]["lifts"]) for rows in rounds.values())
    return np.abs(one - other).max()
