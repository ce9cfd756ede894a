"""The published results of forty models, looked up and put beside a run.

Source: Kexin Chen et al., "Sticking to the Mean: Detecting Sticky Tokens in Text Embedding Models", ACL 2025.
The tables hold numbers and vocabulary entries only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stickytoken.comparisons import with_measures
from stickytoken.detection.run import Run
from stickytoken.errors import InputError
from stickytoken.validation import shown

SOURCE = "Chen et al., Sticking to the Mean, ACL 2025, https://aclanthology.org/2025.acl-long.1391"
COMPARABLE = (
    "The published verdicts are those of the paper's rule on STS sentences, here `detect --method std`: a "
    "score on five sentence pairs shortlists about 2% of the vocabulary; outliers by validation rate are "
    "sticky. The default method measures the lift of every token on texts of several kinds, with an "
    "interval, and calls sticky what is large enough to matter. The two answer different questions; their "
    "counts cannot be compared."
)


@dataclass(frozen=True)
class BesideRun:
    # One row per published token: score and validation rate as published; of the run its verdict, deviations
    # with interval, and the share of tokens that lift less; null where the run did not examine the token. For
    # a run of the paper's method instead its score, or what bounds it, its rate, whether the token was a
    # candidate, and a row for each token that the run calls sticky and the paper does not.
    tokens: pl.DataFrame
    unknown: int  # published tokens that the vocabulary of the run does not have at their id
    unexamined: int  # published tokens that the run did not examine
    sticky: int  # of the others, those that the run calls sticky too
    # P value of a Kolmogorov-Smirnov test of the shares against tokens drawn at random; None if the run
    # examined only a part of the vocabulary, or its method has no scale
    chance: float | None

    others: int = 0  # tokens that the run calls sticky and the paper does not

    def in_words(self) -> list[str]:
        examined = len(self.tokens) - self.others - self.unknown - self.unexamined
        found = [f"the run calls {self.sticky} of the {examined} published tokens that it examined sticky"]
        if self.chance is not None:
            said = "cannot be told from" if self.chance > 0.05 else "differ from"
            middle = float(np.median(self.tokens["percentile"].drop_nulls().to_numpy()))
            found.append(
                f"by their lift on texts they {said} tokens drawn at random (Kolmogorov-Smirnov test, "
                f"p = {self.chance:.2g}; median percentile {middle:.0%})"
            )
        if self.others:
            found.append(f"it calls {self.others} tokens sticky that are not published as sticky")
        if self.unexamined:
            found.append(f"{self.unexamined} published tokens were not examined by the run")
        if self.unknown:
            told = "published tokens are not at their id in the vocabulary of the run: left out"
            found.append(f"{self.unknown} {told}")
        return found


@cache
def published_models() -> pl.DataFrame:
    """Return the published table of models, with the tokens of the highest validation rates as examples."""
    tokens = _table("published_tokens.csv").sort("validation_rate", "token_id", descending=[True, False])
    examples = tokens.group_by("model", maintain_order=True).agg(
        pl.col("token").head(_EXAMPLES).str.join(" ").alias("examples")
    )
    return _table("published_models.csv").join(examples, on="model", how="left", maintain_order="left")


_EXAMPLES = 5


def with_runs(runs: Sequence[Run]) -> pl.DataFrame:
    """Return the table of models with a row for each run of the paper's method.

    Raises:
        InputError: A run is of another method, or examined only a part of the vocabulary.
    """
    models = published_models()
    rows = []
    for run in runs:
        if not _is_of_paper(run):
            raise InputError(
                f"{run.path} is a run of the method {run.record.method}, which has no candidates: add a run "
                "of --method std"
            )
        if len(run.tokens) < run.available:
            raise InputError(
                f"{run.path} examined {len(run.tokens):,} of {run.available:,} available tokens: add a run "
                "of the whole vocabulary"
            )
        result: Any = run.result  # of the method whose numbers these are
        row = {
            "model": f"{Path(run.model_name).name} (own run)",
            "hub_name": run.model_name,
            "parameters": run.record.model.parameters,
            "vocabulary": run.record.model.vocabulary,
            "available": run.available,
            "candidates": result.candidates,
            "sticky": result.sticky,
            "mean_similarity": run.plan.mean_similarity,
            "score_threshold": result.score_threshold,
            "examples": " ".join(run.sticky["token"].head(_EXAMPLES)),
        }
        rows.append(pl.DataFrame([row], schema=models.schema))
    return pl.concat([models, *rows])


def published_model(name: str) -> dict[str, object]:
    models = published_models()
    wanted = name.strip().lower().rstrip("/")
    rows = models.filter(
        (pl.col("model").str.to_lowercase() == wanted) | (pl.col("hub_name").str.to_lowercase() == wanted)
    )
    if rows.is_empty():
        names = {own.lower(): own for own in models["model"]}
        close = [names[each] for each in get_close_matches(wanted.rpartition("/")[2], names, n=3, cutoff=0.4)]
        hint = f"the closest are {', '.join(close)}" if close else "`stickytoken published` lists all forty"
        raise InputError(f"there are no published results of {shown(name)}: {hint}")
    return rows.row(0, named=True)


def model_of_run(run: Run) -> str:
    """Return the published name of the model of a run."""
    try:
        return str(published_model(Path(run.model_name).name)["model"])
    except InputError as error:
        raise InputError(f"{error}; if the run is of a published model, name it before --run") from error


def remarks(model: str) -> list[str]:
    """Return what a reader must know of the published numbers of a model."""
    if model != "all-MiniLM-L6-v2":
        return []
    return [
        "the published files contradict each other for [CLS]: its validation rate is 0.973 in the table of "
        "results and 0.876 in the file of candidates, which a replay gives"
    ]


def published_tokens(name: str) -> pl.DataFrame:
    return _table("published_tokens.csv").filter(model=published_model(name)["model"]).drop("model")


def mention_of_paper(run: Run) -> str | None:
    """Say how many tokens the paper lists for the model of a run by another method; None if it lists none.

    The model is recognised by its name, and by the published tokens: they must stand at their ids.
    """
    if _is_of_paper(run):
        return None
    name = Path(run.model_name).name
    models = published_models().filter(pl.col("model") == name)
    if models.is_empty():
        return None
    published = published_tokens(name)
    vocabulary = run.vocabulary.select("token_id", "token")
    at_their_id = published.join(vocabulary, on=["token_id", "token"], how="semi")
    if published.is_empty() or len(at_their_id) < len(published):
        return None
    return (
        f"Chen et al. (2025) list {len(published)} tokens of this model by another definition: see "
        f"`stickytoken published {name}`, or measure it with `--method std`."
    )


def beside_run(run: Run, name: str) -> BesideRun:
    from scipy.stats import kstest

    published = published_tokens(name)
    own = run.vocabulary.select("token_id", "token", known=True)
    published = published.join(own, on=["token_id", "token"], how="left", maintain_order="left")
    known = pl.col("known").fill_null(value=False)
    unknown = int(published.select((~known).sum()).item())
    if len(published) - unknown < 0.5 * len(published):  # the run is of another model
        raise InputError(
            f"of the {len(published)} published tokens of {name}, {len(published) - unknown} are in the "
            f"vocabulary of the run in {run.path}, whose model is {run.model_name}: pass a run of {name}"
        )
    if _is_of_paper(run):
        return _beside_paper(run, published, unknown)
    run_tokens = with_measures(run.tokens)
    columns = {"sd": "lift_sd", "sd_low": "lift_sd_low", "sd_high": "lift_sd_high"}
    ranks = pl.col("lift_sd").rank() / pl.col("lift_sd").count()
    of_run = run_tokens.select("token_id", "verdict", **columns, percentile=ranks, examined=True)
    tokens = published.join(of_run, on="token_id", how="left", maintain_order="left").with_columns(
        pl.when(known).then(pl.col(column)).alias(column) for column in of_run.columns[1:]
    )
    examined = tokens.filter(known & pl.col("examined"))
    percentiles = examined["percentile"].drop_nulls().to_numpy()
    chance = None
    if len(run.tokens) == run.available and len(percentiles):
        chance = float(kstest(percentiles, "uniform").pvalue)
    sticky = int((examined["verdict"] == "sticky").sum())
    unexamined = len(published) - unknown - len(examined)
    return BesideRun(tokens.drop("known", "examined"), unknown, unexamined, sticky, chance)


def _is_of_paper(run: Run) -> bool:
    """Say whether a run has the numbers of the paper's method."""
    return {"sticky_score", "validation_rate"} <= set(run.tokens.columns)


def _beside_paper(run: Run, published: pl.DataFrame, unknown: int) -> BesideRun:
    """Compare scores, rates, candidates and verdicts with a run of the paper's own method."""
    of_run = run.tokens.select(
        "token_id",
        "token",
        "category",
        "verdict",
        run_score="sticky_score",
        run_score_at_most="score_at_most",
        run_rate="validation_rate",
        run_candidate=pl.col("validation_rate").is_not_null(),
    )
    known = published.filter(pl.col("known").fill_null(value=False)).drop("known")
    beside = known.drop("category").join(of_run, on=["token_id", "token"], how="left", maintain_order="left")
    beside = beside.with_columns(published=pl.lit("sticky"))
    others = of_run.filter(pl.col("verdict") == "sticky").join(known, on=["token_id", "token"], how="anti")
    # A token that was not validated has no verdict, and so nothing can be said of it.
    validated = beside.filter(pl.col("verdict").is_not_null())
    return BesideRun(
        tokens=pl.concat([beside, others], how="diagonal"),
        unknown=unknown,
        unexamined=len(known) - len(validated),
        sticky=int((validated["verdict"] == "sticky").sum()),
        chance=None,
        others=len(others),
    )


def _table(name: str) -> pl.DataFrame:
    content = files("stickytoken.comparisons").joinpath(f"data/{name}").read_bytes()
    return pl.read_csv(content, infer_schema_length=None, schema_overrides={"token": pl.String})
