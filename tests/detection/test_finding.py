"""Find the run of a model."""

import pytest

import profiled
import scanned
from embedding_server import Behaviour, EmbeddingServer
from naming import naming, says
from stickytoken import load_encoder
from stickytoken.detection.finding import find_run
from stickytoken.errors import InputError, ModelError


def test_an_endpoint_without_a_run_over_its_vocabulary_may_have_one_over_candidates(tmp_path):
    with pytest.raises(InputError, match=naming("openai:mini", "folder of a run", "candidates")):
        find_run("openai:mini", tmp_path)


def test_what_was_chosen_for_a_run_that_nobody_named_is_noted(tmp_path):
    model = profiled.planted_model(0.0)
    run = profiled.detect_profile(load_encoder(model), tmp_path / "runs" / "own")
    settings, corpus = find_run(model, tmp_path / "runs").notes
    assert says(settings, "confirming_texts 24")
    assert says(corpus, run.record.corpus.source)
    assert find_run(run, tmp_path / "runs").notes == []


@pytest.mark.slow
def test_a_server_that_has_changed_its_model_has_no_run(tmp_path, monkeypatch):
    """The answers that are cached are those of the run's model."""
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    profiled.planted_model(2, token=scanned.STICKY).save(str(tmp_path / "model"))
    server = EmbeddingServer(load_encoder(tmp_path / "model", device="cpu"), Behaviour())
    with server.running() as url:
        encoder = load_encoder(f"{url}#mini", tokenizer=str(tmp_path / "model"))
        run = profiled.detect_profile(encoder, tmp_path / "runs" / "mini", insertion="words")
        for source in (encoder, f"{url}#mini"):
            assert find_run(source, tmp_path / "runs").run.path == run.path
        server.behaviour.wrong = True
        for source in (encoder, f"{url}#mini"):
            with pytest.raises(ModelError, match=naming("mini", "changed")):
                find_run(source, tmp_path / "runs")
