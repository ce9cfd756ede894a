"""An explanation and an impact of a run alone: its model is loaded as the run loaded it."""

import pytest

import impact_files
from stickytoken import ExplainSettings, ImpactSettings, explain, impact, load_encoder, open_run
from stickytoken.errors import InputError, ModelError

SETTINGS = ExplainSettings(carriers=6, benign=4, attribution=False)


def test_the_run_s_model_and_its_worst_tokens_are_explained(planted_run, planted_folder):
    run = open_run(planted_run)
    worst = run.sticky["token_id"].to_list()[:3]
    found = explain(run=str(planted_run), settings=SETTINGS)
    assert [token.token_id for token in found.tokens] == worst
    named = explain(load_encoder(planted_folder), worst, run=run, settings=SETTINGS)
    assert found.measures.equals(named.measures)


def test_without_a_model_and_a_run_or_without_tokens_it_says_what_to_pass(encoder, finished_run):
    with pytest.raises(InputError, match="explain needs a model or a run: pass"):
        explain(tokens=["river"])
    with pytest.raises(InputError, match="no tokens are named: pass tokens, or a run"):
        explain(encoder)
    assert finished_run.sticky.is_empty()
    with pytest.raises(InputError, match="found no sticky tokens: name the tokens"):
        explain(encoder, run=finished_run)
    with pytest.raises(InputError, match="impact needs a model or a run: pass"):
        impact(tasks=["absent.jsonl"])


def test_a_model_that_is_gone_is_named_with_the_run(planted_run, tmp_path):
    moved = tmp_path / "run"
    moved.mkdir()
    record = (planted_run / "run.json").read_text("utf-8")
    for file in planted_run.iterdir():
        if file.is_file():
            (moved / file.name).write_bytes(file.read_bytes())
    name = open_run(planted_run).record.model.name
    (moved / "run.json").write_text(record.replace(name, str(tmp_path / "gone")), "utf-8")
    with pytest.raises(ModelError, match=r"the model of .*run: .*gone.*if it has moved, pass it as encoder"):
        explain(run=moved, settings=SETTINGS)


def test_the_impact_of_a_run_needs_no_model(planted_run, tmp_path):
    tasks = [impact_files.sts(tmp_path)]
    settings = ImpactSettings(resamples=100, sticky=1)
    found = impact(tasks=tasks, run=planted_run, settings=settings, out=tmp_path / "impact")
    worst = open_run(planted_run).sticky["token_id"][0]
    measured = {token.token_id: token.kind for token in found.record.tokens}
    assert measured[worst] == "sticky"
    assert list(measured.values()).count("sticky") == 1
