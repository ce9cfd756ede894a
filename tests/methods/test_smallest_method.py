"""A method that says only what it must: everything else has a default that fits all commands."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

import planted
from stickytoken import check, detect, judge, load_encoder, open_run, probe, report
from stickytoken.encoders.views import mean_similarity
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.inspection import inspector_of
from stickytoken.methods.base import Method, PlanRecord, ResultRecord
from stickytoken.methods.entry import SEED, Column, MethodEntry, Option, insertion_option
from stickytoken.methods.registry import register, unregister


@dataclass(frozen=True, slots=True)
class NormSettings:
    cut: float = 4.0
    insertion: Insertion = Insertion.IDS
    seed: int = 42


class NormMethod(Method[NormSettings, PlanRecord, ResultRecord]):
    """A row whose norm lies many deviations from the mean norm is sticky."""

    settings = NormSettings
    plan_record = PlanRecord
    result_record = ResultRecord
    columns = ("token_id", "token", "decoded", "category", "lift", "norm", "z", "verdict")
    listed = reported = (Column("norm", "norm", 3), Column("z", "z-score", 2))
    ranked_by = Column("z", "z-score", 2)
    measures_lift = False

    def make_plan(self, job, progress):
        u = mean_similarity(job.encoder)
        return PlanRecord(mean_similarity=u.value, mean_similarity_entries=u.entries)

    def compute(self, job, plan, vocabulary, run):
        ids = np.array([token.id for token in job.tokens])
        norms = np.linalg.norm(inspector_of(job.encoder).embedding_matrix()[ids], axis=1).astype(float)
        z = (norms - norms.mean()) / norms.std()
        verdict = np.where(np.abs(z) > job.settings.cut, "sticky", "benign")
        found = pl.DataFrame({"token_id": ids, "norm": norms, "z": z, "verdict": verdict})
        found = found.with_columns(lift=pl.lit(None, pl.Float64))
        tokens = found.join(vocabulary, on="token_id", how="left").select(self.columns).sort("token_id")
        sticky = int((verdict == "sticky").sum())
        return tokens, ResultRecord(sticky=sticky, sequences=0, seconds=0.0)

    def headline(self, run):
        return f"{run.model_name}: the rows of {run.result.sticky} tokens have an unusual norm."

    def how(self, settings):
        return f"A token is sticky if its row's norm lies {settings.number('cut'):g} SD from the mean norm."


OPTIONS = (SEED, insertion_option(Insertion.IDS), Option("cut", float, "Sticky beyond it.", "4"))
ENTRY = MethodEntry("norm", "norms of embedding rows", OPTIONS, takes_pairs=False, load=NormMethod)


@pytest.fixture(scope="module")
def run(planted_folder, tmp_path_factory):
    register(ENTRY)
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
    settings, out = NormSettings(cut=1e9), run.path.parent / "clean"
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
