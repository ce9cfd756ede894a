"""A detection method outside of the package that says only what it must: norms of embedding rows.

Everything that the package knows of it is its entry in the registry.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stickytoken.encoders.mean_similarity import mean_similarity
from stickytoken.insertion import Insertion
from stickytoken.inspection import inspector_of
from stickytoken.methods import Column, MethodEntry
from stickytoken.methods.base import Method, PlanRecord, ResultRecord


@dataclass(frozen=True, slots=True)
class NormSettings:
    """Settings of the norm method.

    Attributes:
        cut: Smallest distance of a sticky token's norm from the mean norm, in standard deviations.
        insertion: How copies are inserted.
        seed: Seed of all random sampling.
    """

    cut: float = 4.0
    insertion: Insertion = Insertion.IDS
    seed: int = 42


class NormPlan(PlanRecord):
    rows: int


class NormMethod(Method):
    """A row whose norm lies many deviations from the mean norm is sticky."""

    plan_record = NormPlan
    result_record = ResultRecord
    columns = ("token_id", "token", "decoded", "category", "lift", "norm", "z", "verdict")
    listed = reported = (Column("norm", "norm", 3), Column("z", "z-score", 2))
    ranked_by = Column("z", "z-score", 2)
    measures_lift = False

    def make_plan(self, job, progress):
        u = mean_similarity(job.encoder)
        return NormPlan(mean_similarity=u.value, mean_similarity_entries=u.entries, rows=len(job.tokens))

    def compute(self, job, plan, vocabulary, run):
        ids = np.array([token.id for token in job.tokens])
        norms = np.linalg.norm(inspector_of(job.encoder).embedding_matrix()[ids], axis=1).astype(float)
        z = (norms - norms.mean()) / norms.std()
        verdict = np.where(np.abs(z) > job.settings.cut, "sticky", "benign")
        table = pl.DataFrame({"token_id": ids, "norm": norms, "z": z, "verdict": verdict})
        table = table.with_columns(lift=pl.lit(None, pl.Float64))
        tokens = table.join(vocabulary, on="token_id", how="left").select(self.columns).sort("token_id")
        sticky = int((verdict == "sticky").sum())
        return tokens, ResultRecord(sticky=sticky, sequences=0, seconds=0.0)

    def headline(self, run):
        return f"{run.model_name}: the rows of {run.result.sticky} tokens have an unusual norm."

    def how(self, settings):
        return f"A token is sticky if its row's norm lies {settings.number('cut'):g} SD from the mean norm."


ENTRY = MethodEntry("norm", "norms of embedding rows", NormSettings, takes_pairs=False, load=NormMethod)
