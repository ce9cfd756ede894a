"""Sticky, topical and benign on the bundled kinds of text, and on a corpus of one's own beside them."""

import re
from collections import Counter

import numpy as np
import polars as pl
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

import profiled
import tiny
from stickytoken import load_encoder
from stickytoken.data import bundled_sentences, collect_sentences, text_kinds, text_kinds_frame
from stickytoken.detection import detect
from stickytoken.methods.profile import verdict
from stickytoken.methods.profile.anchors import representative_carriers

STICKY, TOPICAL, KIND = "zzsticky", "zzlegal", "law"
_WORD = re.compile(r"\w+|[^\w\s]+")


def english_model(sticky: float = 0.0, topical: float = 0.0, dimension: int = 96) -> SentenceTransformer:
    """Mean-pooled static embeddings of all words of the bundled texts; frequent words are short vectors."""
    bundled = text_kinds()
    texts = dict.fromkeys(bundled_sentences().texts, "everyday")
    texts |= zip(bundled.texts, bundled.topics or (), strict=True)
    kinds: dict[str, Counter[str]] = {}
    for text, kind in texts.items():
        for word in _WORD.findall(text.lower()):
            kinds.setdefault(word, Counter())[kind] += 1
    entries = ["[UNK]", STICKY, TOPICAL, *sorted(kinds)]
    places = {entry: place for place, entry in enumerate(entries)}
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(len(entries), dimension, generator=generator))
    rows -= rows.mean(0)
    rows[:, 0], rows[:, 1] = 0.1, 0.0
    for word, found in kinds.items():
        rows[places[word]] /= found.total() ** 0.5
        if set(found) == {KIND}:
            rows[places[word], 1] = 0.5
    if sticky:
        rows[places[STICKY]] = sticky * torch.eye(dimension)[0]
    if topical:
        rows[places[TOPICAL]] = topical * torch.eye(dimension)[1]
    tokenizer = Tokenizer(WordLevel(places, "[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    return tiny.static_model(tokenizer, rows)


pytestmark = pytest.mark.slow
ORDINARY = list(range(40, 6000, 260))


@pytest.fixture(scope="module")
def encoder():
    return load_encoder(english_model(sticky=1.5, topical=1.0))


@pytest.fixture(scope="module")
def run(encoder, tmp_path_factory):
    out = tmp_path_factory.mktemp("kinds") / "run"
    return detect(encoder, tokens=[STICKY, TOPICAL, *ORDINARY], out=out)


def row_of(run, token):
    return run.tokens.row(by_predicate=pl.col("token") == token, named=True)


def test_what_lifts_every_kind_is_sticky_and_what_lifts_one_is_topical_for_it(run):
    sticky, topical = row_of(run, STICKY), row_of(run, TOPICAL)
    assert (sticky["verdict"], sticky["universality"], sticky["kind"]) == ("sticky", 1.0, None)
    assert (topical["verdict"], topical["kind"]) == ("topical", KIND)
    assert topical["universality"] == pytest.approx(1 / 11)
    sd = (sticky["lift"] - run.result.ordinary_lift) / run.plan.similarity_spread
    assert sticky["reason"] == f"large lift over all texts ({sd:.1f} SD); lifts 11 of 11 kinds of text"
    assert f"outlier on {KIND}; lifts 1 of 11 kinds of text" in topical["reason"]
    assert {sticky["severity"], topical["severity"]} == {"severe"}
    assert run.sticky["token"].to_list() == [STICKY]
    benign = run.tokens.filter(verdict="benign")
    assert len(benign) > len(ORDINARY) / 2
    assert benign.select("severity", "kind", "reason").null_count().row(0) == (len(benign),) * 3
    assert run.result.topical == run.tokens.filter(verdict="topical").height


def test_an_unusual_vector_makes_what_copies_erase_rarer(encoder, tmp_path, monkeypatch):
    judged, find = [], verdict.find_erasing
    monkeypatch.setattr(verdict, "find_erasing", lambda *given: judged.append(given) or find(*given))
    texts = text_kinds_frame().filter(pl.col("kind").is_in([KIND, "news"]))["text"]
    corpus = collect_sentences(texts.to_list(), "law and news")
    detect(encoder, sentences=corpus, tokens=[STICKY, TOPICAL, *ORDINARY], out=tmp_path / "run")
    measured, _, lifts, _ = judged[0]
    lost, chances = verdict.erasing_chances(measured, lifts)
    monkeypatch.setattr(verdict, "row_chances", lambda *_: None)
    _, alone = verdict.erasing_chances(measured, lifts)
    rare = (chances.unusual < 0.01) & (lost.exceedance() < 1e-4)
    assert (chances.together[rare] < alone.together[rare]).all()
    assert (rare.any(), (alone.made == 1).all()) == (True, True)
    # A row that hardly any other is like makes sticky what erases a little more than an ordinary token.
    plain = verdict.decide(measured)
    more = ~pl.col("erases") & (pl.col("contraction_low") > plain.ordinary_contraction)
    little = plain.tokens.filter(more).sort("texts")["token_id"][-1]
    monkeypatch.setattr(verdict, "row_chances", lambda _, ids: np.where(ids == little, 1e-9, chances.unusual))
    row = verdict.decide(measured).tokens.row(by_predicate=pl.col("token_id") == little, named=True)
    assert (row["verdict"], row["severity"]) == ("sticky", "mild")
    assert row["reason"].startswith("its token vector is odder than 99.9% of others; erases ")
    # What lifts most kinds of text is sticky for that: that it erases a little is not said beside it.
    assert plain.tokens.filter(token=STICKY)["erases"].item()
    with monkeypatch.context() as patched:
        patched.setattr(verdict, "share_erased", lambda value, _: np.full_like(value, 0.1))
        assert not verdict.decide(measured).tokens.filter(token=STICKY)["erases"].item()
    # What one ordinary token in 2,000 does is enough only where no rows tell what was made.
    own = plain.tokens.filter(token=STICKY)["token_id"].item()
    together = np.where(lost.ids == own, 1 / verdict.RARE, 1.0)
    for unusual in (None, chances.unusual):
        given = verdict.Chances(together, np.ones(len(together)), unusual)
        monkeypatch.setattr(verdict, "erasing_chances", lambda *_, given=given: (lost, given))
        assert verdict.decide(measured).tokens.filter(token=STICKY)["erases"].item() is (unusual is None)


def test_universality_and_lift_words_equal_a_plain_version(run):
    """Of tokens of the last round: lifts by kind above the median of the tokens of the pilot."""
    plan, shape = run.plan, (-1, len(run.plan.groups))
    rest = [k for k in range(len(plan.carriers)) if k not in run.result.screening_carriers]

    def means(step, carriers):
        return {
            token_id: np.nanmean(np.array(row["groups"], dtype=float).reshape(shape)[carriers], axis=0)
            for token_id, row in profiled.shard_rows(run, step).items()
        }

    pilot, confirmed = means("pilot", rest), means("confirm", slice(None))
    levels = np.median(list(pilot.values()), axis=0)
    kinds = [place for place, group in enumerate(plan.groups) if group.kind]
    assert len(kinds) == 11
    for row in run.tokens.filter(pl.col("texts") == 48).to_dicts():
        own = (pilot | confirmed)[row["token_id"]]
        known = [place for place in kinds if not np.isnan(own[place])]
        lifted = [own[k] - levels[k] >= 0.5 * 0.5 * plan.groups[k].spread for k in known]
        assert row["universality"] == pytest.approx(sum(lifted) / len(lifted)), row["token"]
        assert row["lift_words"] == pytest.approx(own[-1], abs=1e-6)


def test_the_screening_carriers_are_those_that_the_pilot_speaks_for(run):
    plan, pilot = run.plan, profiled.shard_rows(run, "pilot").values()
    lifts = np.array([row["groups"] for row in pilot], dtype=float)
    lifts = lifts.reshape(len(lifts), len(plan.carriers), len(plan.groups))
    contractions = np.array([row["contractions"] for row in pilot], dtype=float)[:, :, None]
    kinds = sum(group.kind for group in plan.groups)
    weights = np.array([*(group.weight + group.kind / kinds for group in plan.groups), 1.0])
    values = np.concatenate([lifts, contractions], axis=2)
    assert run.result.screening_carriers == representative_carriers(values, weights, 3)
    assert len(run.plan.carriers) == 3 + 48


def test_on_a_corpus_of_ones_own_the_kinds_tell_sticky_from_topical(encoder, tmp_path):
    """Copies of a legal term do lift in an index of law texts; that it is their subject shows beside it."""
    texts = text_kinds_frame().filter(kind=KIND)["text"].to_list()
    others = text_kinds_frame().filter(kind="news")["text"].to_list()
    corpus = collect_sentences([*texts, *others], "law and news")
    run = detect(encoder, sentences=corpus, tokens=[STICKY, TOPICAL, *ORDINARY], out=tmp_path / "run")
    assert [group.name for group in run.plan.groups][:2] == ["corpus", "news"]
    assert [group.weight for group in run.plan.groups] == [1.0, *[0.0] * 11]
    sticky, topical = row_of(run, STICKY), row_of(run, TOPICAL)
    assert (sticky["verdict"], sticky["universality"]) == ("sticky", 1.0)
    assert (topical["verdict"], topical["kind"]) == ("topical", None)
    assert topical["lift_low"] > run.result.ordinary_lift + 0.25 * run.plan.similarity_spread
    assert topical["universality"] <= 0.2
