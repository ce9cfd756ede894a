"""The profile method as a run: what it finds, what it stores, what changes its numbers and what does not."""

import itertools
import json

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
from stickytoken.errors import InputError, RunError
from stickytoken.insertion import Insertion
from stickytoken.measurement.identity import differences
from stickytoken.methods.profile._results import TOKEN_COLUMNS, estimate_lifts, estimate_pulls, measurements
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.statistics import q_values

ROUNDS = ("screen", "refine", "confirm")
NAMED = [34, 55, 60, 200]  # "!", "river" and two more


@pytest.fixture(scope="module")
def encoder():
    """The model with one sticky token."""
    return load_encoder(profiled.planted_model(2))


@pytest.fixture(scope="module")
def run(encoder, tmp_path_factory):
    """All tokens of the planted model."""
    return profiled.detect_profile(encoder, tmp_path_factory.mktemp("planted") / "run")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A tiny BERT with the large vocabulary: its vectors depend on the batch a little."""
    backbone = tiny.bert_backbone(tmp_path_factory.mktemp("backbone"), words=profiled.WORDS)
    return tiny.sentence_transformer(backbone, normalize=True)


@pytest.fixture(scope="module")
def bert_run(bert, tmp_path_factory):
    return profiled.detect_profile(load_encoder(bert), tmp_path_factory.mktemp("bert") / "run")


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
    run = profiled.detect_profile(encoder, tmp_path / "run", insertion=insertion)
    assert run.sticky["token"].to_list() == [planted.PLANTED]
    (row,) = run.sticky.to_dicts()
    assert row["severity"] in ("serious", "severe")
    assert row["lift_low"] > 2 * run.result.ordinary_lift
    assert row["universality"] == pytest.approx(1)
    assert row["validation_rate"] > 0.95
    assert row["q_value"] < 1e-3
    assert run.tokens["lift"].max() == row["lift"]
    ordinary = load_encoder(profiled.planted_model(0))
    assert profiled.detect_profile(ordinary, tmp_path / "ordinary", insertion=insertion).sticky.is_empty()


def test_the_table_has_one_row_an_available_token_by_ascending_id(run, encoder):
    table = pl.read_parquet(run.path / "tokens.parquet")
    assert table.equals(run.tokens)
    assert table.columns == list(TOKEN_COLUMNS)
    available = run.vocabulary.filter(pl.col("category").is_in(["OK", "OK_SPECIAL"]))
    names = ["token_id", "token", "decoded", "category"]
    assert table.select(names).equals(available.select(names))
    assert len(table) == profiled.AVAILABLE == run.record.tokens == run.result.looked_at
    assert table["token_id"].is_sorted()
    assert not table.select(pl.exclude("fixed_point")).null_count().sum_horizontal().item()
    assert not any(series.is_nan().any() for series in table.select(pl.col(pl.Float64)))


def test_every_number_of_the_table_is_in_its_range(run):
    table = run.tokens
    assert ((table["lift_low"] < table["lift"]) & (table["lift"] < table["lift_high"])).all()
    for name in ("universality", "validation_rate", "q_value"):
        assert table[name].is_between(-1e-9, 1 + 1e-9).all(), name
    assert set(table["verdict"]) <= {"sticky", "topical", "benign"}
    assert set(table["severity"]) <= {"negligible", "mild", "serious", "severe"}
    counts = dict(table["verdict"].value_counts().iter_rows())
    assert (run.result.sticky, run.result.topical) == (counts["sticky"], counts.get("topical", 0))


def test_the_run_counts_its_texts_and_tokens(run):
    measured = {step: rows_of(run, step) for step in ROUNDS}
    assert len(measured["screen"]) == profiled.AVAILABLE
    late = set(run.plan.late_reference)
    assert len(late) == 128
    assert late <= set(measured["refine"]) & set(measured["confirm"])
    assert len(measured["confirm"]) == run.result.candidates >= 30
    texts = sum(len(rows) * count for rows, count in zip(measured.values(), (4, 4, 24), strict=True))
    assert run.result.sequences == texts
    assert run.result.texts_per_token == round(texts / profiled.AVAILABLE, 2)
    for row in run.tokens.to_dicts():
        refined, confirmed = (row["token_id"] in measured[step] for step in ("refine", "confirm"))
        assert row["texts"] == (24 if confirmed else 8 if refined else 4)


def plain_lift(model, run, step, place, token):
    """Lift of one carrier with copies at its start or end, spelled out."""
    plan = run.plan
    placement = ("prefix", "suffix", "random")[place % 3]
    assert placement != "random"
    copies = (8, 4)[(place % 3 + place // 3) % 2]
    carrier = plan.carriers[step][place]
    changed = token * copies + carrier if placement == "prefix" else carrier + token * copies
    texts = dict(run.vocabulary.select("token_id", "decoded").iter_rows())
    anchors = [(f"s{each.group}", each.text) for each in plan.sentence_anchors]
    anchors += [(f"v{each.group}", texts[each.token_id]) for each in plan.vocabulary_anchors]
    unit = [vector / np.linalg.norm(vector) for vector in model.encode([carrier, changed])]
    changes = {}
    for group, text in anchors:
        anchor = model.encode([text])[0]
        before, after = (float(vector @ anchor) / float(np.linalg.norm(anchor)) for vector in unit)
        if before < plan.mean_similarity:
            changes.setdefault(group, []).append(after - before)
    share = {"s": 0.25, "v": 0.75}
    groups = {kind: len({name for name, _ in anchors if name[0] == kind}) for kind in share}
    weights = {name: share[name[0]] / groups[name[0]] for name in changes}
    return sum(weights[name] * np.mean(found) for name, found in changes.items()) / sum(weights.values())


@pytest.mark.parametrize(("step", "places"), [("screen", (0, 1)), ("confirm", (0, 1, 3, 4, 21))])
def test_a_lift_equals_that_of_a_plain_version_of_the_method(tmp_path, step, places):
    model = profiled.planted_model(2)
    run = profiled.detect_profile(
        load_encoder(model), tmp_path / "run", insertion="text", sentences=profiled.corpus(160, topics=4)
    )
    row = rows_of(run, step, {34})[34]
    for place in places:
        plain = plain_lift(model, run, step, place, "!")
        assert row["lifts"][place] == pytest.approx(plain, abs=1e-5), place


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
        run = profiled.detect_profile(load_encoder(model, token_budget=budget), tmp_path / "run")
    finally:
        handle.remove()
    assert all(rows == 1 or rows * length <= budget for rows, length in batches)
    assert budget == 1 or max(rows for rows, _ in batches) > 1
    assert run.record.identity == bert_run.record.identity
    assert_close(run.tokens, bert_run.tokens, 1e-5)


def test_the_same_call_opens_a_finished_run_and_writes_nothing(encoder, run):
    before, events = planted.files_of(run.path), []
    again = profiled.detect_profile(encoder, run.path, progress=events.append)
    assert events == []
    assert planted.files_of(run.path) == before
    assert again.tokens.equals(run.tokens)


def test_a_named_token_is_measured_as_in_the_whole_run(encoder, run, tmp_path):
    named = profiled.detect_profile(encoder, tmp_path / "named", tokens=[*reversed(NAMED), 34])
    assert named.tokens["token_id"].to_list() == NAMED
    assert named.result.looked_at == named.result.candidates == len(NAMED)
    assert named.plan == run.plan
    for step in ROUNDS:
        whole, ours = rows_of(run, step), rows_of(named, step)
        beside = run.plan.reference if step == "screen" else run.plan.late_reference
        assert set(ours) == {*NAMED, *beside}
        both = set(whole) & set(ours)
        assert len(both) >= 100
        for token_id in both:
            for name, value in whole[token_id].items():
                assert ours[token_id][name] == pytest.approx(value, abs=1e-5), (step, token_id, name)
    assert named.sticky["token"].to_list() == [planted.PLANTED]
    assert named.record.identity != run.record.identity


@pytest.mark.slow
def test_a_named_token_does_not_depend_on_the_others(encoder, tmp_path):
    numbers = pl.exclude("q_value")  # of as many tests as there are tokens
    together = profiled.detect_profile(encoder, tmp_path / "together", tokens=NAMED).tokens
    for token_id in NAMED:
        alone = profiled.detect_profile(encoder, tmp_path / f"alone-{token_id}", tokens=[token_id]).tokens
        assert_close(alone.select(numbers), together.filter(token_id=token_id).select(numbers), 1e-5)


def test_a_sample_is_a_part_of_the_vocabulary_drawn_by_the_seed(encoder, tmp_path):
    first, again, other = (
        profiled.detect_profile(encoder, tmp_path / name, sample=40, seed=seed)
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
    other = profiled.detect_profile(encoder, tmp_path / "run", seed=7)
    assert differences(other.record.identity_parts, run.record.identity_parts) == ["settings.seed"]
    assert other.plan.carriers != run.plan.carriers
    assert other.plan.reference != run.plan.reference
    assert other.plan.mean_similarity == run.plan.mean_similarity
    assert other.sticky["token"].to_list() == run.sticky["token"].to_list()
    with pytest.raises(RunError, match=r"holds another run \(it differs in settings\.seed\): choose another"):
        profiled.detect_profile(encoder, run.path, seed=7)


def test_topics_of_the_corpus_are_its_groups_and_part_of_the_identity(encoder, tmp_path):
    corpus = profiled.corpus(200, topics=5)
    bare = Sentences(corpus.texts, corpus.source)
    named, clustered = (
        profiled.detect_profile(encoder, tmp_path / name, sentences=sentences)
        for name, sentences in (("topics", corpus), ("clusters", bare))
    )
    names = [f"topic {place}" for place in range(5)]
    assert [name for name in named.plan.groups if not name.startswith("vocabulary")] == names
    topic_of = dict(zip(corpus.texts, corpus.topics, strict=True))
    about = [topic_of[anchor.text] for anchor in named.plan.sentence_anchors]
    assert [names[anchor.group] for anchor in named.plan.sentence_anchors] == about
    assert [about.count(name) for name in names] == [16] * 5
    assert clustered.plan.groups[:6] == [f"cluster {place}" for place in range(6)]
    assert differences(named.record.identity_parts, clustered.record.identity_parts) == ["corpus"]
    assert named.sticky["token"].to_list() == clustered.sticky["token"].to_list() == [planted.PLANTED]
    paper = [
        detect(encoder, sentences=each, settings=planted.SMALL, tokens=[55], out=tmp_path / f"std-{place}")
        for place, each in enumerate((corpus, bare))
    ]
    assert paper[0].record.identity == paper[1].record.identity  # the paper's method sees no topics


def test_without_adaptation_every_token_gets_the_budget_and_no_more(encoder, tmp_path):
    run = profiled.detect_profile(encoder, tmp_path / "run", adaptive=False, budget=10)
    assert set(run.tokens["texts"]) == {10}
    assert run.result.sequences == 10 * profiled.AVAILABLE
    assert {path.name.split("-")[0] for path in (run.path / "shards").iterdir()} == {"screen"}
    assert list(run.plan.carriers) == ["screen"]
    assert run.sticky["token"].to_list() == [planted.PLANTED]


def test_progress_tells_of_every_round_up_to_its_end(encoder, tmp_path):
    events = []
    run = profiled.detect_profile(encoder, tmp_path / "run", tokens=[34], progress=events.append)
    first = {event.stage: event for event in reversed(events)}
    last = {event.stage: event for event in events}
    assert list(last) == ["mean similarity", *ROUNDS, "evidence"]
    assert {event.done for event in first.values()} == {0}
    assert all(event.done == event.total for event in last.values())
    assert sum(last[step].sequences for step in ROUNDS) == run.result.sequences
    for before, after in itertools.pairwise(events):
        assert before.stage != after.stage or before.done <= after.done <= after.total


# What cannot be measured


def test_a_vocabulary_below_200_tokens_is_judged_by_intervals(tmp_path):
    for count, controlled in ((104, False), (105, True)):
        words = profiled.WORDS[:count]
        encoder = load_encoder(profiled.planted_model(2, words=words))
        corpus = profiled.corpus(words=words)
        run = profiled.detect_profile(encoder, tmp_path / f"run-{count}", sentences=corpus)
        assert len(run.tokens) == 95 + count
        assert run.result.empirical_null is controlled
        assert run.tokens["q_value"].is_null().all() is not controlled
        assert planted.PLANTED in run.sticky["token"].to_list()


def test_without_a_pair_of_sentences_below_the_mean_the_vocabulary_decides(tmp_path):
    encoder = load_encoder(profiled.planted_model(2, common=0.7))
    run = profiled.detect_profile(encoder, tmp_path / "run")
    assert 0.05 < run.plan.share_below < 0.12
    assert run.tokens["lift_sentences"].is_null().all()
    assert not run.tokens["lift"].is_null().any()
    (row,) = run.sticky.to_dicts()
    assert (row["token"], row["universality"]) == (planted.PLANTED, pytest.approx(1))
    assert row["lift_floor"] > 2 * run.result.ordinary_lift  # groups without a pair have no say
    json.dumps(run.summary(), allow_nan=False)
    (tmp_path / "run" / "tokens.parquet").unlink()
    events = []
    again = profiled.detect_profile(encoder, tmp_path / "run", progress=events.append)
    assert {event.computed for event in events} == {0}  # shards with missing values are whole shards
    assert again.tokens.equals(run.tokens)


def constant_model(noise):
    """Every text has the same vector, but for a little noise."""
    model = profiled.planted_model(0)
    weights = model[0].embedding.weight.data
    weights[:] = 1 + noise * weights
    return model


UNRELATED = SentencePair("a bird", "a song", 0.1)
REFUSED = {
    "too few": (2, {"sentences": profiled.corpus(69)}, "31 carriers .* are needed: use more sentences$"),
    "one less": (2, {"sentences": profiled.corpus(70)}, "use more sentences, or a smaller budget$"),
    "alike": ("constant", {}, r"the same similarity \(1\.0000\): there is nothing that a token could"),
    "nearly alike": ("noisy", {}, r"the same similarity \(1\.0000\): there is nothing that a token could"),
    "above u": ("above", {}, "of 46 carriers from test have a similarity below the .* more varied subjects"),
    "pairs": (2, {"sentences": None, "pairs": [UNRELATED]}, "takes no pairs: pass sentences, or use .* std"),
    "settings of std": (2, {"settings": planted.SMALL, "method": "profile"}, "pass a ProfileSettings$"),
    "settings for std": (2, {"method": "std"}, "ProfileSettings, which the method 'std' does not take"),
}


@pytest.mark.parametrize(("model", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_measured_is_refused_and_leaves_the_folder_free(tmp_path, model, options, message):
    made = {
        "constant": lambda: constant_model(0),
        "noisy": lambda: constant_model(1e-5),
        "above": lambda: profiled.planted_model(2, common=2),
    }
    encoder = load_encoder(made[model]() if model in made else profiled.planted_model(model))
    with pytest.raises(InputError, match=message):
        profiled.detect_profile(encoder, tmp_path / "run", **options)
    right = load_encoder(profiled.planted_model(2))
    assert profiled.detect_profile(right, tmp_path / "run", tokens=[34]).result.sticky == 1


def test_the_default_method_is_profile_and_pairs_belong_to_std(encoder, tmp_path):
    corpus = profiled.corpus(170)
    run = detect(encoder, sentences=corpus, tokens=[34, 55], out=tmp_path / "profile")
    assert run.record.method == "profile"
    assert run.record.settings["confirming_texts"] == 96
    assert open_run(run.path).plan.carriers.keys() == set(ROUNDS)
    pairs = [SentencePair(*corpus.texts[place : place + 2], -0.5) for place in range(0, 20, 2)]
    settings = planted.SMALL
    assert detect(encoder, pairs=pairs, settings=settings, out=tmp_path / "std").record.method == "std"
    assert detect(encoder, pairs=pairs * 30, tokens=[55], out=tmp_path / "implied").record.method == "std"


def test_the_q_values_are_those_of_the_pull_not_of_the_lift(run):
    """Written out from the shards: what is rare is judged by lift and contraction together."""
    tables = {step: pl.DataFrame(list(rows_of(run, step).values())) for step in ROUNDS}
    rounds = {Round(step): measurements(table) for step, table in tables.items()}
    everything = run.tokens["token_id"].to_numpy()
    lifts = estimate_lifts(rounds, run.plan, everything, profiled.SMALL)
    pull = estimate_pulls(rounds, run.plan, everything, profiled.SMALL, lifts)
    of_pull, of_lift = (q_values(each.null.exceedance(each.tested)) for each in (pull, lifts))
    assert run.tokens["token_id"].to_list() == pull.ids.tolist()
    assert np.allclose(run.tokens["q_value"].to_numpy(), of_pull, rtol=1e-12)
    assert not np.allclose(of_pull, of_lift, atol=1e-3)
