"""The smallest detection method: how far the norm of an embedding row lies from the others' norms."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from stickytoken.encoders.views import mean_similarity
from stickytoken.insertion import Insertion
from stickytoken.inspection import inspector_of
from stickytoken.methods.base import Method, PlanRecord, ResultRecord
from stickytoken.methods.entry import SEED, Column, MethodEntry, Option, insertion_option


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
        found = pl.DataFrame(
            {"token_id": ids, "lift": [None] * len(ids), "norm": norms, "z": z, "verdict": verdict}
        )
        found = found.with_columns(pl.col("lift").cast(pl.Float64))
        tokens = found.join(vocabulary, on="token_id", how="left").select(self.columns).sort("token_id")
        sticky = int((verdict == "sticky").sum())
        return tokens, ResultRecord(sticky=sticky, sequences=0, seconds=0.0)

    def headline(self, run):
        return f"{run.model_name}: the rows of {run.result.sticky} tokens have an unusual norm."

    def how(self, settings):
        return f"A token is sticky if its row's norm lies {settings.number('cut'):g} SD from the mean norm."


ENTRY = MethodEntry(
    name="norm",
    summary="norms of embedding rows",
    options=(
        SEED,
        insertion_option(Insertion.IDS),
        Option("cut", float, "Call a token sticky beyond so many deviations.", "4"),
    ),
    takes_pairs=False,
    load=NormMethod,
)
