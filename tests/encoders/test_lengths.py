"""The longest input that a user asks for: taken, or refused with what the model can do."""

import json
from pathlib import Path

import numpy as np
import pytest

import saved_models
import tiny
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.errors import EncodingError, InputError

TEXT = "river stone bird winter market song letter engine green old"


def saved(save, folder: Path, **options) -> Path:
    """An architecture with its stack of modules in a folder."""
    return architectures.saved(architectures.stacked(save(folder / "backbone"), **options), folder / "model")


def load(folder: Path, max_length: int | None, **options):
    return load_encoder(folder, device="cpu", max_length=max_length, **options)


def test_a_static_model_has_no_longest_input_to_set(tmp_path):
    folder = architectures.saved(architectures.static_model(), tmp_path / "static")
    with pytest.raises(
        InputError, match=r"max_length is 50: .*no limit to set; leave max_length out"
    ) as error:
        load(folder, 50)
    assert str(folder) in str(error.value)
    assert load(folder, None).identity.max_length is None


@pytest.mark.parametrize("length", [0, -1, -100])
def test_a_longest_input_below_1_is_refused_before_the_model_is_looked_for(length):
    with pytest.raises(InputError, match=f"max_length is {length}: pass at least 1"):
        load_encoder("no-such/model", device="cpu", max_length=length)


@pytest.mark.parametrize(
    "save", [architectures.bert, architectures.roberta, architectures.mpnet, architectures.modernbert]
)
def test_a_longest_input_beyond_the_positions_is_refused_and_the_last_position_is_read(save, tmp_path):
    folder = saved(save, tmp_path)
    longest = architectures.MAX_LENGTH
    with pytest.raises(InputError, match=f"max_length is {longest + 1}: .* only {longest} positions"):
        load(folder, longest + 1)
    encoder = load(folder, longest)
    assert encoder.identity.max_length == longest
    ids = (encoder.tokenize([TEXT])[0].ids * 30)[: longest - 2]
    assert encoder.fits(ids)
    assert not encoder.fits([*ids, ids[0]])
    assert np.array_equal(encoder.encode_ids([ids]), load(folder, None).encode_ids([ids]))


def test_relative_positions_have_no_end(tmp_path):
    folder = saved(architectures.t5, tmp_path)
    assert load(folder, None).identity.max_length == architectures.MAX_LENGTH
    encoder = load(folder, 1000)
    assert encoder.identity.max_length == 1000
    assert encoder.encode([f"{TEXT} " * 30]).shape == (1, architectures.DIMENSION)


@pytest.mark.parametrize("kind", ["yarn", "default"])
def test_stretched_rotary_positions_reach_beyond_the_declared_ones(kind, tmp_path):
    folder = saved(architectures.qwen2, tmp_path)

    def stretch(config: dict) -> None:
        scaling = {"factor": 4.0, "original_max_position_embeddings": architectures.MAX_LENGTH}
        config["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": kind} | (
            scaling if kind == "yarn" else {}
        )

    saved_models.edit(folder / "config.json", stretch)
    if kind == "yarn":
        encoder = load(folder, 300)
        ids = (encoder.tokenize([TEXT])[0].ids * 30)[:300]
        assert encoder.encode_ids([ids]).shape == (1, architectures.DIMENSION)
    else:
        with pytest.raises(InputError, match="has only 96 positions; pass at most 96"):
            load(folder, 300)


def test_a_longest_input_above_what_the_tokenizer_cuts_at_is_taken(tmp_path):
    """Models often ship with a shorter limit than their positions, as all-MiniLM-L6-v2 does."""
    folder = saved(architectures.bert, tmp_path)
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"max_seq_length": 12}), "utf-8")
    saved_models.edit(folder / "tokenizer_config.json", lambda config: config.update(model_max_length=12))
    with pytest.raises(EncodingError, match="14 tokens, the model reads 12"):
        load(folder, None).encode([f"{TEXT} the of"])
    longer = load(folder, 40)
    assert longer.identity.max_length == 40
    assert longer.encode([TEXT * 2]).shape == (1, architectures.DIMENSION)


def test_a_longest_input_without_room_for_a_text_is_refused(tmp_path):
    folder = saved(architectures.bert, tmp_path)
    for length, prompt, taken in ((1, "", 2), (2, "", 2), (4, "the song ", 4)):
        with pytest.raises(
            InputError, match=f"max_length is {length}: .* take {taken} tokens, which leaves no room"
        ):
            load(folder, length, prompt=prompt)
    assert load(folder, 3).encode(["river"]).shape == (1, architectures.DIMENSION)
    with pytest.raises(EncodingError, match="4 tokens, the model reads 3"):
        load(folder, 3).encode(["the river"])


def test_a_shorter_longest_input_changes_no_vector_but_the_identity(tmp_path):
    folder = saved(architectures.bert, tmp_path)
    texts = tiny.sentences(5)
    short, whole = load(folder, 20), load(folder, None)
    assert np.array_equal(short.encode(texts), whole.encode(texts))
    assert (short.identity.max_length, whole.identity.max_length) == (20, architectures.MAX_LENGTH)
    assert short.identity != whole.identity
