"""Evidence for single tokens is what a detection stores for them."""

from dataclasses import replace

import pytest

import planted
from stickytoken import detect
from stickytoken.detection import probe
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion

UNAVAILABLE = 5  # "[unused0]"
METRICS = {"cosine": "", "euclidean": "_euclidean", "manhattan": "_manhattan"}


@pytest.mark.slow
@pytest.mark.parametrize("insertion", list(Insertion))
def test_a_probe_gives_the_numbers_that_a_detection_stores(encoder, tmp_path, insertion):
    settings = replace(planted.SMALL, insertion=insertion, seed=3)
    run = detect(encoder, sentences=planted.small_corpus(), settings=settings, out=tmp_path / "run")
    rows = run.tokens.filter(run.tokens["verdict"].is_not_null()).to_dicts()
    wanted = [row["token_id"] for row in rows][::-1]
    found = probe(encoder, wanted, sentences=planted.small_corpus(), settings=settings)
    assert [evidence.token_id for evidence in found] == wanted
    for evidence, row in zip(found, rows[::-1], strict=True):
        assert (evidence.token, evidence.category) == (row["token"], row["category"])
        assert evidence.lift == pytest.approx(row["lift"], abs=1e-6)
        assert evidence.pairs == 6
        for metric, ending in METRICS.items():
            assert evidence.validation_rate[metric] == row[f"validation_rate{ending}"]
    assert len({evidence.validation_rate["cosine"] for evidence in found}) > 3


def test_a_token_that_text_cannot_produce_is_probed_by_id_only(encoder):
    corpus = planted.small_corpus()
    with pytest.raises(InputError, match=r"cannot occur in text \(UNREACHABLE_SPECIAL\): probe it with ids"):
        probe(encoder, [55, UNAVAILABLE], sentences=corpus, settings=planted.SMALL)
    by_id = replace(planted.SMALL, insertion=Insertion.IDS)
    (evidence,) = probe(encoder, [UNAVAILABLE], sentences=corpus, settings=by_id)
    assert (evidence.token, evidence.category) == ("[unused0]", "UNREACHABLE_SPECIAL")
    assert 0 <= evidence.validation_rate["cosine"] <= 1

    for token_id in (-1, 125):
        with pytest.raises(InputError, match=f"no token id {token_id}: it has 0 to 124"):
            probe(encoder, [token_id], sentences=corpus, settings=planted.SMALL)
