"""Evidence for single tokens is what a detection stores for them."""

from dataclasses import replace

import pytest

import planted
from stickytoken import detect
from stickytoken.detection import probe
from stickytoken.insertion import Insertion

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
