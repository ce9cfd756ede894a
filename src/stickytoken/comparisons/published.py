"""The published results of forty models, looked up and put beside a run.

Source: Kexin Chen et al., "Sticking to the Mean: Detecting Sticky Tokens in Text Embedding Models", ACL 2025.
The tables hold numbers and vocabulary entries only.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

import numpy as np
import polars as pl

from stickytoken.comparisons import deviations
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
    # with interval, and the share of tokens that lift less; null where the run did not examine the token
    tokens: pl.DataFrame
    unknown: int  # published tokens that the vocabulary of the run does not have at their id
    unexamined: int  # published tokens that the run did not examine
    sticky: int  # of the others, those that the run calls sticky too
    # P value of a Kolmogorov-Smirnov test of the shares against tokens drawn at random; None if the run
    # examined only a part of the vocabulary, or its method has no scale
    chance: float | None

    def in_words(self) -> list[str]:
        examined = len(self.tokens) - self.unknown - self.unexamined
        found = [f"the run calls {self.sticky} of the {examined} published tokens that it examined sticky"]
        if self.chance is not None:
            said = "cannot be told from" if self.chance > 0.05 else "differ from"
            middle = float(np.median(self.tokens["percentile"].drop_nulls().to_numpy()))
            found.append(
                f"by their lift on texts they {said} tokens drawn at random (Kolmogorov-Smirnov test, "
                f"p = {self.chance:.2g}; median percentile {middle:.0%})"
            )
        if self.unexamined:
            found.append(f"{self.unexamined} published tokens were not examined by the run")
        if self.unknown:
            told = "published tokens are not at their id in the vocabulary of the run: left out"
            found.append(f"{self.unknown} {told}")
        return found


@cache
def published_models() -> pl.DataFrame:
    return _table("published_models.csv")


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


def published_tokens(name: str) -> pl.DataFrame:
    return _table("published_tokens.csv").filter(model=published_model(name)["model"]).drop("model")


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
    scale = run.method.scale(run)
    ranks = pl.lit(None, pl.Float64) if scale is None else pl.col("lift").rank() / pl.col("lift").count()
    lifts = {"sd": "lift", "sd_low": "lift_low", "sd_high": "lift_high"}
    columns = {name: deviations(scale, lift) for name, lift in lifts.items()}
    of_run = run.tokens.select("token_id", "verdict", **columns, percentile=ranks, examined=True)
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


def _table(name: str) -> pl.DataFrame:
    content = files("stickytoken.comparisons").joinpath(f"data/{name}").read_bytes()
    return pl.read_csv(content, infer_schema_length=None, schema_overrides={"token": pl.String})
