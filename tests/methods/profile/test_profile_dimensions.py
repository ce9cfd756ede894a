"""Dimensions and layers: each as on the model that is truncated or cut, from one encoding."""

import json

import pytest
from polars.testing import assert_frame_equal

import profiled
import tiny
from stickytoken import detect, judge, load_encoder, open_run
from stickytoken.errors import InputError

pytestmark = pytest.mark.slow  # whole runs

DIMENSIONS = (8, 16, 32)


def detect_profile(encoder, out, **options):
    return profiled.detect_profile(encoder, out, **({"budget": 6} | options))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return tiny.bert_backbone(tmp_path_factory.mktemp("backbone"), words=profiled.WORDS)


def assert_same(found, wanted, tolerance=1e-6):
    """Two tables of the same tokens; a fixed point divides by a contraction that may be close to zero."""
    assert_frame_equal(found.drop("fixed_point"), wanted.drop("fixed_point"), rel_tol=0, abs_tol=tolerance)


@pytest.fixture(scope="module")
def run(backbone, tmp_path_factory):
    model = tiny.sentence_transformer(backbone, normalize=True)
    return detect_profile(load_encoder(model), tmp_path_factory.mktemp("run") / "run", dimensions=DIMENSIONS)


def test_each_dimension_is_a_run_on_the_model_truncated_to_it(run, backbone, tmp_path):
    for dimension in DIMENSIONS:
        truncated = tiny.sentence_transformer(backbone, normalize=True, truncate_dim=dimension)
        alone = detect_profile(load_encoder(truncated), tmp_path / str(dimension))
        assert alone.record.identity_parts["encoder"]["dimension"] == dimension
        assert_same(run.at(dimension), alone.tokens)
    assert_same(run.tokens, run.at(32))
    assert (alone.dimensions, alone.by_dimension().is_empty()) == ([], True)
    assert "dimensions" not in alone.summary()
    assert "views" not in json.loads((alone.path / "plan.json").read_text())
    assert run.result.sequences <= 1.1 * alone.result.sequences


def test_dimensions_below_a_configured_truncation_are_those_of_the_whole_model(backbone, tmp_path):
    truncated = tiny.sentence_transformer(backbone, truncate_dim=16)
    found = detect_profile(load_encoder(truncated), tmp_path / "below", dimensions=[8])
    whole = detect_profile(
        load_encoder(tiny.sentence_transformer(backbone)), tmp_path / "all", dimensions="8,16"
    )
    assert_same(found.at(8), whole.at(8))
    assert_same(found.tokens, whole.at(16))
    with pytest.raises(InputError, match="16 components, because it truncates them from 32: use at most 16"):
        detect_profile(load_encoder(truncated), tmp_path / "above", dimensions=[32])


def test_the_table_has_a_row_per_dimension_with_the_model_as_it_is_first(run):
    table = run.by_dimension()
    assert table["dimension"].to_list() == [32, 8, 16]
    assert table["layer"].null_count() == 3
    for row in table.to_dicts():
        tokens = run.at(row["dimension"])
        assert (tokens["verdict"] == "sticky").sum() == row["sticky"]
        assert (tokens["severity"] == "mild").sum() == row["mild"]
        highest = (tokens["lift"].max() - row["ordinary_lift"]) / row["similarity_spread"]
        assert row["largest_sd"] == pytest.approx(highest)
    assert run.summary()["dimensions"] == table.to_dicts()
    assert open_run(run.path).by_dimension().equals(table)
    with pytest.raises(
        InputError, match="has no dimension 12: it has dimension 32; dimension 8; dimension 16"
    ):
        run.at(12)
    with pytest.raises(InputError, match="has no layer 1, dimension 8"):
        run.at(8, layer=1)


def test_a_layer_is_a_run_on_the_model_cut_to_it(backbone, tmp_path):
    """The cut model knows no later layers, so nothing must be chosen by them."""
    options = {"adaptive": False, "sentences": profiled.corpus(topics=4)}
    model = load_encoder(tiny.sentence_transformer(backbone, normalize=True))
    every = detect_profile(model, tmp_path / "all", layers=[1, 2], dimensions=[8, 32], **options)
    views = [(None, 32), (1, 8), (1, 32), (None, 8)]
    assert every.by_dimension().select("layer", "dimension").rows() == views
    for dimension in (8, 32):
        alone = tiny.sentence_transformer(backbone, normalize=True, truncate_dim=dimension)
        alone[0].model.encoder.layer = alone[0].model.encoder.layer[:1]
        cut = detect_profile(load_encoder(alone), tmp_path / f"cut {dimension}", **options)
        assert_same(every.at(dimension, layer=1), cut.tokens)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dimensions": [0]}, "dimensions is 0: it must be at least 1"),
        ({"dimensions": "8,x"}, "dimensions is 'x': it must be a whole number"),
        ({"dimensions": [8, 16, 8]}, "dimensions include 8 twice"),
        ({"dimensions": {8, 16}}, "dimensions is a set"),
        ({"dimensions": [8], "method": "std", "settings": None}, "the method std has no dimensions"),
    ],
)
def test_what_the_model_lacks_is_refused(asked, message, backbone, tmp_path):
    encoder = load_encoder(tiny.sentence_transformer(backbone))
    options = {"settings": profiled.SMALL, "sentences": profiled.corpus()} | asked
    with pytest.raises(InputError, match=message):
        detect(encoder, out=tmp_path / "run", **options)


def test_each_dimension_of_a_judgement_is_that_of_a_run_on_the_truncated_model(run, backbone, tmp_path):
    texts = profiled.sentences(120, seed=5)
    truncated = tiny.sentence_transformer(backbone, normalize=True, truncate_dim=8)
    alone = detect_profile(load_encoder(truncated), tmp_path / "alone")
    model = tiny.sentence_transformer(backbone, normalize=True)
    found = judge(run, texts, encoder=model, anchors=60, dimensions=[8, 32])
    assert_same(found.at(8).tokens, judge(alone, texts, encoder=truncated, anchors=60).tokens, 1e-5)
    plain = judge(run, texts, encoder=model, anchors=60)
    assert_same(found.tokens, plain.tokens, 1e-5)
    assert_same(found.at(32).tokens, plain.tokens, 1e-5)
    assert found.by_dimension()["dimension"].to_list() == [8, 32]
    for row in found.by_dimension().to_dicts():
        verdicts = found.at(row["dimension"]).tokens["verdict"].to_list()
        assert [row["sticky"], row["topical"]] == [verdicts.count(each) for each in ("sticky", "topical")]
    assert [row["dimension"] for row in found.summary()["dimensions"]] == [8, 32]
    with pytest.raises(
        InputError, match="the judgement has no dimension 16: it has dimension 8; dimension 32"
    ):
        found.at(16)


def test_a_judgement_at_what_the_run_did_not_measure_is_refused(run, backbone):
    options = {"encoder": tiny.sentence_transformer(backbone, normalize=True)}
    with pytest.raises(InputError, match=r"dimensions include 24, but .* has dimensions 8, 16, 32"):
        judge(run, profiled.sentences(60), dimensions=[24], **options)
    with pytest.raises(InputError, match=r"layers include 1, but .* was made without layers"):
        judge(run, profiled.sentences(60), layers=1, **options)
