"""A detection method outside of the package: rise of similarities by copies behind a few sentences.

Everything that the package knows of it is its entry in the registry.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import polars as pl

from stickytoken.encoders.views import mean_similarity
from stickytoken.insertion import Insertion, Placement, copies_as_ids, copies_as_text
from stickytoken.measurement.engine import Shard, compute_shard
from stickytoken.methods.base import Method, PlanRecord, ResultRecord, evidence_stage
from stickytoken.methods.entry import (
    SEED,
    Column,
    MethodEntry,
    Option,
    PlanTexts,
    insertion_option,
)
from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.registry import register, unregister
from stickytoken.unit_vectors import unit_vectors

NAME = "toy"


@dataclass(frozen=True, slots=True)
class ToySettings:
    texts: int = 6
    repeats: int = 4
    cut: float = 3.0
    insertion: Insertion = Insertion.IDS
    seed: int = 42


class ToyPlan(PlanRecord):
    carriers: list[str]
    anchors: list[str]


class ToyResult(ResultRecord):
    measured: int
    typical: float


@dataclass(frozen=True, slots=True)
class ToyEvidence:
    token_id: int
    token: str
    lift: float


@dataclass(frozen=True)
class ToyStage:
    carriers: tuple
    anchors: np.ndarray
    before: np.ndarray
    repeats: int
    name: str = "toy"
    precision: None = None

    @property
    def probes_per_token(self):
        return len(self.carriers)

    def probes(self, token):
        insert = copies_as_text if isinstance(self.carriers[0], str) else copies_as_ids
        return [insert(token, carrier, Placement.SUFFIX, self.repeats) for carrier in self.carriers]

    def measure(self, token, vectors):
        return {"lift": float((unit_vectors(vectors) @ self.anchors.T - self.before).mean())}


class ToyMethod(Method[ToySettings, ToyPlan, ToyResult]):
    """A lift that is many deviations above the median is sticky."""

    settings = ToySettings
    plan_record = ToyPlan
    result_record = ToyResult
    columns = ("token_id", "token", "decoded", "category", "lift", "score", "verdict")
    listed = (Column("lift", "lift", 4), Column("score", "toy score", 1))
    reported = listed[::-1]
    ranked_by = listed[1]

    def make_plan(self, job, progress):
        texts = sorted(job.sentences.texts, key=lambda text: (len(text), text))
        u = mean_similarity(job.encoder)
        count = job.settings.texts
        return ToyPlan(
            mean_similarity=u.value,
            mean_similarity_entries=u.entries,
            carriers=texts[:count],
            anchors=texts[count : 4 * count],
        )

    def compute(self, job, plan, vocabulary, run):
        rows = run(_stage(job, plan), job.tokens)
        lifts = rows["lift"].to_numpy()
        spread = float(np.median(np.abs(lifts - np.median(lifts)))) or 1.0
        score = (pl.col("lift") - float(np.median(lifts))) / spread
        verdict = pl.when(score > job.settings.cut).then(pl.lit("sticky")).otherwise(pl.lit("benign"))
        tokens = rows.select("token_id", "lift", score=score, verdict=verdict)
        tokens = tokens.join(vocabulary, on="token_id", how="left").select(self.columns).sort("token_id")
        sticky = int((tokens["verdict"] == "sticky").sum())
        cost = {"sequences": run.cost.sequences, "seconds": round(run.cost.seconds, 1)}
        typical = float(np.median(lifts))
        return tokens, ToyResult(sticky=sticky, measured=len(tokens), typical=typical, **cost)

    def probe(self, job, progress):
        stage = _stage(job, self.make_plan(job, progress))
        rows, _ = compute_shard(stage, Shard(0, tuple(job.tokens)), job.encoder)
        return [
            ToyEvidence(token.id, token.text, row["lift"])
            for token, row in zip(job.tokens, rows, strict=True)
        ]

    def evidence_stage(self, job, plan):
        vectors = unit_vectors(job.encoder.encode(plan.anchors))
        anchors = AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1))
        return evidence_stage(job, plan.carriers, plan.anchors, anchors, plan.mean_similarity)

    def texts(self, plan):
        return PlanTexts(plan.carriers, plan.anchors, by_topic=False)

    def headline(self, run):
        return f"{run.model_name}: {run.result.sticky} of {run.result.measured} tokens are sticky to a toy."

    def how(self, settings):
        return f"A toy put {settings.text('repeats')} copies behind {settings.number('texts'):g} texts."


def _stage(job, plan):
    carriers, anchors = plan.carriers, unit_vectors(job.encoder.encode(plan.anchors))
    before = unit_vectors(job.encoder.encode(carriers)) @ anchors.T
    ids = job.settings.insertion is Insertion.IDS
    placed = tuple(job.encoder.tokenize(carriers)) if ids else tuple(carriers)
    return ToyStage(placed, anchors, before, job.settings.repeats)


ENTRY = MethodEntry(
    name=NAME,
    summary="a toy",
    options=(
        SEED,
        insertion_option(Insertion.IDS),
        Option("repeats", int, "Copies behind each text.", "4", least=1, probe=True, rare=False),
        Option("text_count", int, "Number of texts.", "6", field="texts", least=1),
        Option("cut", float, "Call a token sticky beyond so many deviations.", "3"),
    ),
    takes_pairs=False,
    load=ToyMethod,
)


@contextmanager
def registered() -> Iterator[None]:
    register(ENTRY)
    try:
        yield
    finally:
        unregister(NAME)
