"""The profile method as a run: what it finds, what it stores, what changes its numbers and what does not."""

import functools
import itertools

import numpy as np
import polars as pl
import pytest
from sentence_transformers import SentenceTransformer

import planted
import profiled
import tiny
from stickytoken import detect, load_encoder, open_run
from stickytoken.corpora.corpus import Sentences
from stickytoken.corpora.pairs import SentencePair
from stickytoken.errors import RunError
from stickytoken.insertion import Insertion
from stickytoken.measurement.resume import differences
from stickytoken.methods.profile.estimates import EFFECTS_FILE
from stickytoken.methods.profile.verdict import TOKEN_COLUMNS

ROUNDS = ("pilot", "screen", "confirm")
NAMED = [34, 55, 60, 200]  # "!", "river" and two more
# With fewer texts, noise explains all that the tokens of this model differ by.
detect_profile = functools.partial(profiled.detect_profile, budget=6)


@pytest.fixture(scope="module")
def encoder():
    """The model with one sticky token."""
    return load_encoder(profiled.planted_model(2))


@pytest.fixture(scope="module")
def run(encoder, tmp_path_factory):
    """All tokens of the planted model."""
    return detect_profile(encoder, tmp_path_factory.mktemp("planted") / "run")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A tiny BERT with the large vocabulary: its vectors depend on the batch a little."""
    backbone = tiny.bert_backbone(tmp_path_factory.mktemp("backbone"), words=profiled.WORDS)
    return tiny.sentence_transformer(backbone, normalize=True)


@pytest.fixture(scope="module")
def bert_run(bert, tmp_path_factory):
    return detect_profile(load_encoder(bert), tmp_path_factory.mktemp("bert") / "run")


def rows_of(run, step, ids=None):
    """What a round measured, by token id, as stored in the shards."""
    paths = sorted((run.path / "shards").glob(f"{step}-*.parquet"))
    table = pl.concat([pl.read_parquet(path) for path in paths])
    return {row["token_id"]: row for row in table.to_dicts() if ids is None or row["token_id"] in ids}


def assert_close(found, wanted, tolerance):
    """Two tables of the same tokens with the same verdicts, whose numbers agree."""
    assert found.columns == wanted.columns
    for name, kind in wanted.schema.items():
        if kind == pl.Float64 and name not in ("fixed_point", "q_value"):
            assert found[name].to_list() == pytest.approx(wanted[name].to_list(), abs=tolerance), name
        elif kind != pl.Float64:
            assert found[name].to_list() == wanted[name].to_list(), name


# What is found


@pytest.mark.parametrize("insertion", list(Insertion))
def test_a_planted_token_is_sticky_and_no_other(encoder, tmp_path, insertion):
    run = detect_profile(encoder, tmp_path / "run", insertion=insertion)
    assert run.sticky["token"].to_list() == [planted.PLANTED]
    (row,) = run.sticky.to_dicts()
    assert row["severity"] in ("serious", "severe")
    assert row["lift_low"] > 2 * run.result.ordinary_lift
    assert row["universality"] == pytest.approx(1)
    assert row["kind"] is None
    assert row["validation_rate"] > 0.95
    assert row["q_value"] < 1e-3
    assert run.tokens["lift"].max() == row["lift"]
    ordinary = load_encoder(profiled.planted_model(0))
    assert detect_profile(ordinary, tmp_path / "ordinary", insertion=insertion).sticky.is_empty()


def test_the_table_has_one_row_an_available_token_by_ascending_id(run, encoder):
    table = pl.read_parquet(run.path / "tokens.parquet")
    assert table.equals(run.tokens)
    assert table.columns == list(TOKEN_COLUMNS)
    available = run.vocabulary.filter(pl.col("category").is_in(["OK", "OK_SPECIAL"]))
    names = ["token_id", "token", "decoded", "category"]
    assert table.select(names).equals(available.select(names))
    assert len(table) == profiled.AVAILABLE == run.record.tokens == run.result.looked_at
    assert table["token_id"].is_sorted()
    missing = {name for name, count in table.null_count().row(0, named=True).items() if count}
    assert missing <= {"fixed_point", "severity", "kind"}
    assert not any(series.is_nan().any() for series in table.select(pl.col(pl.Float64)))


def test_every_number_of_the_table_is_in_its_range(run):
    table = run.tokens
    assert ((table["lift_low"] < table["lift"]) & (table["lift"] < table["lift_high"])).all()
    for name in ("universality", "validation_rate", "q_value"):
        assert table[name].is_between(-1e-9, 1 + 1e-9).all(), name
    assert set(table["verdict"]) <= {"sticky", "topical", "benign"}
    assert table.filter(pl.col("severity").is_null())["verdict"].unique().to_list() == ["benign"]
    assert set(table["severity"].drop_nulls()) <= {"negligible", "mild", "serious", "severe"}
    counts = dict(table["verdict"].value_counts().iter_rows())
    assert (run.result.sticky, run.result.topical) == (counts["sticky"], counts.get("topical", 0))


def test_the_run_counts_its_texts_and_tokens(run):
    measured = {step: set(rows_of(run, step)) for step in ROUNDS}
    late = set(run.plan.late_reference)
    assert len(measured["screen"]) == profiled.AVAILABLE
    assert measured["pilot"] == late
    assert len(late) == 128
    assert not measured["confirm"] & late  # the pilot measured them on these carriers
    assert len(measured["confirm"] | late) == run.result.candidates >= 128
    texts = 128 * 29 + profiled.AVAILABLE * 5 + len(measured["confirm"]) * 24
    assert run.result.sequences == texts
    assert run.result.texts_per_token == round(texts / profiled.AVAILABLE, 2)
    for row in run.tokens.to_dicts():
        assert row["texts"] == (24 if row["token_id"] in measured["confirm"] | late else 5)


def plain_lift(model, run, place, token):
    """Lift of one carrier with copies at its start or end, spelled out."""
    plan = run.plan
    placement = ("prefix", "suffix", "random")[place % 3]
    copies = (8, 4)[(place % 3 + place // 3) % 2]
    carrier = plan.carriers[place]
    changed = token * copies + carrier if placement == "prefix" else carrier + token * copies
    unit = [vector / np.linalg.norm(vector) for vector in model.encode([carrier, changed])]
    changes = {}
    for each in plan.anchors:
        anchor = model.encode([each.text])[0]
        before, after = (float(vector @ anchor) / float(np.linalg.norm(anchor)) for vector in unit)
        if before < plan.mean_similarity:
            changes.setdefault(each.group, []).append(after - before)
    weights = {group: plan.groups[group].weight for group in changes}
    lift = sum(weights[group] * np.mean(found) for group, found in changes.items()) / sum(weights.values())
    return lift, {group: np.mean(found) for group, found in changes.items()}


@pytest.mark.parametrize(
    ("step", "token_id", "most"), [("pilot", None, 6), ("screen", 34, 5), ("confirm", None, 6)]
)
def test_a_lift_equals_that_of_a_plain_version_of_the_method(tmp_path, step, token_id, most):
    model = profiled.planted_model(2)
    run = detect_profile(
        load_encoder(model), tmp_path / "run", insertion="text", sentences=profiled.corpus(160)
    )
    every = list(range(len(run.plan.carriers)))
    few = run.result.screening_carriers
    carriers = {"pilot": every, "screen": few, "confirm": [k for k in every if k not in few]}[step]
    rows = rows_of(run, step)
    token_id = token_id or next(iter(rows))
    row, token = rows[token_id], run.vocabulary.filter(token_id=token_id)["decoded"].item()
    groups = np.array(row["groups"]).reshape(len(carriers), -1)
    measured = [own for own in enumerate(carriers) if own[1] % 3 < 2][:most]  # not at random gaps
    for place, carrier in measured:
        lift, by_group = plain_lift(model, run, carrier, token)
        assert row["lifts"][place] == pytest.approx(lift, abs=1e-5), carrier
        for group, value in by_group.items():
            assert groups[place, group] == pytest.approx(value, abs=1e-5), (carrier, group)


# What changes nothing


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 100])
def test_the_batch_size_changes_neither_identity_nor_verdicts_nor_numbers(bert, bert_run, tmp_path, budget):
    batches = []
    model = SentenceTransformer(modules=list(bert), device="cpu")
    handle = model[0].register_forward_pre_hook(
        lambda _, inputs: batches.append(inputs[0]["input_ids"].shape)
    )
    try:
        run = detect_profile(load_encoder(model, token_budget=budget), tmp_path / "run")
    finally:
        handle.remove()
    assert all(rows == 1 or rows * length <= budget for rows, length in batches)
    assert budget == 1 or max(rows for rows, _ in batches) > 1
    assert run.record.identity == bert_run.record.identity
    assert_close(run.tokens, bert_run.tokens, 1e-5)


def test_the_same_call_opens_a_finished_run_and_writes_nothing(encoder, run):
    before, events = planted.files_of(run.path), []
    again = detect_profile(encoder, run.path, progress=events.append)
    assert events == []
    assert planted.files_of(run.path) == before
    assert again.tokens.equals(run.tokens)


def test_a_named_token_is_measured_as_in_the_whole_run(encoder, run, tmp_path):
    """Of those named here, two come from each of the pilot and the last round."""
    ids = sorted({34, run.plan.late_reference[0], *list(rows_of(run, "confirm"))[:2]})
    named = detect_profile(encoder, tmp_path / "named", tokens=[*reversed(ids), 34])
    assert named.tokens["token_id"].to_list() == ids
    assert named.result.looked_at == named.result.candidates == len(ids)
    assert named.plan == run.plan
    assert named.result.screening_carriers == run.result.screening_carriers
    late = set(run.plan.late_reference)
    beside = {"pilot": late, "screen": {*ids, *run.plan.reference}, "confirm": {*ids} - late}
    for step in ROUNDS:
        whole, ours = rows_of(run, step), rows_of(named, step)
        assert set(ours) == beside[step]
        both = set(whole) & set(ours)
        assert both
        for token_id in both:
            for name, value in whole[token_id].items():
                close = pytest.approx(value, abs=1e-3 if name == "pull" else 1e-5, nan_ok=True)
                assert ours[token_id][name] == close, (step, token_id, name)
    assert named.sticky["token"].to_list() == [planted.PLANTED]
    assert named.record.identity != run.record.identity


@pytest.mark.slow
def test_a_named_token_does_not_depend_on_the_others(encoder, tmp_path):
    numbers = pl.exclude("q_value")  # of as many tests as there are tokens
    together = detect_profile(encoder, tmp_path / "together", tokens=NAMED).tokens
    for token_id in NAMED:
        alone = detect_profile(encoder, tmp_path / f"alone-{token_id}", tokens=[token_id]).tokens
        assert_close(alone.select(numbers), together.filter(token_id=token_id).select(numbers), 1e-5)


def test_a_sample_is_a_part_of_the_vocabulary_drawn_by_the_seed(encoder, tmp_path):
    first, again, other = (
        detect_profile(encoder, tmp_path / name, sample=40, seed=seed)
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    ids = first.tokens["token_id"].to_list()
    assert len(ids) == 40
    assert ids == sorted(ids)
    assert (tmp_path / "first" / "tokens.parquet").read_bytes() == (
        tmp_path / "again" / "tokens.parquet"
    ).read_bytes()
    assert other.tokens["token_id"].to_list() != ids
    assert first.record.identity == again.record.identity != other.record.identity
    measured = set(rows_of(first, "screen"))
    assert measured == set(ids) | set(first.plan.reference)


# What changes the numbers, and the identity with them


def test_another_seed_is_another_run(encoder, run, tmp_path):
    other = detect_profile(encoder, tmp_path / "run", seed=7)
    assert differences(other.record.identity_parts, run.record.identity_parts) == ["settings.seed"]
    assert other.plan.carriers != run.plan.carriers
    assert other.plan.reference != run.plan.reference
    assert other.plan.mean_similarity == run.plan.mean_similarity
    assert other.sticky["token"].to_list() == run.sticky["token"].to_list()
    with pytest.raises(
        RunError, match=r"contains a different run \(it differs in settings\.seed\): choose another"
    ):
        detect_profile(encoder, run.path, seed=7)


def test_topics_of_the_corpus_are_the_groups_of_a_model_that_reads_no_kinds(tmp_path):
    foreign = load_encoder(profiled.foreign_model())
    corpus = profiled.corpus(200, topics=5)
    bare = Sentences(corpus.texts, corpus.source)
    named, clustered = (
        detect_profile(foreign, tmp_path / name, sentences=sentences)
        for name, sentences in (("topics", corpus), ("clusters", bare))
    )
    names = [f"topic {place}" for place in range(5)]
    assert [group.name for group in named.plan.groups] == [*names, "vocabulary entries"]
    topic_of = dict(zip(corpus.texts, corpus.topics, strict=True))
    about = [topic_of[anchor.text] for anchor in named.plan.anchors]
    assert [names[anchor.group] for anchor in named.plan.anchors] == about
    assert [about.count(name) for name in names] == [16] * 5
    clusters = [f"cluster {place}" for place in range(6)]
    assert [group.name for group in clustered.plan.groups] == [*clusters, "vocabulary entries"]
    assert differences(named.record.identity_parts, clustered.record.identity_parts) == ["corpus"]
    paper = [
        detect(foreign, sentences=each, settings=planted.SMALL, tokens=[55], out=tmp_path / f"std-{place}")
        for place, each in enumerate((corpus, bare))
    ]
    assert paper[0].record.identity == paper[1].record.identity  # the paper's method sees no topics


def test_without_adaptation_every_token_gets_the_budget_and_no_more(encoder, tmp_path):
    run = detect_profile(encoder, tmp_path / "run", adaptive=False, budget=10)
    assert set(run.tokens["texts"]) == {10}
    assert run.result.sequences == 10 * profiled.AVAILABLE
    assert {path.name.split("-")[0] for path in (run.path / "shards").iterdir()} == {"screen"}
    assert len(run.plan.carriers) == 10
    assert run.result.screening_carriers == list(range(10))
    assert run.result.candidates == profiled.AVAILABLE
    assert set(pl.read_parquet(run.path / EFFECTS_FILE)["round"]) == {"screen"}
    assert run.sticky["token"].to_list() == [planted.PLANTED]


def test_progress_tells_of_every_round_up_to_its_end(encoder, tmp_path):
    events = []
    run = detect_profile(encoder, tmp_path / "run", tokens=NAMED, progress=events.append)
    first = {event.stage: event for event in reversed(events)}
    last = {event.stage: event for event in events}
    assert list(last) == ["mean similarity", *ROUNDS, "evidence"]
    assert {event.done for event in first.values()} == {0}
    assert all(event.done == event.total for event in last.values())
    assert sum(last[step].sequences for step in ROUNDS) == run.result.sequences
    for before, after in itertools.pairwise(events):
        assert before.stage != after.stage or before.done <= after.done <= after.total


def test_the_default_method_is_profile_and_pairs_belong_to_std(encoder, tmp_path):
    corpus = profiled.corpus(170)
    run = detect(encoder, sentences=corpus, tokens=[34, 55], out=tmp_path / "profile")
    assert run.record.method == "profile"
    assert run.record.settings["confirming_texts"] == 48
    assert len(open_run(run.path).plan.carriers) == 51
    pairs = [SentencePair(*corpus.texts[place : place + 2], -0.5) for place in range(0, 20, 2)]
    settings = planted.SMALL
    assert detect(encoder, pairs=pairs, settings=settings, out=tmp_path / "std").record.method == "std"
    assert detect(encoder, pairs=pairs * 30, tokens=[55], out=tmp_path / "implied").record.method == "std"
