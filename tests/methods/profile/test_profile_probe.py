"""Evidence of the profile method for named tokens: what a run of them stores."""

from dataclasses import replace

import pytest

import profiled
from naming import naming
from stickytoken.detection import probe
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.insertion import Insertion

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
        assert evidence.ordinary_contraction == pytest.approx(run.result.ordinary_contraction, abs=1e-6)
    assert [evidence.verdict for evidence in probes] == ["benign", "benign", "sticky"]


def test_a_token_that_text_cannot_produce_is_probed_by_id_only(encoder):
    (evidence,) = probed(encoder, [UNAVAILABLE])  # ids are this method's default
    assert (evidence.token, evidence.category) == ("[unused0]", "UNREACHABLE_SPECIAL")
    assert (evidence.verdict, evidence.texts) == ("benign", 24)
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
