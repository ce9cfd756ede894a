"""What copies do to documents: measured against the definition, and predicted."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import spearmanr

import planted
import profiled
import scanned
from stickytoken import Cleaner, load_encoder, open_run, scan
from stickytoken.cleaning import find_spans
from stickytoken.errors import InputError, RunError
from stickytoken.scanning.scan import scan_documents

COUNTS = (2, 3, 4, 6, 8, 12, 16, 24)
PLANTED = range(40, 64)
QUERIES = profiled.sentences(40, seed=9)
CLEANER = Cleaner(scanned.RULES)


@pytest.fixture(scope="module")
def encoder(scanned_run):
    return load_encoder(scanned_run.parent / "model", device="cpu")


@pytest.fixture(scope="module")
def texts():
    """Clean documents, and documents with different numbers of copies in different places."""
    found = scanned.documents(120)
    for number in PLANTED:
        copies = scanned.copies(4 + COUNTS[number % len(COUNTS)])
        found[number] = f"{found[number]} {copies}" if number % 3 else f"{copies} {found[number]}"
    return found


@pytest.fixture(scope="module")
def measured(scanned_run, encoder, texts):
    return scan_documents(scanned_run, texts, encoder=encoder, effect="measured", queries=QUERIES)


def units(encoder, texts):
    vectors = encoder.encode(texts)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_shift_is_the_mean_change_of_similarity(measured, encoder, texts):
    rest = [CLEANER(texts[number]).strip() for number in PLANTED]
    queries = units(encoder, QUERIES)
    after, before = (
        units(encoder, [texts[number] for number in PLANTED]) @ queries.T,
        units(encoder, rest) @ queries.T,
    )
    assert measured.documents["number"].to_list() == list(PLANTED)
    np.testing.assert_allclose(measured.documents["shift"], (after - before).mean(axis=1), atol=1e-6)
    spread = measured.result.effect.spread
    np.testing.assert_allclose(measured.documents["effect"], measured.documents["shift"] / spread)
    worst = measured.worst
    assert worst["effect"].is_sorted(descending=True)
    assert worst["severity"][0] == "severe"
    assert measured.result.matter == worst["matters"].sum() > 12
    assert set(worst.filter("matters")["severity"]) <= {"serious", "severe"}


def test_ranks_are_counted_among_clean_documents(measured, encoder, texts):
    assert measured.result.effect.reference == 96
    row = measured.documents.to_dicts()[5]
    queries = units(encoder, QUERIES)
    clean = units(encoder, [text for text in texts if not find_spans(text, scanned.RULES)]) @ queries.T
    text = texts[row["number"]]
    with_copies = units(encoder, [text]) @ queries.T
    without = units(encoder, [CLEANER(text).strip()]) @ queries.T
    passed = (clean < with_copies).mean(axis=0) - (clean < without).mean(axis=0)
    assert row["rise"] == pytest.approx(passed.mean(), abs=2e-3)
    assert row["moves_up"] == pytest.approx((passed >= 0.1).mean(), abs=0.03)


def test_a_prediction_is_the_way_that_a_document_was_drawn(scanned_run, encoder, texts):
    """Toward the mean of what the removed tokens draw texts to, as far as its own vector says."""
    run = open_run(scanned_run)
    effects = run.method.token_effects(run)
    texts = [*texts, f"{texts[0]} {scanned.copies()} {profiled.WORDS[1]} " + f"{profiled.WORDS[9]} " * 8]
    found = scan(run, texts, encoder=encoder, effect="predicted", queries=QUERIES)
    clean = [text for text in texts if not find_spans(text, scanned.RULES)]
    center, queries = units(encoder, clean).mean(axis=0), units(encoder, QUERIES).mean(axis=0)
    mixtures = 0
    for number, predicted in found.select("number", "predicted").iter_rows():
        text = texts[number]
        whole, rest = (encoder.tokenize([each])[0].ids for each in (text, CLEANER(text).strip()))
        removed = Counter(whole) - Counter(rest)
        mixtures += len(removed) > 1
        rows = [effects.ids.tolist().index(token_id) for token_id in removed]
        contraction = np.minimum(effects.contraction[rows], 0.9)
        shares = np.array(list(removed.values())) / (1 - contraction)
        way = shares @ effects.pull[rows] / (shares @ contraction) - center
        covered = np.clip((units(encoder, [text])[0] - center) @ way / (way @ way), 0, 1)
        assert predicted == pytest.approx(covered * (way @ queries), abs=1e-5)
    assert mixtures


def test_a_prediction_needs_no_document_without_copies(measured, scanned_run, encoder, texts):
    both = measured.documents.select("shift", "predicted")
    agreement = measured.result.effect.agreement
    assert spearmanr(both["shift"], both["predicted"]).statistic == pytest.approx(agreement)
    alone = scan_documents(scanned_run, texts, encoder=encoder, effect="predicted", queries=QUERIES)
    np.testing.assert_allclose(alone.documents["predicted"], both["predicted"], atol=1e-6)
    assert alone.documents["shift"].null_count() == len(PLANTED)
    assert alone.result.effect.agreement is None
    assert alone.documents["effect"].null_count() == 0


def test_clean_documents_stand_for_queries_and_copies_alone_have_no_effect(scanned_run, encoder, texts):
    found = scan_documents(scanned_run, [*texts, scanned.copies()], encoder=encoder, effect="measured")
    effect = found.result.effect
    assert (effect.queries, effect.reference, effect.nothing_left) == (48, 48, 1)
    assert effect.queries_from == "the first words of 48 documents"
    last = found.documents.to_dicts()[-1]
    assert (last["effect"], last["severity"]) == (None, None)
    assert found.worst["number"][-1] == len(texts)
    found = scan_documents(scanned_run, ["a text"], encoder=encoder, effect="measured")
    assert (found.result.effect, found.result.found) == (None, 0)


@pytest.mark.parametrize("effect", ["measured", "predicted"])
def test_copies_that_the_model_does_not_read_have_no_effect(scanned_run, encoder, texts, effect, monkeypatch):
    monkeypatch.setattr("stickytoken.scanning._passes.content_limit", lambda _: 24)
    unread = f"{' '.join(texts[:3])} {scanned.copies(12)}"
    assert len(encoder.tokenize([" ".join(texts[:3])])[0].ids) > 24
    found = scan(scanned_run, [*texts, unread], encoder=encoder, effect=effect).row(-1, named=True)
    assert (found["number"], found["predicted"]) == (len(texts), 0)
    assert found["shift"] == (0 if effect == "measured" else None)


def test_effects_are_kept_until_what_they_rest_on_changes(scanned_run, encoder, texts, tmp_path):
    def computed(documents, **options):
        steps = []
        scan(scanned_run, documents, encoder=encoder, out=tmp_path, progress=steps.append, **options)
        return [step.computed for step in steps if step.stage == "effects"]

    assert computed(texts, effect="measured", queries=QUERIES) == [24]
    assert computed(texts, effect="measured", queries=QUERIES) == [0]
    assert computed(texts, effect="measured", queries=QUERIES[1:]) == [24]


def test_what_effects_need_is_said(scanned_run, encoder, texts, tmp_path):
    def refused(saying, kind=InputError, documents=texts, **options):
        with pytest.raises(kind, match=saying):
            scan(scanned_run, documents, **options)

    refused("effect is 'guessed'", effect="guessed")
    refused("queries are given, but no effect", queries=QUERIES)
    refused("needed to compare the others with", documents=texts[30:50], encoder=encoder, effect="measured")
    run = planted.detect_thirty(encoder, tmp_path / "std")
    with pytest.raises(InputError, match="does not measure what a prediction needs"):
        scan(run, texts, encoder=encoder, effect="predicted")
    profiled.planted_model(1, token=scanned.STICKY).save(str(tmp_path / "other"))
    refused("with another model", RunError, encoder=load_encoder(tmp_path / "other"), effect="measured")
