"""Runs on a model that is read at a dimension or after a layer, and earlier runs that had several."""

import json

import pytest

import planted
import profiled
import tiny
from naming import naming
from stickytoken import load_encoder
from stickytoken.detection.run import encoder_for
from stickytoken.errors import RepairError
from stickytoken.repairs.model_folder import require_repairable

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    backbone = tiny.bert_backbone(tmp_path_factory.mktemp("backbone"), words=profiled.WORDS)
    path = tmp_path_factory.mktemp("model") / "small"
    tiny.sentence_transformer(backbone, normalize=True).save(str(path), create_model_card=False)
    return path


def detected(encoder, out):
    return profiled.detect_profile(encoder, out, sample=40)


@pytest.fixture(scope="module")
def plain(folder, tmp_path_factory):
    return detected(load_encoder(folder, device="cpu"), tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def read(folder, tmp_path_factory):
    encoder = load_encoder(folder, device="cpu", truncate_dim=8, layer=1)
    return detected(encoder, tmp_path_factory.mktemp("read") / "run")


def test_a_run_reads_its_model_again_as_it_did(read):
    encoder = encoder_for(None, read, "a test")
    assert (encoder.truncate_dim, encoder.layer, encoder.dimension) == (8, 1, 8)


def test_a_run_is_that_of_the_model_which_is_truncated_and_cut(read, folder, tmp_path):
    model = load_encoder(folder, device="cpu").model
    model.truncate_dim = 8
    model[0].model.encoder.layer = model[0].model.encoder.layer[:1]
    model[0].model.config.num_hidden_layers = 1
    alone = detected(load_encoder(model), tmp_path / "alone")
    assert alone.tokens["contraction"].to_list() == pytest.approx(
        read.tokens["contraction"].to_list(), abs=1e-5
    )


def test_its_name_says_how_the_model_was_read(plain, read):
    name = str(plain.model_name)
    assert (plain.model_title, read.model_title) == (name, f"{name} (layer 1, 8 dimensions)")
    assert read.record.model.short_title == "small (layer 1, 8 dimensions)"


def test_the_identity_of_an_ordinary_run_says_nothing_of_it(plain, read):
    assert "layer" not in json.dumps(plain.record.identity_parts["encoder"])
    assert plain.record.identity != read.record.identity


def test_a_model_that_was_cut_is_not_repaired(read):
    with pytest.raises(RepairError, match=naming("layer 1")):
        require_repairable(encoder_for(None, read, "a test"))


def test_commands_load_a_model_with_the_maximum_length_of_its_run(folder, tmp_path):
    run = detected(load_encoder(folder, device="cpu", max_length=48), tmp_path / "short")
    documents = tmp_path / "documents.txt"
    documents.write_text("\n".join(profiled.sentences(40, profiled.WORDS, seed=3)), "utf-8")
    options = "--set stuffed=8 --set tokens=2 --device cpu --format json".split()
    audit = planted.document(planted.command("audit", run.path, "--documents", documents, *options))
    assert audit["index"]["documents"] == 40
    assert encoder_for(None, run, "a test").max_length == 48
