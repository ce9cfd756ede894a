"""The whole way once, on a tiny model."""

import tiny
from stickytoken import detect
from stickytoken.corpora.corpus import collect_sentences
from stickytoken.methods.std.settings import StdSettings


def test_detect_runs_end_to_end_and_is_opened_again(encoder, tmp_path):
    settings = StdSettings(sentences=40, pairs=60, scoring_pairs=2, validation_pairs=6, candidate_share=0.2)
    corpus = collect_sentences(tiny.sentences(60), "test")
    run = detect(encoder, sentences=corpus, settings=settings, out=tmp_path / "run")
    assert run.result.scored == run.record.model.available
    assert run.tokens["verdict"].is_not_null().sum() == run.result.candidates
    again = detect(encoder, sentences=corpus, settings=settings, out=tmp_path / "run")
    assert again.tokens.equals(run.tokens)
