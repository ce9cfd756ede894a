"""Evidence of the profile method for named tokens: what a run of them stores, and the symptom curve."""

from dataclasses import replace

import pytest

import planted
import profiled
import tiny
from naming import naming
from stickytoken import load_encoder
from stickytoken.data import collect_sentences
from stickytoken.detection import probe
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.insertion import Insertion
from stickytoken.methods.symptoms import SYMPTOM_COPIES

STICKY, RIVER, UNAVAILABLE = 34, 55, 5  # "!", "river", "[unused0]"


def probed(encoder, ids, settings=profiled.SMALL, **options):
    return probe(encoder, ids, sentences=profiled.corpus(), settings=settings, **options)


@pytest.mark.parametrize(
    "insertion",
    [
        Insertion.IDS,
        *(pytest.param(insertion, marks=pytest.mark.slow) for insertion in (Insertion.TEXT, Insertion.WORDS)),
    ],
)
def test_a_probe_gives_the_numbers_that_a_detection_of_these_tokens_stores(encoder, tmp_path, insertion):
    ids = [200, RIVER, STICKY]
    settings = replace(profiled.SMALL, insertion=insertion)
    run = profiled.detect_profile(encoder, tmp_path / "run", tokens=ids, insertion=insertion)
    stored = {row["token_id"]: row for row in run.tokens.to_dicts()}
    probes = probed(encoder, ids, settings)
    assert [evidence.token_id for evidence in probes] == ids
    for evidence in probes:
        row = stored[evidence.token_id]
        shared = set(row) & set(evidence.__slots__)
        assert len(shared) >= 14
        for name in shared:
            value = getattr(evidence, name)
            expected = pytest.approx(row[name], abs=1e-6) if isinstance(row[name], float) else row[name]
            assert value == expected, name
        assert evidence.mean_similarity == run.mean_similarity
        assert evidence.ordinary_contraction == pytest.approx(run.result.ordinary_contraction, abs=1e-6)
    assert [evidence.verdict for evidence in probes] == ["benign", "benign", "sticky"]


@pytest.mark.slow
def test_the_symptom_curve_is_of_the_carriers_and_anchors_of_the_run(model, encoder, tmp_path):
    run = profiled.detect_profile(encoder, tmp_path / "run", tokens=[STICKY])
    (evidence,), plan = probed(encoder, [STICKY]), run.plan
    curve = evidence.curve
    assert curve.copies == [0, *SYMPTOM_COPIES]
    # Ordinary tokens beside it, on the same pairs.
    ordinary = (curve.ordinary_below, curve.ordinary_above)
    assert [len(side) for side in ordinary] == [len(curve.copies)] * 2
    assert [side[0] for side in ordinary] == pytest.approx([curve.below[0], curve.above[0]])
    assert curve.below[-1] > curve.ordinary_below[-1] + 0.1
    directions = model.encode(plan.anchors, normalize_embeddings=True)
    similarities = model.encode(plan.carriers[:12], normalize_embeddings=True) @ directions.T
    below = similarities < run.mean_similarity
    for copies, under, over in zip(curve.copies, curve.below, curve.above, strict=True):
        changed = [text + planted.PLANTED * copies for text in plan.carriers[:12]]
        after = model.encode(changed, normalize_embeddings=True) @ directions.T
        assert (under, over) == pytest.approx((after[below].mean(), after[~below].mean()), abs=1e-5)


def test_a_token_that_text_cannot_produce_is_probed_by_id_only(encoder):
    (evidence,) = probed(encoder, [UNAVAILABLE])  # ids are this method's default
    assert (evidence.token, evidence.category) == ("[unused0]", "UNREACHABLE_SPECIAL")
    assert (evidence.verdict, evidence.texts) == ("benign", 12)
    as_text = replace(profiled.SMALL, insertion="text")
    with pytest.raises(InputError, match=naming("UNREACHABLE_SPECIAL", "insert")):
        probed(encoder, [UNAVAILABLE], as_text)
    with pytest.warns(StickyTokenWarning, match=naming("'[unused0]'", "UNREACHABLE_SPECIAL")):
        (evidence,) = probed(encoder, [RIVER, UNAVAILABLE], as_text)
    assert evidence.token_id == RIVER
    for token_id in (-1, 365):
        with pytest.raises(InputError, match=naming("token id", token_id, 364)):
            probed(encoder, [token_id])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "std"}, naming("'std'")),
        ({"settings": None, "method": "guess"}, naming("'guess'", "profile", "std")),
    ],
    ids=["std", "unknown"],
)
def test_what_cannot_be_probed_is_refused(encoder, options, message):
    with pytest.raises(InputError, match=message):
        probed(encoder, [RIVER], **({"settings": profiled.SMALL} | options))


@pytest.mark.slow
def test_the_curve_ends_where_the_model_reads_no_more(tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path, words=profiled.WORDS), normalize=True)
    corpus = collect_sentences([" ".join(text.split()[:3]) for text in profiled.sentences(600)], "test")
    settings = replace(profiled.SMALL, copies=(1,), insertion="text")
    for length, copies in ((12, [0, 1]), (24, [0, 1, 2]), (64, [0, 1, 2, 3, 4, 6])):
        model.max_seq_length = length
        encoder = load_encoder(model)
        (evidence,) = probe(encoder, [RIVER], sentences=corpus, settings=settings)
        assert evidence.curve.copies == copies
        assert len(evidence.curve.below) == len(evidence.curve.ordinary_above) == len(copies)
