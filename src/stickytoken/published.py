"""Look up the published results of forty models, and compare them with a run.

The results come from the repository of the paper "Sticking to the Mean" by Kexin Chen and others (ACL 2025),
which reports 37 of the models. The tables hold only numbers and vocabulary entries. Each published token has
three validation rates, one for each distance. The authors choose sticky tokens by the cosine rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken import words
from stickytoken.data import PAPER_DATASETS
from stickytoken.detection.run import Run
from stickytoken.errors import InputError
from stickytoken.settings.std import StdSettings
from stickytoken.validation import closest_names, shown

SOURCE = "Chen et al., Sticking to the Mean, ACL 2025, https://aclanthology.org/2025.acl-long.1391"
COMPARABLE = (
    "The published verdicts come from the paper's rule on STS sentences, which is `detect --method std` "
    "here. It shortlists about 2% of the vocabulary by a score on five sentence pairs, and calls the "
    "outliers by validation rate sticky. The default method measures the effect of every token on texts of "
    "several kinds, with an interval, and calls a token sticky if the effect is large enough to matter. The "
    "two methods answer different questions, so their counts cannot be compared."
)

# Minimum share of the published tokens that must be in the vocabulary of a run. If fewer are, the run is
# taken to be of another model.
_LEAST_SHARE_KNOWN = 0.5


@dataclass(frozen=True)
class MeanErased:
    """How much more the published tokens erase than the other tokens of a run, on average.

    Attributes:
        published: Mean over the published tokens.
        others: Mean over all other tokens of the run.
        low: Lower end of the 95% interval of the difference between the two means, by Welch's t-test.
        high: Upper end of the same interval.
        above: Number of published tokens whose own interval lies above zero, the effect of an ordinary token.
        below: Number of published tokens whose own interval lies below zero.
    """

    published: float
    others: float
    low: float
    high: float
    above: int
    below: int

    def in_words(self) -> str:
        """Return the comparison as a clause that follows a sentence about the published tokens ("their")."""
        difference = self.published - self.others
        side = "below" if difference < 0 else "above"
        return (
            f"their mean erased share is {words.number(abs(difference), 1, '%')} {side} that of all other "
            f"tokens (95% interval {words.interval(self.low, self.high, 1, '%')}); {self.above} of their own "
            f"intervals lie above zero, where an ordinary token is, and {self.below} below"
        )


@dataclass(frozen=True)
class BesideRun:
    """The published tokens of a model, compared with a run.

    Attributes:
        tokens: One row per published token, with its published score and validation rates. For a run of the
            default method, further columns hold the verdict, the erased share and the push, each with its
            interval, and the number of texts that it was measured in. For a run of the paper's method,
            further columns hold the run's score (or an upper bound on it), the run's validation rates, and
            whether the token was a candidate, and further rows hold the tokens that only the run calls
            sticky. All columns with results of the run are null for a token that the run did not examine.
        unknown: Number of published tokens that the run's vocabulary lacks, or has at another id.
        unexamined: Number of published tokens that the run's vocabulary has at the same id, but that the run
            did not examine.
        sticky: Number of published tokens that the run also calls sticky.
        erased: Mean erased share of the published tokens and of all other tokens; None if the run examined
            only some of the vocabulary, or its method measures no erased shares.
        screened: Number of published tokens that the run measured only in few texts.
        others: Number of tokens that the run calls sticky, but the paper does not.
        rejected: Number of published tokens that a run of the paper's method did not validate, because their
            scores are no candidate's.
    """

    tokens: pl.DataFrame
    unknown: int
    unexamined: int
    sticky: int
    erased: MeanErased | None = None
    screened: int = 0
    others: int = 0
    rejected: int = 0

    def in_words(self) -> list[str]:
        """Return the comparison as a list of sentences."""
        examined = len(self.tokens) - self.others - self.unknown - self.unexamined
        sticky = self.sticky or "none"
        sentences = [f"of the {examined} published tokens that the run examined, it flags {sticky} as sticky"]
        if self.rejected:
            sentences.append(
                f"{self.rejected} of them were no candidates: their scores are below the run's threshold"
            )
        if self.erased is not None:
            sentences.append(self.erased.in_words())
        if self.screened:
            sentences.append(
                f"{self.screened} of them were only screened, in few texts: `stickytoken probe` measures "
                "them closely"
            )
        if self.others:
            sentences.append(f"the run flags {self.others} tokens as sticky that are not published as such")
        if self.unexamined:
            sentences.append(f"{self.unexamined} published tokens were not examined by the run")
        if self.unknown:
            sentences.append(
                f"{self.unknown} published tokens are left out, because the vocabulary of the run does not "
                "have them at the published ids"
            )
        return sentences


# Number of example tokens for each model in the table of models.
_EXAMPLES = 5


@cache
def published_models() -> pl.DataFrame:
    """Return the published table of models, with the tokens of highest validation rate as examples."""
    highest_first = _read_table("published_tokens.csv").sort(
        "validation_rate", "token_id", descending=[True, False]
    )
    examples = highest_first.group_by("model", maintain_order=True).agg(
        pl.col("token").head(_EXAMPLES).str.join(" ").alias("examples")
    )
    return _read_table("published_models.csv").join(examples, on="model", how="left", maintain_order="left")


def with_runs(runs: Sequence[Run]) -> pl.DataFrame:
    """Return the published table of models, with an added row for each of the given runs.

    The table has four more columns than `published_models`: ``validation_pairs``, ``seed``, ``corpus``, and
    ``differs``, which says how the settings of a run differ from the published settings.

    Raises:
        InputError: A run used a method other than the paper's, or examined only part of the vocabulary.
    """
    published_settings = StdSettings()
    models = published_models().with_columns(
        validation_pairs=pl.lit(published_settings.validation_pairs, pl.Int64),
        seed=pl.lit(published_settings.seed, pl.Int64),
        corpus=pl.lit("STS"),
        differs=pl.lit(None, pl.String),
    )
    rows = []
    for run in runs:
        if run.record.method != "std":
            raise InputError(
                f"{run.path} is a run of the method {run.record.method}, which has no candidates: add a run "
                "of --method std"
            )
        if len(run.tokens) < run.available:
            raise InputError(
                f"{run.path} examined {len(run.tokens):,} of {run.available:,} available tokens: add a run "
                "of the whole vocabulary"
            )
        # The records of the paper's method.
        plan: Any = run.plan
        result: Any = run.result
        row = {
            "model": f"{Path(run.model_name).name} (own run)",
            "hub_name": run.model_name,
            "parameters": run.record.model.parameters,
            "vocabulary": run.record.model.vocabulary,
            "available": run.available,
            "candidates": result.candidates,
            "sticky": result.sticky,
            "mean_similarity": plan.mean_similarity,
            "score_threshold": result.score_threshold,
            "examples": " ".join(run.sticky["token"].head(_EXAMPLES)),
            "validation_pairs": run.record.settings["validation_pairs"],
            "seed": run.record.settings["seed"],
            "corpus": run.record.corpus.source,
            "differs": ", ".join(_list_differing_settings(run)) or None,
        }
        rows.append(pl.DataFrame([row], schema=models.schema))
    return pl.concat([models, *rows])


# The corpus of a run with --sentences paper.
_PAPER_CORPUS = f"{len(PAPER_DATASETS)} hub data sets"
# Settings that are used only if pairs are drawn from sentences.
_PAIR_SAMPLING = frozenset({"sentence_count", "pair_count"})


def _list_differing_settings(run: Run) -> list[str]:
    """Return a phrase for each way in which a run of the paper's method differs from the published runs."""
    corpus = run.record.corpus
    has_pairs = corpus.sentences is None  # the run was given pairs, not sentences from which it draws pairs
    # The setting `scores` says which tokens get an exact score, which changes neither candidates nor
    # verdicts.
    unused_settings = {"scores"} | (_PAIR_SAMPLING if has_pairs else set())
    differences = []
    for name, published_value in asdict(StdSettings()).items():  # the defaults are the settings of the paper
        value = run.record.settings.get(name, published_value)
        if name not in unused_settings and value != published_value:
            differences.append(f"{name} {value} instead of {published_value}")
    if has_pairs:
        differences.append("pairs from a file, which may not be the published ones")
    elif corpus.source != _PAPER_CORPUS:
        differences.append(f"{corpus.source} instead of STS")
    return differences


def published_model(name: str) -> dict[str, object]:
    """Return the row of a model in the published table of models.

    Args:
        name: Name of the model in the paper or on the hub; case is ignored.

    Raises:
        InputError: The paper does not list this model. The message names the models with the closest names.
    """
    models = published_models()
    key = name.strip().lower().rstrip("/")
    has_name = pl.col("model").str.to_lowercase() == key
    has_hub_name = pl.col("hub_name").str.to_lowercase() == key
    rows = models.filter(has_name | has_hub_name)
    if rows.is_empty():
        name_without_owner = key.rpartition("/")[2]
        close_names = closest_names(name_without_owner, models["model"])
        hint = "`stickytoken published` lists all forty"
        if close_names:
            hint = f"the closest are {', '.join(close_names)}"
        raise InputError(f"there are no published results of {shown(name)}: {hint}")
    return rows.row(0, named=True)


def model_of_run(run: Run) -> str:
    """Return the published name of the model of a run."""
    try:
        return str(published_model(Path(run.model_name).name)["model"])
    except InputError as error:
        raise InputError(f"{error}; if this is a published model, pass its name before --run") from error


def published_tokens(name: str) -> pl.DataFrame:
    """Return the published sticky tokens of a model, with their scores and validation rates.

    ``validation_rate`` is the rate by cosine distance, from which the authors decide what is sticky.
    """
    return _read_table("published_tokens.csv").filter(model=published_model(name)["model"]).drop("model")


def _find_published_tokens(run: Run) -> pl.DataFrame | None:
    """Return the published tokens of the model of a run.

    Returns:
        The tokens; None if the paper does not list the model. A listed model is recognised by its name and
        its vocabulary: every published token must have its published id in the vocabulary of the run.
    """
    name = Path(run.model_name).name
    models = published_models().filter(pl.col("model") == name)
    if models.is_empty():
        return None
    published = published_tokens(name)
    vocabulary = run.vocabulary.select("token_id", "token")
    at_their_id = published.join(vocabulary, on=["token_id", "token"], how="semi")
    has_same_vocabulary = not published.is_empty() and len(at_their_id) == len(published)
    return published if has_same_vocabulary else None


def mention_of_paper(run: Run) -> str | None:
    """Say how many tokens the paper lists for the model of a run, if the run used another method.

    Returns:
        One sentence; None for a run of the paper's method, or if the paper does not list the model.
    """
    if run.record.method == "std":
        return None
    published = _find_published_tokens(run)
    if published is None:
        return None
    name = Path(run.model_name).name
    return (
        f"Chen et al. (2025) list {len(published)} tokens of this model by another definition: see "
        f"`stickytoken published {name}`, or measure it with `--method std`."
    )


def beside_run(run: Run, name: str) -> BesideRun:
    """Compare the published tokens of a model with a run of that model.

    Args:
        run: A run that used the default method or the paper's.
        name: Name of the published model.

    Returns:
        The published tokens with the numbers of the run, and the counts that summarize them.

    Raises:
        InputError: The vocabulary of the run lacks too many of the published tokens, so the run measured
            another model.
    """
    published = published_tokens(name)
    # A published token is known if the run's vocabulary has the same token at the same id.
    vocabulary = run.vocabulary.select("token_id", "token", known=True)
    published = published.join(vocabulary, on=["token_id", "token"], how="left", maintain_order="left")
    is_known = pl.col("known").fill_null(value=False)  # null after the join if the vocabulary lacks the token
    unknown = int(published.select((~is_known).sum()).item())
    if len(published) - unknown < _LEAST_SHARE_KNOWN * len(published):
        raise InputError(
            f"only {len(published) - unknown} of the {len(published)} published tokens of {name} are in the "
            f"vocabulary of the run in {run.path}, whose model is {run.model_name}: pass a run of {name}"
        )
    if run.record.method == "std":
        return _compare_with_paper(run, published, unknown)
    measure_columns = ("erased", "erased_low", "erased_high", "push", "push_low", "push_high")
    in_run = run.tokens.select("token_id", "verdict", *measure_columns, "texts", examined=True)
    # The tables are joined by id only. A published token that is not in the run's vocabulary at this id would
    # get the numbers of a different token, so its numbers are set to null.
    tokens = published.join(in_run, on="token_id", how="left", maintain_order="left").with_columns(
        pl.when(is_known).then(pl.col(column)).alias(column)
        for column in in_run.columns
        if column != "token_id"
    )
    examined = tokens.filter(is_known & pl.col("examined"))
    # Tokens that were only screened are in fewer texts than those that were confirmed.
    most_texts = run.tokens["texts"].max()
    screened = examined.filter(pl.col("texts") < most_texts)
    erased = None
    # The means are compared only in a run of the whole vocabulary: a random sample has too few of the
    # published tokens, and tokens chosen by name say nothing about all other tokens.
    examined_whole_vocabulary = len(run.tokens) == run.available
    if examined_whole_vocabulary:
        others = in_run.join(examined, on="token_id", how="anti")
        has_variances = examined["erased"].count() > 1 and others["erased"].count() > 1
        if has_variances:
            erased = _compare_means(examined, others)
    return BesideRun(
        tokens=tokens.drop("known", "examined"),
        unknown=unknown,
        unexamined=len(published) - unknown - len(examined),
        sticky=int((examined["verdict"] == "sticky").sum()),
        erased=erased,
        screened=len(screened),
    )


def _compare_means(published: pl.DataFrame, others: pl.DataFrame) -> MeanErased:
    from scipy.stats import ttest_ind

    of_published = published["erased"].drop_nulls().to_numpy()
    of_others = others["erased"].drop_nulls().to_numpy()
    interval = ttest_ind(of_published, of_others, equal_var=False).confidence_interval(0.95)
    return MeanErased(
        published=float(of_published.mean()),
        others=float(of_others.mean()),
        low=float(interval.low),
        high=float(interval.high),
        # An ordinary token has an erased share of 0.
        above=int((published["erased_low"] > 0).sum()),
        below=int((published["erased_high"] < 0).sum()),
    )


def _compare_with_paper(run: Run, published: pl.DataFrame, unknown: int) -> BesideRun:
    """Compare the published tokens with the scores, rates and verdicts of a run that used the paper's method.

    Returns:
        The comparison. It has the numbers of published tokens that the run did not examine, and of those that
        the run also calls sticky.
    """
    in_run = run.tokens.select(
        "token_id",
        "token",
        "category",
        "verdict",
        run_score="sticky_score",
        run_score_at_most="score_at_most",
        run_rate="validation_rate",
        run_rate_euclidean="validation_rate_euclidean",
        run_rate_manhattan="validation_rate_manhattan",
        run_candidate=pl.col("validation_rate").is_not_null(),
    )
    key = ["token_id", "token"]
    # Unknown tokens stay in the table. They match no token of the run, so the columns of the run are null.
    # The category comes from the run.
    published = published.drop("known", "category")
    beside = published.join(in_run, on=key, how="left", maintain_order="left")
    beside = beside.with_columns(published=pl.lit("sticky"))
    others = in_run.filter(pl.col("verdict") == "sticky").join(published, on=key, how="anti")
    # The score of a token that soon fell behind is known only to be at most a value.
    examined = beside.filter(pl.any_horizontal(pl.col("run_score", "run_score_at_most").is_not_null()))
    known = len(published) - unknown
    return BesideRun(
        tokens=pl.concat([beside, others], how="diagonal"),  # null in columns that only the other table has
        unknown=unknown,
        unexamined=known - len(examined),
        sticky=int((examined["verdict"] == "sticky").sum()),
        others=len(others),
        rejected=examined["verdict"].null_count(),  # only candidates are validated, and so get a verdict
    )


def _read_table(name: str) -> pl.DataFrame:
    content = files("stickytoken.data").joinpath(f"bundled/{name}").read_bytes()
    return pl.read_csv(content, infer_schema_length=None, schema_overrides={"token": pl.String})
