"""What carriers are compared with: kinds of text, a corpus of one's own, its topics, vocabulary entries."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import profiled
import tiny
from stickytoken import load_encoder
from stickytoken.data import bundled_frame, load_sentences, text_kinds_frame
from stickytoken.encoders import analyze_vocabulary
from stickytoken.methods.base import Job
from stickytoken.methods.profile.plan import make_profile_plan
from stickytoken.methods.profile.texts import (
    TextGroup,
    anchor_panel,
    choose_anchors,
    cluster,
    clustered,
    representative_carriers,
    text_groups,
)
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors

KINDS = list(dict.fromkeys(text_kinds_frame()["kind"]))
SETTINGS = ProfileSettings()


def names(groups):
    return [group.name for group in groups]


def test_without_a_corpus_everyday_sentences_and_ten_kinds_weigh_the_same(encoder):
    own_sources, beside = text_groups(encoder, load_sentences())
    assert beside == []
    assert names(own_sources) == ["everyday", *KINDS]
    assert len(KINDS) == 10
    assert {group.weight for group in own_sources} == {1 / 11}
    assert all(group.kind for group in own_sources)
    assert own_sources[0].texts == bundled_frame()["sentence"].unique(maintain_order=True).to_list()
    kinds = text_kinds_frame()
    for group in own_sources[1:]:
        # A small tokenizer makes some texts equal, of which one stays.
        assert set(group.texts) <= set(kinds.filter(kind=group.name)["text"])
        assert len(group.texts) > 70


def test_a_corpus_of_ones_own_is_one_group_and_the_kinds_stand_beside_it(encoder):
    corpus = profiled.corpus(300, topics=5)
    both_sources = text_groups(encoder, corpus)
    (own_source,), beside = both_sources
    assert (own_source.name, own_source.weight, own_source.kind) == ("corpus", 1.0, False)
    assert own_source.texts == list(corpus.texts)
    assert names(beside) == KINDS
    assert {(group.weight, group.kind) for group in beside} == {(0.0, True)}
    anchors, _ = choose_anchors(encoder, replace(SETTINGS, anchors=100), both_sources, set())
    assert names(anchors) == ["corpus", *KINDS]
    assert [len(group.texts) for group in anchors] == [100, *[10] * 10]
    bundled, _ = text_groups(encoder, replace(load_sentences(), bundled=False))
    assert names(bundled) == ["corpus"]


def test_all_groups_give_as_many_anchors_and_none_that_carries(encoder):
    own_sources, _ = both_sources = text_groups(encoder, load_sentences())
    taken = {text for group in own_sources for text in group.texts[:9]}
    anchors, _ = choose_anchors(encoder, SETTINGS, both_sources, taken)
    assert names(anchors) == names(own_sources)
    for group, source in zip(anchors, own_sources, strict=True):
        assert len(set(group.texts)) == len(group.texts) == 40
        assert set(group.texts) <= set(source.texts) - taken


def test_texts_that_the_model_does_not_read_whole_are_left_out_and_counted(tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path, max_length=24, words=profiled.WORDS))
    encoder = load_encoder(model)
    both_sources = text_groups(encoder, profiled.corpus(120))
    anchors, left_out = choose_anchors(encoder, replace(SETTINGS, anchors=2000), both_sources, set())
    everything = [text for groups in both_sources for group in groups for text in group.texts]
    short_enough = [text for text in everything if len(model.tokenizer(text).input_ids) <= 24]
    assert 0 < len(short_enough) < len(everything)
    assert sorted(text for group in anchors for text in group.texts) == sorted(short_enough)
    assert left_out == len(everything) - len(short_enough)


def test_a_group_without_a_text_that_fits_is_no_group(tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path, max_length=8, words=profiled.WORDS))
    encoder = load_encoder(model)
    words = profiled.WORDS
    short, long = ([" ".join(words[k : k + size]) for k in range(30)] for size in (3, 20))
    groups = [TextGroup(name, texts, 1 / 3, True) for name, texts in (("a", short), ("b", long))]
    groups.append(TextGroup("c", [f"{text} {words[-1]}" for text in short], 1 / 3, True))
    anchors, left_out = choose_anchors(encoder, SETTINGS, [groups], set())
    assert [(group.name, group.weight) for group in anchors] == [("a", 0.5), ("c", 0.5)]
    assert left_out == 30


def test_texts_of_unknown_topics_are_clustered_and_weigh_the_same(foreign):
    settings = replace(SETTINGS, topics=6, anchors=120)
    groups_of_corpus = text_groups(foreign, profiled.corpus(200))
    ((source_found,), _) = choose_anchors(foreign, settings, groups_of_corpus, set())
    vectors = unit_vectors(foreign.encode(source_found.texts))
    groups = clustered(source_found.texts, vectors, settings)
    assert names(groups) == [f"cluster {number}" for number in range(6)]
    assert sorted(text for group in groups for text in group.texts) == sorted(source_found.texts)
    for group in groups:
        assert group.kind
        assert group.weight == pytest.approx(len(group.texts) / 120)
    one = clustered(source_found.texts, vectors, replace(settings, topics=1))
    assert [(group.name, group.weight, group.kind) for group in one] == [("cluster 0", 1.0, False)]


@pytest.mark.parametrize("lift_only", [True, False])
def test_the_panel_of_a_plan_has_the_vectors_of_its_texts_one_by_one(encoder, lift_only):
    vocabulary = analyze_vocabulary(encoder)
    job = Job(encoder, profiled.SMALL, profiled.corpus(), vocabulary, [], restricted=False, sampled=False)
    plan = make_profile_plan(job, lambda progress: None)
    panel = anchor_panel(encoder, plan, lift_only=lift_only)
    texts = [(anchor.text, anchor.group) for anchor in plan.anchors if anchor.group == 0 or not lift_only]
    assert len(panel.vectors) == len(texts)
    for row, (text, group) in enumerate(texts):
        assert panel.vectors[row] == pytest.approx(unit_vectors(encoder.encode([text]))[0], abs=1e-6)
        assert panel.groups[row] == group
    weights = [1.0] if lift_only else [group.weight for group in plan.groups]
    assert panel.group_weights.tolist() == weights


def draw(seed, count, dimension=5):
    return unit_vectors(np.random.default_rng(seed).normal(size=(count, dimension)))


@pytest.mark.parametrize("seed", range(2))
def test_every_vector_is_nearest_to_the_center_of_its_group(seed):
    vectors = draw(seed, 80)
    labels = cluster(vectors, 6, seed)
    centers = np.stack([vectors[labels == group].mean(axis=0) for group in range(labels.max() + 1)])
    distances = ((vectors[:, None] - centers) ** 2).sum(axis=2)
    assert list(dict.fromkeys(labels.tolist())) == list(range(6))
    assert distances.argmin(axis=1).tolist() == labels.tolist()


@pytest.mark.parametrize("seed", range(2))
def test_another_order_of_the_vectors_is_another_order_of_the_same_groups(seed):
    vectors = draw(seed, 80)
    order = np.random.default_rng(seed).permutation(80)
    assert adjusted_rand_score(cluster(vectors, 6, 1)[order], cluster(vectors[order], 6, 1)) == 1.0


@pytest.mark.parametrize("seed", range(2))
def test_vectors_that_occur_many_times_are_no_first_centers_twice(seed):
    """Equal first centers would leave clusters empty, which scikit-learn warns of."""
    distinct = draw(seed, 7)
    labels_drawn = np.random.default_rng(seed).choice(7, size=90, p=[0.7, *[0.05] * 6])
    labels_drawn[:7] = range(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for groups in (3, 7, 20):
            labels = cluster(distinct[labels_drawn], groups, seed)
            assert labels.max() + 1 == min(groups, 7)
            assert all(len(set(labels[labels_drawn == label].tolist())) == 1 for label in range(7))


def values_of(seed, noise, measures=2):
    """Effects of random tokens by measure, seen through carriers of which each has noise of its own size."""
    generator = np.random.default_rng(seed)
    effects = generator.normal(size=(128, 1, measures))
    noise = np.asarray(noise, dtype=float)[:, None]
    return effects + noise * generator.normal(size=(128, len(noise), measures))


def agreement(values, carriers):
    """Correlations of the mean over some carriers with the mean over all carriers, one per measure."""
    few = values[:, carriers].mean(axis=1)
    mean_of_all = values.mean(axis=1)
    return np.array([np.corrcoef(few[:, k], mean_of_all[:, k])[0, 1] for k in range(values.shape[2])])


def slow_choice(values, lengths, candidates, count):
    """Greedy, by numpy's correlations: the shortest carrier within one standard error of the best."""
    chosen = []
    for _ in range(count):
        scores = {k: agreement(values, [*chosen, k]) for k in candidates if k not in chosen}
        best = max(scores.values(), key=sum)
        error = np.linalg.norm((1 - best**2) / np.sqrt(len(values) - 1))
        as_good = [k for k, score in scores.items() if sum(score) >= sum(best) - error]
        chosen.append(min(as_good, key=lambda k: (lengths[k], -sum(scores[k]))))
    return sorted(chosen)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_choice_equals_a_plain_greedy_search(seed, count):
    generator = np.random.default_rng(seed)
    values = values_of(seed, generator.uniform(0.5, 4, 9))
    lengths = generator.integers(1, 20, 9)
    candidates = generator.permutation(9)[:7]
    chosen = representative_carriers(values, lengths, candidates, count)
    assert chosen == slow_choice(values, lengths, candidates, count)


def test_of_two_carriers_that_agree_alike_the_shorter_is_chosen():
    values = values_of(0, [1.0, 0.2, 1.0])
    values = np.concatenate([values, values[:, [1]]], axis=1)  # carrier 3 has the effects of carrier 1
    assert representative_carriers(values, np.array([5, 9, 5, 8]), np.arange(4), 1) == [3]


def test_a_short_carrier_that_agrees_worse_is_not_chosen():
    values = values_of(0, [0.1, 2.0, 0.1, 0.1, 0.1])
    assert representative_carriers(values, np.array([9, 1, 8, 9, 9]), np.arange(5), 1) == [2]


def test_among_carriers_in_which_all_tokens_are_alike_the_shortest_are_chosen():
    assert representative_carriers(np.ones((5, 4, 2)), np.array([3, 2, 3, 1]), np.arange(4), 2) == [1, 3]
