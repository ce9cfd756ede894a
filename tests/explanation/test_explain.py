"""Explanations of whole models: planted tokens, kinds of models, runs, bad input; interrupted ones."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats
from sentence_transformers import SentenceTransformer
from sklearn.metrics.pairwise import cosine_similarity

import planted
import profiled
import tiny
import tiny_architectures as architectures
import tiny_decoders
from naming import naming, says
from prompted_loading import encoder_of, read
from stickytoken import load_encoder, open_run
from stickytoken.data import collect_sentences, load_sentences, open_ended
from stickytoken.errors import InputError, RunError
from stickytoken.explanation import ExplainSettings, Explanation, _attribution, explain, measuring
from stickytoken.explanation.files import read_explanation
from stickytoken.explanation.measuring import Part, choose_texts
from stickytoken.explanation.result import TABLES
from stickytoken.insertion import Placement
from stickytoken.inspection import attention, inspector_of
from stickytoken.inspection.module_embedding import input_embeddings

pytestmark = pytest.mark.slow  # whole runs

SMALL = ExplainSettings(
    copies=4, carriers=6, benign=5, attribution_carriers=2, attribution_benign=3, directions=20
)
TINY = replace(SMALL, carriers=4, benign=4, attribution_carriers=1, directions=10)
CORPUS = collect_sentences(tiny.sentences(40), "test")
AREAS = {"attention", "hidden states", "pooling", "attribution", "embedding", "similarity"}


@pytest.fixture(scope="module")
def sticky_bert(bert_folder):
    """A tiny BERT in which the embedding of one word is long and lies along one dimension."""
    model = SentenceTransformer(str(bert_folder), device="cpu")
    row = model.tokenizer.convert_tokens_to_ids("garden")
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight[row] = 50 * torch.eye(32)[0]
    return load_encoder(model)


@pytest.fixture(scope="module")
def explained(sticky_bert):
    return explain(sticky_bert, ["garden", "window"], sentences=CORPUS, settings=SMALL)


def test_a_planted_token_is_told_from_an_ordinary_one(explained):
    garden, window = explained.tokens
    assert {"embedding", "hidden states"} <= {finding.area for finding in garden.findings}
    assert next(finding for finding in garden.findings if finding.measure == "embedding_norm").deviations > 4
    assert len(window.findings) < len(garden.findings)
    assert garden.verdict.startswith(f"'garden' ({garden.token_id}) differs from 5 matched benign tokens")


def test_tables_have_all_layers_and_heads_and_no_nan(explained):
    for name in TABLES:
        table = getattr(explained, name)
        assert set(table["token_id"]) == {token.token_id for token in explained.tokens}, name
        assert not any(table[column].is_nan().any() for column in table.select(pl.selectors.float()).columns)
    layers = dict(explained.measures.group_by("measure").agg(pl.col("layer").unique().sort()).iter_rows())
    assert layers["attention_received"] == [1, 2]
    assert layers["copies_norm"] == [0, 1, 2]
    assert layers["pooling_share"] == [None]
    assert explained.heads.drop_nulls("head").height == 2 * 2 * 4
    assert explained.pooling == "mean"
    benign = explained.benign.filter(token_id=explained.tokens[0].token_id)
    assert set(benign["benign_id"]).isdisjoint({token.token_id for token in explained.tokens})


def test_matrices_sum_to_similarities(explained, sticky_bert):
    material = choose_texts(sticky_bert, SMALL, None, None, CORPUS)
    carriers, texts = material.carriers, material.anchors
    anchors = sticky_bert.encode(texts)
    mean = (sticky_bert.encode([carrier.text for carrier in carriers]) @ anchors.T).mean()
    for pair in explained.pairs.to_dicts():
        cells = explained.attribution.filter(token_id=pair["token_id"], pair=pair["pair"])
        assert cells["value"].sum() == pytest.approx(pair["similarity"], abs=1e-9)
        assert pair["from_copies"] + pair["from_carrier"] == pytest.approx(pair["similarity"], abs=1e-9)
        carrier, anchor = sticky_bert.encode([pair["carrier"], pair["anchor"]])
        assert pair["similarity_before"] == pytest.approx(float(carrier @ anchor), abs=1e-5)
        unrelated = sorted(similarity for similarity in anchors @ carrier if similarity < mean)
        assert pair["similarity_before"] == pytest.approx(float(unrelated[len(unrelated) // 2]), abs=1e-5)
        content = (*sticky_bert.tokenize([pair["carrier"]])[0].ids, *[pair["token_id"]] * SMALL.copies)
        after = sticky_bert.encode_ids([content])[0]
        assert pair["similarity"] == pytest.approx(float(after @ anchor), abs=1e-5)
        assert cells.filter(row_part="copies")["row"].n_unique() == SMALL.copies


def test_contributions_are_shapley_values_of_plain_vectors(explained, sticky_bert):
    material = choose_texts(sticky_bert, SMALL, None, None, CORPUS)
    anchors = sticky_bert.encode(material.anchors)
    carriers = sticky_bert.encode([carrier.text for carrier in material.carriers])
    mean = (carriers @ anchors.T).mean()
    token_id = explained.tokens[0].token_id
    contributions = {"attributed_to_copies": [], "attributed_to_carrier": []}
    for carrier, alone in zip(material.carriers[: SMALL.attribution_carriers], carriers, strict=False):
        copies, both = sticky_bert.encode_ids([(token_id,) * SMALL.copies, carrier.with_copies(token_id)])
        unrelated = anchors[anchors @ alone < mean]
        # Half of what a part is alone, and half of what it adds to the other part.
        for name, part in (
            ("attributed_to_copies", (copies + both - alone) / 2),
            ("attributed_to_carrier", (alone + both - copies) / 2),
        ):
            contributions[name].append((unrelated @ part).mean())
    for name, values in contributions.items():
        row = explained.measures.filter(measure=name, token_id=token_id).row(0, named=True)
        assert row["value"] == pytest.approx(np.mean(values), abs=1e-5)


def test_the_lift_is_that_of_plain_vectors(explained, sticky_bert):
    material = choose_texts(sticky_bert, SMALL, None, None, CORPUS)
    carriers, texts = material.carriers, material.anchors
    token_id = explained.tokens[0].token_id
    before = sticky_bert.encode([carrier.text for carrier in carriers])
    after = sticky_bert.encode_ids([carrier.with_copies(token_id) for carrier in carriers])
    anchors = sticky_bert.encode(texts)
    old = before @ anchors.T
    new = after @ anchors.T
    lifts = [(new - old)[row][old[row] < old.mean()].mean() for row in range(len(before))]
    row = explained.measures.filter(measure="lift_sentences", token_id=token_id).to_dicts()[0]
    low, high = stats.t.interval(SMALL.confidence, len(lifts) - 1, np.mean(lifts), stats.sem(lifts))
    interval = [row["value"], row["low"], row["high"]]
    np.testing.assert_allclose(interval, [np.mean(lifts), low, high], atol=1e-5)
    assert row["carriers"] == len(lifts)


def test_attention_is_that_of_all_positions_and_of_all_but_the_copies(explained, sticky_bert):
    token_id = explained.tokens[0].token_id
    expected = {"received": [], "from_others": []}
    for carrier in choose_texts(sticky_bert, SMALL, None, None, CORPUS).carriers:
        content = [carrier.with_copies(token_id)]
        (inside,) = inspector_of(sticky_bert).look(content, [carrier.parts], Part.SPECIAL)
        weights = np.bincount(inside.part_of_token, minlength=len(Part)).astype(float)
        others = weights * (np.arange(len(Part)) != Part.COPIES)
        for name, expected_weights in (("received", weights), ("from_others", others)):
            received = (
                np.nan_to_num(inside.attention[..., Part.COPIES]) @ expected_weights / expected_weights.sum()
            )
            expected[name].append(received.mean(axis=1))
    for name, values in expected.items():
        measures = explained.measures.filter(measure=f"attention_{name}", token_id=token_id)
        np.testing.assert_allclose(measures["value"], np.mean(values, axis=0), atol=1e-6)


def test_a_static_model_is_explained_by_its_plain_embeddings_without_attention():
    # At the input of a model without layers, copies are rows of the matrix.
    encoder = load_encoder(planted.planted_model(3))
    settings = replace(SMALL, attribution=False, carriers=2)
    explanation = explain(encoder, [planted.PLANTED], sentences=CORPUS, settings=settings)
    rows = encoder.model[0].embedding.weight.detach().numpy().astype(float)
    own_row = rows[explanation.tokens[0].token_id]
    centre = rows[explanation.benign["benign_id"].to_list()].mean(axis=0)
    values = dict(explanation.measures.select("measure", "value").iter_rows())
    assert values["copies_cosine_distance"] == pytest.approx(
        1 - cosine_similarity([own_row], [centre]).item()
    )
    assert values["copies_euclidean_distance"] == pytest.approx(np.linalg.norm(own_row - centre))
    assert "attention" not in set(explanation.measures["area"])
    assert any(says(note, "static", "attention") for note in explanation.notes)
    assert explanation.heads.is_empty()


def test_carriers_are_measured_alike_however_many_at_a_time(explained, sticky_bert, monkeypatch):
    monkeypatch.setattr(measuring, "HELD_BYTES", 1)
    settings = replace(SMALL, attribution=False)
    single = explain(sticky_bert, ["garden", "window"], sentences=CORPUS, settings=settings)
    other_measures = explained.measures.filter(pl.col("area") != "attribution")
    for one, other in ((other_measures, single.measures), (explained.heads, single.heads)):
        assert one.select("token_id", "layer").equals(other.select("token_id", "layer"))
        for column in ("value", "low", "benign_mean", "benign_high"):
            for mine, its in zip(one[column], other[column], strict=True):
                assert its == (None if mine is None else pytest.approx(mine, rel=1e-3, abs=1e-3))


@pytest.mark.parametrize(("name", "placement"), [("t5", Placement.PREFIX), ("qwen3", Placement.RANDOM)])
def test_other_architectures(name, placement, tmp_path):
    architecture = next(
        known_architecture
        for known_architecture in architectures.ARCHITECTURES
        if known_architecture.name == name
    )
    pooling = architecture.poolings[-1]
    model = architectures.stacked(architecture.save(tmp_path), pooling=pooling, dense=12, normalize=True)
    encoder = load_encoder(model, prompt="a bird: ")
    token_id = encoder.tokenize(["river"])[0].ids[-1]
    explanation = explain(encoder, [token_id], sentences=CORPUS, settings=replace(TINY, placement=placement))
    assert set(explanation.measures["area"]) == AREAS
    assert "prompt" in set(explanation.attribution["row_part"])


def test_a_prompt_that_is_not_pooled_stays_in_all_texts(bert_folder):
    prompt = {"prompts": {"any": "the old river: "}, "default_prompt_name": "any"}
    library = tiny.sentence_transformer(bert_folder, include_prompt=False, **prompt)
    encoder = load_encoder(library)
    explanation = explain(encoder, ["garden"], sentences=CORPUS, settings=TINY)
    assert any(says(note, "prompt") for note in explanation.notes)
    assert set(explanation.measures["area"]) == AREAS
    (pair,) = explanation.pairs.to_dicts()
    cells = explanation.attribution
    assert cells["value"].sum() == pytest.approx(pair["similarity"], abs=1e-9)
    assert set(cells["row_part"]) == {"carrier", "copies"}
    material = choose_texts(encoder, TINY, None, None, CORPUS)
    # Half of what the copies are alone, and half of what they add to the carrier.
    (carrier,) = material.carriers[: TINY.attribution_carriers]
    copies = " garden" * TINY.copies
    alone, both, copied, anchor = library.encode(
        [carrier.text, carrier.text + copies, copies, pair["anchor"]], normalize_embeddings=True
    )
    assert pair["similarity"] == pytest.approx(float(both @ anchor), abs=1e-5)
    anchors = library.encode(material.anchors, normalize_embeddings=True)
    carriers = library.encode([each.text for each in material.carriers], normalize_embeddings=True)
    unrelated = anchors[anchors @ alone < (carriers @ anchors.T).mean()]
    row = explanation.measures.filter(measure="attributed_to_copies").row(0, named=True)
    assert row["value"] == pytest.approx((unrelated @ (copied + both - alone) / 2).mean(), abs=1e-5)


@pytest.mark.parametrize(
    ("prompt", "span", "pooling"), [("prompteol", (1, 3), "lasttoken"), ("echo", None, "mean")]
)
def test_a_planted_token_of_a_prompted_model_is_told_from_ordinary_ones(prompt, span, pooling):
    encoder = encoder_of(read(prompt, span, 4), "llama")
    token_id = encoder.tokenize(["a garden"])[0].ids[-1]
    with torch.no_grad():
        row = 50 * torch.eye(tiny_decoders.DIMENSION)[0]
        encoder.prompted.decoder.embedding.weight[token_id] = row
    explanation = explain(encoder, [token_id], sentences=CORPUS, settings=TINY)
    assert set(explanation.measures["area"]) == AREAS
    assert "embedding_norm" in {finding.measure for finding in explanation.tokens[0].findings}
    assert explanation.pooling == pooling
    (pair,) = explanation.pairs.to_dicts()
    before = cosine_similarity(*(encoder.encode([pair[name]]) for name in ("carrier", "anchor")))
    assert pair["similarity_before"] == pytest.approx(before.item(), abs=1e-5)


def test_a_model_without_attention_weights_is_explained_otherwise(tmp_path, monkeypatch):
    encoder = load_encoder(architectures.stacked(architectures.bert(tmp_path)))
    monkeypatch.setattr(attention, "_weights_of_layers", lambda output: [])
    explanation = explain(encoder, ["river"], sentences=CORPUS, settings=replace(SMALL, attribution=False))
    assert set(explanation.measures["area"]) == AREAS - {"attention", "attribution"}
    assert any(says(note, "attention weights") for note in explanation.notes)
    assert explanation.pairs.is_empty()


def test_texts_of_the_user_are_the_carriers_and_as_many_pairs_are_attributed_as_are_asked_for(sticky_bert):
    settings = replace(SMALL, pairs=3, attribution_carriers=1)
    explanation = explain(sticky_bert, ["garden"], sentences=CORPUS, settings=settings)
    assert explanation.pairs.height == 3
    assert explanation.measures.filter(measure="attributed_to_copies")["carriers"].to_list() == [1]
    explanation = explain(
        sticky_bert, ["garden"], texts=["the river sings"], sentences=CORPUS, settings=settings
    )
    assert explanation.carriers == 1
    assert explanation.pairs["carrier"].to_list() == ["the river sings"]
    assert explanation.measures.filter(measure="lift_sentences")["low"].to_list() == [None]
    assert any(says(note, "one text") for note in explanation.notes)


def test_files_are_what_the_object_holds(explained, tmp_path):
    folders = explained.write(tmp_path / "out")
    for folder, token in zip(folders, explained.tokens, strict=True):
        assert folder.name == str(token.token_id)
        for name, table in explained.of_token(token.token_id).items():
            assert pl.read_parquet(folder / f"{name}.parquet").equals(table)
        document = json.loads((folder / "explanation.json").read_text("utf-8"))
        assert [token_row["token"] for token_row in document["tokens"]] == [token.token]
    before = planted.files_of(tmp_path)
    assert explained.write(tmp_path / "out") == folders
    assert planted.files_of(tmp_path) == before


def test_a_run_gives_texts_and_says_who_is_benign(tmp_path, encoder):
    model = load_encoder(profiled.planted_model(3))
    run = profiled.detect_profile(model, tmp_path / "run")
    explanation = explain(model, [planted.PLANTED], run=run, settings=SMALL)
    assert explanation.tokens[0].run_verdict == "sticky"
    flagged = set(run.tokens.filter(pl.col("verdict") != "benign")["token_id"])
    assert flagged.isdisjoint(explanation.benign["benign_id"])
    assert explanation.source == f"run {run.path.name}"
    assert {"embedding_norm", "pooling_share"} <= {
        finding.measure for finding in explanation.tokens[0].findings
    }
    with pytest.raises(RunError, match=naming("max_length", "modules", "tokenizer")):
        explain(encoder, ["river"], run=run, settings=SMALL)


def test_carriers_of_a_run_are_compared_with_other_packaged_sentences(small_run, encoder):
    corpus = load_sentences(None)
    materials = [choose_texts(encoder, SMALL, small_run, None, corpus) for _ in range(2)]
    (anchors,) = {tuple(material.anchors) for material in materials}
    assert [carrier.text for carrier in materials[0].carriers] == small_run.plan.texts[: SMALL.carriers]
    assert len(anchors) == len(set(anchors)) == 64
    assert set(anchors) <= set(corpus.texts)
    assert {open_ended(text) for text in anchors}.isdisjoint(small_run.plan.texts)
    other = choose_texts(encoder, replace(SMALL, seed=7), small_run, None, corpus)
    assert set(other.anchors) != set(anchors)


def test_a_model_that_cannot_read_the_packaged_sentences_needs_others(tmp_path):
    foreign = load_encoder(profiled.foreign_model())
    run = profiled.detect_profile(foreign, tmp_path / "run", sample=5)
    word = profiled.WORDS[0]
    with pytest.raises(InputError, match=naming(foreign.name, "pass sentences")):
        explain(foreign, [word], run=run, settings=SMALL)
    explained = explain(foreign, [word], run=run, sentences=profiled.corpus(), settings=SMALL)
    assert explained.source == "test"


def test_a_run_alone_has_its_model_loaded_and_its_worst_tokens_taken(planted_run, planted_folder):
    run = open_run(planted_run)
    settings = ExplainSettings(carriers=6, benign=4, attribution=False)
    worst = run.sticky["token_id"].to_list()[:3]
    explanation = explain(run=str(planted_run), settings=settings)
    assert [token.token_id for token in explanation.tokens] == worst
    named = explain(load_encoder(planted_folder), worst, run=run, settings=settings)
    assert explanation.measures.equals(named.measures)


@pytest.mark.parametrize(
    ("tokens", "options", "saying"),
    [
        (None, {}, naming("tokens", "run")),
        (["nowhere"], {}, "'nowhere'"),
        ([100000], {}, naming(100000)),
        ([7, 7], {}, naming(7)),
        (["river"], {"texts": []}, naming("texts")),
        (["river"], {"texts": ["  "]}, naming("'  '")),
        (["river"], {"texts": [3]}, naming("texts", 3)),
        (["river"], {"texts": ["the river " * 40]}, naming(SMALL.copies)),
        (["river"], {"encoder": None}, naming("model", "run")),
    ],
)
def test_bad_input_is_refused(encoder, tokens, options, saying):
    arguments = {"encoder": encoder, "sentences": CORPUS, "settings": SMALL} | options
    with pytest.raises(InputError, match=saying):
        explain(tokens=tokens, **arguments)


def test_the_command_says_a_verdict_prints_json_and_refuses_bad_input(bert_folder, small_run, tmp_path):
    options = "--copies 3 --device cpu --set carriers=3 --set benign=3".split()
    result = planted.command("explain", bert_folder, "river", "--out", tmp_path / "out", *options)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("'river' (")
    assert len(list((tmp_path / "out").glob("*/*.parquet"))) == len(TABLES)
    folder = shutil.copytree(small_run.path, tmp_path / "a run")
    command = ("explain", folder, "river", "--model", bert_folder, "--format", "json", *options)
    result = planted.command(*command)
    assert f"stickytoken report {shlex.quote(str(folder))}" in result.stderr
    written = json.loads(next((folder / "explain").glob("*/explanation.json")).read_text("utf-8"))
    assert written["tokens"] == planted.document(result)["tokens"]
    planted.assert_refused("explain", bert_folder, "river", "--text", " ", saying=naming("--text", "' '"))
    planted.assert_refused(
        "explain", bert_folder, "river", "--column", "a", saying=naming("--column", "--sentences")
    )


# Interrupted explanations continue, finished ones are opened, others are refused


SETTINGS = replace(TINY, copies=3, attribution_benign=3, directions=16)
OPTIONS = {"sentences": CORPUS, "settings": SETTINGS}


@pytest.fixture(scope="module")
def whole(encoder, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return explain(encoder, ["river"], out=out, **OPTIONS), out


def contents(folder):
    return {name: content for name, (_, content) in planted.files_of(folder).items()}


def test_an_interrupt_loses_only_the_text_that_is_being_attributed(encoder, whole, tmp_path, monkeypatch):
    texts = []
    divide = _attribution.divide_vector

    def counted(encoder, ids, labels, **options):
        texts.append(ids)
        if len(texts) == 4:
            raise KeyboardInterrupt
        return divide(encoder, ids, labels, **options)

    monkeypatch.setattr(_attribution, "divide_vector", counted)
    with pytest.raises(KeyboardInterrupt):
        explain(encoder, ["river"], out=tmp_path, **OPTIONS)
    (folder,) = tmp_path.iterdir()
    # What is known by then can be read.
    areas = set(pl.read_parquet(folder / "measures.parquet")["area"])
    assert "attention" in areas
    assert "attribution" not in areas
    assert not (folder / "explanation.json").exists()
    events = []
    explain(encoder, ["river"], out=tmp_path, progress=events.append, **OPTIONS)
    lost = texts.pop(3)
    assert texts[3] == lost
    # One text of the token and of each of three benign ones, and both texts of the pair.
    assert len(texts) == 1 + SETTINGS.attribution_benign + 2
    assert "inside" not in {event.stage for event in events}
    # Those of the first three tokens had been kept: they count as done, not as computed.
    steps = [event for event in events if event.stage == "attribution"]
    assert (steps[3].computed, steps[-1].computed) == (0, steps[-1].total - steps[3].done)
    assert steps[-1].done == steps[-1].total
    assert contents(tmp_path) == contents(whole[1])


@pytest.mark.parametrize("moment", ["heads.parquet", "explanation.json"])
def test_an_interrupt_while_a_file_is_written_is_continued(encoder, whole, tmp_path, monkeypatch, moment):
    replace_file = Path.replace

    def interrupted(path, target):
        if Path(target).name == moment:
            raise KeyboardInterrupt
        return replace_file(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        explain(encoder, ["river"], out=tmp_path, **OPTIONS)
    monkeypatch.undo()
    explain(encoder, ["river"], out=tmp_path, **OPTIONS)
    assert contents(tmp_path) == contents(whole[1])


def test_progress_of_attribution_counts_parts_of_texts(encoder):
    events = []
    explanation = explain(encoder, ["river"], progress=events.append, **OPTIONS)
    steps = [event for event in events if event.stage == "attribution"]
    rows = explanation.attribution["row"].n_unique()
    columns = explanation.attribution["column"].n_unique()
    assert [event.done for event in steps] == [0, 2, 4, 6, 8, 8 + rows + columns]
    assert steps[-1].total == steps[-1].done
    assert all(event.done == event.computed for event in steps)


def test_a_finished_explanation_is_opened_and_says_the_same(encoder, whole):
    first, out = whole
    before = planted.files_of(out)
    events = []
    second = explain(encoder, ["river"], out=out, progress=events.append, **OPTIONS)
    assert events == []
    assert planted.files_of(out) == before
    assert second.document() == first.document()
    assert second.settings == first.settings
    for name in TABLES:
        assert getattr(second, name).equals(getattr(first, name)), name
    for token_id, content in second.contents.items():
        made_of = first.contents[token_id].record.identity_parts
        assert json.loads(json.dumps(made_of)) == content.record.identity_parts


def test_a_token_without_an_embedding_and_the_settings_of_a_later_version_are_opened(bert_folder, tmp_path):
    encoder = load_encoder(bert_folder, device="cpu")
    token_id = next(k for k, token in encoder.tokenizer.entries.items() if token == "river")
    input_embeddings(encoder.model).weight.data[token_id] = 0
    settings = replace(SETTINGS, attribution=False)
    explanation = explain(encoder, ["river"], out=tmp_path, **OPTIONS | {"settings": settings})
    assert explanation.measures.filter(measure="embedding_cosine_to_mean")["value"].item() is None
    path = tmp_path / str(token_id) / "explanation.json"
    record = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(record | {"settings": record["settings"] | {"later": 1}}), encoding="utf-8")
    opened = Explanation([read_explanation(path.parent)])
    assert opened.measures.equals(explanation.measures)
    assert opened.settings == settings


def test_a_folder_without_an_explanation_is_named(tmp_path):
    with pytest.raises(RunError, match=naming(tmp_path, "explanation.json")):
        read_explanation(tmp_path)


def test_a_folder_of_another_explanation_is_refused(encoder, bert_folder, whole):
    out = whole[1]
    before = planted.files_of(out)
    changed = load_encoder(bert_folder, device="cpu")
    next(changed.model.parameters()).data[7] += 1
    for model, options, differences in (
        (encoder, {"settings": replace(SETTINGS, benign=5)}, ["benign", "settings.benign"]),
        (encoder, {"sentences": collect_sentences(tiny.sentences(40)[5:], "test")}, ["anchors"]),
        (encoder, {"texts": ["the river sings"]}, ["carriers"]),
        (changed, {}, ["encoder.weights"]),
    ):
        with pytest.raises(RunError, match=naming(out, *differences)):
            explain(model, ["river"], out=out, **OPTIONS | options)
    assert planted.files_of(out) == before
