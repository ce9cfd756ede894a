"""Explanations of whole models: planted tokens, kinds of models, runs, bad input."""

import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats

import planted
import profiled
import tiny
import tiny_architectures as architectures
from stickytoken.corpora.corpus import collect_sentences
from stickytoken.encoders import load_encoder
from stickytoken.errors import EncodingError, InputError, RunError
from stickytoken.explanation import ExplainSettings, explain
from stickytoken.explanation._material import gather
from stickytoken.explanation._measuring import HELD_BYTES, Surroundings, measure
from stickytoken.explanation.result import TABLES
from stickytoken.explanation.settings import Part
from stickytoken.insertion import Placement
from stickytoken.inspection import inspector_of
from stickytoken.measurement.stage import ignore_progress
from stickytoken.unit_vectors import exact_unit_vectors

SMALL = ExplainSettings(
    copies=4, carriers=6, benign=5, attribution_carriers=2, attribution_benign=3, steps=6, directions=20
)
CORPUS = collect_sentences(tiny.sentences(40), "test")


@pytest.fixture(scope="module")
def sticky_bert(tmp_path_factory):
    """A tiny BERT in which the embedding of one word is long and lies along one dimension."""
    folder = tiny.bert_backbone(tmp_path_factory.mktemp("sticky"))
    model = tiny.sentence_transformer(folder, normalize=True)
    weight = model[0].model.embeddings.word_embeddings.weight
    place = model.tokenizer.convert_tokens_to_ids("garden")
    with torch.no_grad():
        weight[place] = 50 * torch.eye(32)[0]
    return load_encoder(model)


@pytest.fixture(scope="module")
def explained(sticky_bert):
    return explain(sticky_bert, ["garden", "window"], sentences=CORPUS, settings=SMALL)


def numbers(table):
    """All numbers of a table."""
    return table.select(pl.selectors.numeric()).to_numpy()


def test_a_planted_token_is_told_from_an_ordinary_one(explained):
    garden, window = explained.tokens
    areas = {each.area for each in garden.findings}
    assert {"embedding", "hidden states"} <= areas
    norm = next(each for each in garden.findings if each.measure == "embedding_norm")
    assert norm.deviations > 4
    assert len(window.findings) < len(garden.findings)
    assert "'garden'" in garden.verdict
    assert "5 matched benign tokens" in garden.verdict


def test_what_is_shown_of_an_explanation_is_short(explained):
    assert (
        repr(explained) == f"<Explanation: {explained.model}, tokens: {len(explained.tokens)}, carriers: 6>"
    )


def test_tables_have_all_layers_and_heads_and_no_nan(explained, sticky_bert):
    for name in TABLES:
        table = getattr(explained, name)
        assert set(table["token_id"]) == {each.token_id for each in explained.tokens}, name
        assert not any(table[column].is_nan().any() for column in table.select(pl.selectors.float()).columns)
    layers = dict(explained.measures.group_by("measure").agg(pl.col("layer").unique().sort()).iter_rows())
    assert layers["attention_received"] == [1, 2]
    assert layers["copies_norm"] == [0, 1, 2]
    assert layers["pooling_share"] == [None]
    assert explained.heads.drop_nulls("head").height == 2 * 2 * 4
    assert explained.pooling == "mean"
    benign = explained.benign.filter(token_id=explained.tokens[0].token_id)
    assert set(benign["benign_id"]).isdisjoint({each.token_id for each in explained.tokens})


def test_matrices_sum_to_similarities(explained, sticky_bert):
    for pair in explained.pairs.to_dicts():
        cells = explained.attribution.filter(token_id=pair["token_id"], pair=pair["pair"])
        assert cells["value"].sum() == pytest.approx(pair["sum"], abs=1e-9)
        assert pair["sum"] - pair["similarity"] == pytest.approx(pair["completeness_error"], abs=1e-9)
        parts = pair["from_copies"] + pair["from_carrier"] + pair["from_reference"]
        assert parts == pytest.approx(pair["sum"], abs=1e-9)
        carrier, anchor = sticky_bert.encode([pair["carrier"], pair["anchor"]])
        assert pair["similarity_before"] == pytest.approx(float(carrier @ anchor), abs=1e-5)
        content = (*sticky_bert.tokenize([pair["carrier"]])[0].ids, *[pair["token_id"]] * SMALL.copies)
        after = sticky_bert.encode_ids([content])[0]
        assert pair["similarity"] == pytest.approx(float(after @ anchor), abs=1e-5)
        assert cells.filter(row_part="copies")["row"].n_unique() == SMALL.copies


def test_the_lift_is_that_of_plain_vectors(explained, sticky_bert):
    material = gather(sticky_bert, SMALL, None, None, CORPUS)
    token_id = explained.tokens[0].token_id
    before = sticky_bert.encode([carrier.text for carrier in material.carriers])
    after = sticky_bert.encode_ids([carrier.with_copies(token_id) for carrier in material.carriers])
    anchors = sticky_bert.encode(list(material.anchors))
    old, new = before @ anchors.T, after @ anchors.T
    lifts = [(new - old)[row][old[row] < old.mean()].mean() for row in range(len(before))]
    row = explained.measures.filter(measure="lift_sentences", token_id=token_id).to_dicts()[0]
    assert row["value"] == pytest.approx(np.mean(lifts), abs=1e-5)
    assert row["carriers"] == len(lifts)
    low, high = stats.t.interval(SMALL.confidence, len(lifts) - 1, np.mean(lifts), stats.sem(lifts))
    assert (row["low"], row["high"]) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_models_in_half_precision_are_explained(bert_folder, dtype):
    encoder = load_encoder(bert_folder, dtype=dtype, device="cpu")
    found = explain(encoder, ["river"], sentences=CORPUS, settings=SMALL)
    assert "attention" in set(found.measures["area"])
    assert found.measures["value"].null_count() == 0


def test_carriers_measured_one_at_a_time_give_the_same_numbers(explained, sticky_bert):
    inspector, carriers = inspector_of(sticky_bert), gather(sticky_bert, SMALL, None, None, CORPUS).carriers
    anchors = exact_unit_vectors(sticky_bert.encode(tiny.sentences(8)))
    garden = explained.tokens[0].token_id
    benign = explained.benign.filter(token_id=garden)["benign_id"].to_list()
    calls = []

    def measured(**options):
        calls.append([])
        surroundings = Surroundings(None, anchors, 0.5)
        return measure(inspector, carriers, {garden: benign}, surroundings, calls[-1].append, **options)

    whole, single = measured(), measured(held_bytes=1)
    assert len(calls[1]) > len(calls[0])
    for token_id in (garden, *benign):
        assert whole.values[token_id].keys() == single.values[token_id].keys()
        for name, values in whole.values[token_id].items():
            np.testing.assert_allclose(single.values[token_id][name], values, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(single.heads[token_id], whole.heads[token_id], rtol=1e-3, atol=1e-4)
    for name, distances in whole.distances[garden].items():
        np.testing.assert_allclose(single.distances[garden][name], distances, rtol=1e-3, atol=1e-4)


def test_a_measure_that_one_carrier_lacks_is_left_out_however_many_are_measured_at_a_time(sticky_bert):
    inspector, carriers = inspector_of(sticky_bert), gather(sticky_bert, SMALL, None, None, CORPUS).carriers
    anchors = exact_unit_vectors(sticky_bert.encode(tiny.sentences(8)))
    surroundings = Surroundings(None, anchors, 0.5)
    of_the_prompt = {Part.CARRIER: Part.PROMPT}
    prompt_only = replace(
        carriers[1],
        before_labels=tuple(of_the_prompt.get(label, label) for label in carriers[1].before_labels),
        labels=tuple(of_the_prompt.get(label, label) for label in carriers[1].labels),
    )
    words = [sticky_bert.tokenize([word])[0].ids[0] for word in ("garden", "window", "river", "stone")]

    benign = {words[0]: words[1:]}

    whole, single = (
        measure(inspector, [carriers[0], prompt_only], benign, surroundings, ignore_progress, held_bytes)
        for held_bytes in (HELD_BYTES, 1)
    )

    assert "carrier_cosine_drift" not in whole.values[words[0]]
    for token_id in words:
        assert whole.values[token_id].keys() == single.values[token_id].keys()


@pytest.mark.parametrize("name", ["t5", "qwen3", "mpnet", "gemma2"])
@pytest.mark.parametrize("placement", [Placement.PREFIX, Placement.RANDOM])
def test_other_architectures(name, placement, tmp_path):
    architecture = next(each for each in architectures.ARCHITECTURES if each.name == name)
    model = architectures.stacked(
        architecture.save(tmp_path), pooling=architecture.poolings[-1], dense=12, normalize=True
    )
    encoder = load_encoder(model, prompt="a bird: ")
    settings = ExplainSettings(
        copies=3, placement=placement, carriers=3, benign=3, attribution_carriers=1, steps=4, directions=8
    )
    found = explain(encoder, [encoder.tokenize(["river"])[0].ids[-1]], sentences=CORPUS, settings=settings)
    assert set(found.measures["area"]) == {
        "attention",
        "hidden states",
        "pooling",
        "attribution",
        "embedding",
        "similarity",
    }
    assert "prompt" in set(found.attribution["row_part"])


def test_a_static_model_is_explained_without_attention():
    found = explain(
        load_encoder(planted.planted_model(3)),
        [planted.PLANTED],
        sentences=CORPUS,
        settings=SMALL,
    )
    assert "attention" not in set(found.measures["area"])
    assert any("static embedding model: it has no attention" in note for note in found.notes)
    pooling = [each.measure for each in found.tokens[0].findings if each.area == "pooling"]
    assert "pooling_norm_share" in pooling
    assert found.heads.is_empty()


def test_a_model_without_attention_weights_is_explained_otherwise(tmp_path, monkeypatch):
    encoder = load_encoder(architectures.stacked(architectures.bert(tmp_path)))
    monkeypatch.setattr("stickytoken.inspection._attention._reported", lambda output: [])
    found = explain(encoder, ["river"], sentences=CORPUS, settings=SMALL)
    assert "attention" not in set(found.measures["area"])
    assert "hidden states" in set(found.measures["area"])
    assert any("does not expose its attention weights" in note for note in found.notes)


def test_as_many_pairs_are_attributed_as_are_asked_for(sticky_bert):
    settings = replace(SMALL, pairs=3, attribution_carriers=1)
    found = explain(sticky_bert, ["garden"], sentences=CORPUS, settings=settings)
    assert found.pairs.height == 3
    assert found.measures.filter(measure="attributed_to_copies")["carriers"].to_list() == [1]
    without = explain(sticky_bert, ["garden"], sentences=CORPUS, settings=replace(SMALL, attribution=False))
    assert without.pairs.is_empty()
    assert "attribution" not in set(without.measures["area"])


def test_texts_of_the_user_are_the_carriers(sticky_bert):
    found = explain(sticky_bert, ["garden"], texts=["the river sings"], sentences=CORPUS, settings=SMALL)
    assert found.carriers == 1
    assert found.pairs["carrier"].to_list() == ["the river sings"]
    assert found.measures.filter(measure="lift_sentences")["low"].to_list() == [None]
    assert any("there is only one text" in note for note in found.notes)


def test_files_are_what_the_object_holds(explained, tmp_path):
    folders = explained.write(tmp_path / "out")
    assert [folder.name for folder in folders] == [str(each.token_id) for each in explained.tokens]
    for folder, token in zip(folders, explained.tokens, strict=True):
        for name, table in explained.of_token(token.token_id).items():
            assert pl.read_parquet(folder / f"{name}.parquet").equals(table)
        document = json.loads((folder / "explanation.json").read_text("utf-8"))
        assert [each["token"] for each in document["tokens"]] == [token.token]
        assert document["settings"]["copies"] == 4
    before = planted.files_of(tmp_path)
    assert explained.write(tmp_path / "out") == folders
    assert planted.files_of(tmp_path) == before
    with pytest.raises(RunError, match="Not a directory"):
        explained.write(folders[0] / "explanation.json")


# Runs.


@pytest.fixture(scope="module")
def profile_run(tmp_path_factory):
    return profiled.detect_profile(
        load_encoder(profiled.planted_model(3)), tmp_path_factory.mktemp("profile") / "run"
    )


def test_a_run_gives_texts_and_says_who_is_benign(profile_run):
    encoder = load_encoder(profiled.planted_model(3))
    assert planted.PLANTED in profile_run.sticky["token"].to_list()
    found = explain(encoder, [planted.PLANTED], run=profile_run, settings=SMALL)
    assert found.tokens[0].run_verdict == "sticky"
    flagged = set(profile_run.tokens.filter(pl.col("verdict") != "benign")["token_id"])
    assert flagged.isdisjoint(found.benign["benign_id"])
    assert found.source == f"run {profile_run.path.name}"
    measures = {each.measure for each in found.tokens[0].findings}
    assert {"embedding_norm", "pooling_share"} <= measures


def test_a_run_of_the_other_method_works_too(small_run, encoder):
    found = explain(encoder, ["river"], run=small_run, settings=SMALL)
    assert 0 < found.carriers <= SMALL.carriers
    sentences = {pair.sentence2 for pair in small_run.plan.validation}
    assert set(found.pairs["carrier"]) <= sentences


def test_a_run_of_another_model_is_refused(profile_run, encoder):
    with pytest.raises(RunError, match=r"with another .*they differ in max_length, modules, tokenizer"):
        explain(encoder, ["river"], run=profile_run, settings=SMALL)


# Bad input.


@pytest.mark.parametrize(
    ("tokens", "options", "saying"),
    [
        ([], {}, "the list of tokens is empty"),
        (["nowhere"], {}, "the vocabulary has no token 'nowhere'"),
        ([100000], {}, "token id 100000 cannot occur in text .not in the vocabulary"),
        (["[unused0]"], {}, "cannot occur in text .UNREACHABLE_SPECIAL"),
        (["river", "river"], {}, "is given twice"),
        (["river"], {"texts": []}, "texts is empty"),
        (["river"], {"texts": ["  "]}, "the text '  ' is blank"),
        (["river"], {"texts": ["the river " * 40]}, "with 4 copies, more than .* reads"),
    ],
)
def test_bad_input_is_refused(encoder, tokens, options, saying):
    with pytest.raises(InputError, match=saying):
        explain(encoder, tokens, sentences=CORPUS, settings=SMALL, **options)


@pytest.mark.parametrize(
    "change",
    [
        {"copies": 0},
        {"benign": 2},
        {"confidence": 1.0},
        {"steps": 0},
        {"pairs": 1.5},
        {"seed": "3"},
        {"confidence": "0.9"},
        {"placement": "sideways"},
        {"attribution": "no"},
    ],
)
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(InputError, match=f"{next(iter(change))} is"):
        ExplainSettings(**change)


def test_a_placement_may_be_named():
    assert ExplainSettings(placement="prefix").placement is Placement.PREFIX


def test_vectors_that_are_not_finite_are_an_error(tmp_path):
    model = architectures.stacked(architectures.bert(tmp_path))
    with torch.no_grad():
        model[0].model.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(EncodingError, match="is not finite"):
        explain(load_encoder(model), ["river"], sentences=CORPUS, settings=SMALL)


# The command line.


OPTIONS = [
    "--copies",
    "3",
    "--carriers",
    "3",
    "--benign",
    "3",
    "--steps",
    "3",
    "--attributed-pairs",
    "1",
    "--device",
    "cpu",
]


@pytest.mark.slow
def test_the_command_says_a_verdict_and_writes_tables(bert_folder, tmp_path):
    result = planted.command("explain", bert_folder, "river", "--out", tmp_path / "out", *OPTIONS)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("'river' (")
    assert "3 matched benign tokens" in result.stdout
    assert len(list((tmp_path / "out").glob("*/*.parquet"))) == len(TABLES)


@pytest.mark.slow
def test_the_command_takes_a_run_and_prints_json(bert_folder, small_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(small_run.path, folder)
    result = planted.command("explain", folder, "river", "--model", bert_folder, "--format", "json", *OPTIONS)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["tokens"][0]["token"] == "river"
    written = json.loads(next((folder / "explain").glob("*/explanation.json")).read_text("utf-8"))
    assert written["tokens"] == document["tokens"]


def test_the_command_refuses_bad_input(bert_folder, small_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(small_run.path, folder)
    planted.edit_record(folder, model=small_run.record.model.model_dump() | {"name": "./nowhere"})
    planted.refused("explain", folder, "river", *OPTIONS, saying="if it has moved, pass --model")
    planted.refused("explain", bert_folder, "river", "--text", " ", saying="--text is ' '")
    planted.refused("explain", bert_folder, "river", "--model", "x", saying="--model needs a run folder")
    planted.refused("explain", bert_folder, "x", "--ids", saying="'x' is not a token id")
    planted.refused("explain", bert_folder, "river", "--column", "a", saying="without --sentences")
    planted.edit_record(folder, result=None)
    planted.refused("explain", folder, "river", saying="is not finished")
    planted.edit_record(folder, schema_version=9)
    planted.refused("explain", folder, "river", saying="has schema version 9")
