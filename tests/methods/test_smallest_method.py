"""A method that says only what it must: everything else has a default that fits all commands."""

import numpy as np
import pytest

import norm_method
import planted
from stickytoken import check, detect, judge, load_encoder, open_run, probe, report
from stickytoken.errors import InputError
from stickytoken.methods.registry import register, unregister


@pytest.fixture(scope="module")
def run(planted_folder, tmp_path_factory):
    register(norm_method.ENTRY)
    out = tmp_path_factory.mktemp("norm") / "run"
    yield detect(str(planted_folder), method="norm", sentences=planted.small_corpus(), out=out)
    unregister("norm")


def test_the_table_holds_its_columns(run):
    rows = load_encoder(run.record.model.name).model[0].embedding.weight.detach().numpy()
    norms = np.linalg.norm(rows[run.tokens["token_id"].to_numpy()], axis=1)
    np.testing.assert_allclose(run.tokens["norm"], norms, rtol=1e-6)
    np.testing.assert_allclose(run.tokens["z"], (norms - norms.mean()) / norms.std(), atol=1e-5)
    assert run.tokens["lift"].is_null().all()
    assert run.result.sticky == len(run.sticky) > 0
    assert open_run(run.path).tokens.equals(run.tokens)


def test_the_command_line_shows_them(run):
    shown = planted.command("show", run.path)
    assert shown.exit_code == 0, shown.stderr
    assert "z-score" in shown.stdout
    assert "judge" not in shown.stdout + shown.stderr  # which would refuse the run
    assert planted.command("card", run.path).exit_code == 0


def test_reports_do_not_promise_what_was_not_measured(run):
    for kind in ("md", "html"):
        page = report(run, format=kind)
        assert "z-score" in page
        assert "needs no repair" not in page
    settings, out = norm_method.NormSettings(cut=1e9), run.path.parent / "clean"
    clean = detect(run.record.model.name, settings=settings, sentences=planted.small_corpus(), out=out)
    page = report(clean, format="md")
    assert "cannot tell whether any does" in page
    assert "stickytoken judge" not in page


def test_checks_take_its_verdicts_and_what_needs_lifts_refuses_it(run):
    checked = check(run)
    assert checked.outcome.value == "closed"
    assert not any("no verdict" in each for each in checked.incomplete)
    with pytest.raises(InputError, match="cannot judge another corpus"):
        judge(run, planted.small_corpus())
    with pytest.raises(InputError, match="does not measure single tokens"):
        probe(run.record.model.name, ["river"], method="norm", sentences=planted.small_corpus())
