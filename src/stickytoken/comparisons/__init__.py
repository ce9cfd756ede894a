"""Compare runs of several models: what each run found, and which numbers can be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stickytoken.detection import IDENTITY_VERSION
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import LoadingRecord
from stickytoken.errors import InputError, RunError
from stickytoken.intervals import Interval, estimate_share
from stickytoken.methods import SETTINGS_OF_METHOD, Column
from stickytoken.methods.measures import ERASED, MEASURES, PUSH, Measure
from stickytoken.repairs.records import finished_repair, repairs_in
from stickytoken.settings.profile import PRECISION_SETTINGS
from stickytoken.validation import list_of
from stickytoken.words import interval, listed, quoted

__all__ = ["Comparison", "compare"]


class Examined(StrEnum):
    """Which tokens of the vocabulary a run examined."""

    WHOLE = "all available tokens"
    SAMPLE = "a random sample"
    CHOSEN = "chosen tokens"


class WorstToken(NamedTuple):
    """The token with the largest value of a measure."""

    token_id: int
    token: str
    verdict: str | None  # the run's verdict on the token
    severity: str | None  # None if the token is not flagged
    value: float
    low: float | None  # lower end of the value's interval; None if it has no interval
    high: float | None


class Quantiles(NamedTuple):
    """How a measure is distributed over the tokens of a run."""

    median: float
    high: float  # 99th percentile


class ComparedRun:
    """A run in a comparison: its name, and the numbers that are compared.

    Args:
        name: Name of the run, unique among the compared runs.
        run: A finished run.
    """

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.run = run
        # The share of sticky tokens always has an interval. If the method computes no others, its confidence
        # is 90%.
        self.confidence = 0.9 if run.confidence is None else run.confidence
        encoder = run.record.identity_parts.get("encoder")
        self.encoder: dict[str, Any] = encoder if isinstance(encoder, dict) else {}

    @cached_property
    def counts(self) -> str:
        """A phrase that says how many tokens were examined, and how many are available."""
        return f"{len(self.run.tokens):,} of {self.run.available:,} available tokens"

    @cached_property
    def examined(self) -> Examined:
        """Which tokens of the vocabulary the run examined."""
        if len(self.run.tokens) == self.run.available:
            return Examined.WHOLE
        # In a sample, special tokens are measured beside those that were drawn.
        is_sample = self.run.record.beside_sample is not None
        return Examined.SAMPLE if is_sample else Examined.CHOSEN

    def largest(self, measure: Measure) -> WorstToken | None:
        """Return the token with the largest value of a measure; None if the run has no values of the measure.

        If any tokens are confirmed (measured in many texts), only confirmed and flagged tokens are
        considered, because the largest of many values from few texts is large by chance.
        """
        tokens = self.run.tokens
        if measure.key not in tokens.columns:  # the method does not measure it
            return None
        measured = tokens.drop_nulls(measure.key)
        if "confirmed" in measured.columns and measured["confirmed"].any():
            # A token may be sticky by its push alone, without having been confirmed.
            measured = measured.filter(pl.col("confirmed") | (pl.col("verdict") == "sticky"))
        if measured.is_empty():
            return None
        row = measured.sort(measure.key, "token_id", descending=[True, False]).row(0, named=True)
        return WorstToken(
            token_id=row["token_id"],
            token=row["token"],
            verdict=row["verdict"],
            severity=row.get("severity"),
            value=row[measure.key],
            low=row.get(measure.low.key),
            high=row.get(measure.high.key),
        )

    @cached_property
    def share(self) -> Interval[float] | None:
        """The share of sticky tokens among the examined tokens; None if the user chose these tokens.

        The interval is exact (see `estimate_share`).
        """
        if self.examined is Examined.CHOSEN:
            return None
        # Tokens examined in addition to the sample, such as special tokens, would distort the share.
        is_drawn = ~pl.col("token_id").is_in(self.run.record.beside_sample or [])
        sticky_count = len(self.run.sticky.filter(is_drawn))
        examined_count = len(self.run.tokens.filter(is_drawn))
        return estimate_share(sticky_count, examined_count, self.confidence)

    @cached_property
    def repair(self) -> str:
        """A phrase that says whether the run's model is itself repaired, or has a repaired copy.

        For a repaired model, the phrase is ``is itself repaired``. For any other model, the phrase is the
        state of the newest repair in the run folder (``verified``, ``NOT VERIFIED`` or ``not verified``), or
        ``no`` if the run folder contains no repair.
        """
        try:
            repair_of_model = finished_repair(Path(self.run.record.model.location))
        except (RunError, OSError, ValueError):  # the record is damaged, or the name is not a path
            repair_of_model = None
        if repair_of_model is not None:
            # The model's folder now holds a repaired model, but the run may have measured the model that was
            # there before. The repair has recorded the identity of the model before the repair.
            identity_before_repair = repair_of_model.identity_parts.get("encoder")
            measured_before_repair = self.encoder == identity_before_repair
            if not measured_before_repair:
                return "is itself repaired"
        repairs, _ = repairs_in(self.run.path)  # the newest first
        return repairs[0].state if repairs else "no"

    def quantiles(self, measure: Column) -> Quantiles | None:
        """Return the median and 99th percentile of a measure; None if the run has no value of it."""
        if measure.key not in self.run.tokens.columns:
            return None
        values = self.run.tokens[measure.key].drop_nulls()
        if values.is_empty():
            return None
        median, high = np.quantile(values.to_numpy(), (0.5, 0.99))
        return Quantiles(float(median), float(high))


def tone_of(sticky: pl.DataFrame) -> str:
    """Return the worst severity among sticky tokens; ``clean`` if the table is empty."""
    if sticky.is_empty():
        return "clean"
    if "severity" not in sticky.columns:  # the method grades no severity
        return "serious"
    severities = set(sticky["severity"])
    for severity in ("severe", "serious"):
        if severity in severities:
            return severity
    return "mild"


def short_headline(run: Run) -> str:
    """Return the headline of a run with the short name of its model."""
    return run.description.headline.replace(run.model_title, run.record.model.short_title)


def rule_lines(run: Run) -> list[str]:
    """Return the lines that state the rule of a run, without those already in its headline."""
    return [line for line in run.description.lines if line not in run.description.headline]


@dataclass(frozen=True)
class Agreement:
    """How well two runs agree on the tokens that both examined.

    Attributes:
        first: Name of the first run.
        second: Name of the second run.
        shared: Number of tokens that both runs examined. Tokens are identified by their vocabulary strings.
        sticky_in_both: Number of tokens that both runs call sticky.
        jaccard: Number of tokens that are sticky in both runs, divided by the number of tokens that are
            sticky in at least one of the runs. None if no token is sticky in either run.
        spearman_erased: Rank correlation of the two runs' erased shares; None if too few tokens have an
            erased share in both runs.
        spearman_push: Rank correlation of the two runs' pushes; None if too few tokens have one in both
            runs.
        spearman_score: Rank correlation of the two runs' sticky scores; None if too few tokens have an exact
            one in both runs.
    """

    first: str
    second: str
    shared: int
    sticky_in_both: int
    jaccard: float | None
    spearman_erased: float | None
    spearman_push: float | None
    spearman_score: float | None


class TokenInRun(NamedTuple):
    """The measures and the verdict of a token in a run. A missing value is None."""

    erased: float | None
    push: float | None
    verdict: str | None


@dataclass(frozen=True)
class ComparedToken:
    """A token with its measures and verdicts in all compared runs.

    Attributes:
        token: Vocabulary string of the token.
        in_runs: The token's measures and verdict in each compared run, in the order of the runs.
    """

    token: str
    in_runs: Sequence[TokenInRun]


def compared_tokens(runs: Sequence[ComparedRun]) -> tuple[ComparedToken, ...]:
    """Return the tokens that at least one run calls sticky.

    The tokens that the most runs call sticky come first. In a run that did not examine a token, the measures
    and the verdict of the token are None.
    """
    tokens_of_runs = [_index_measures(compared) for compared in runs]
    names: set[str] = set()
    for compared in runs:
        names.update(compared.run.sticky["token"])
    not_examined = TokenInRun(erased=None, push=None, verdict=None)
    tokens = []
    for name in sorted(names):
        in_runs = [tokens_of_run.get(name, not_examined) for tokens_of_run in tokens_of_runs]
        tokens.append(ComparedToken(name, in_runs))
    return tuple(sorted(tokens, key=_most_flagged_first))


def _index_measures(compared: ComparedRun) -> dict[str, TokenInRun]:
    """Return the measures and the verdict of every token of a run, keyed by its vocabulary string."""
    tokens = with_measures(compared.run.tokens)
    rows = tokens.select("token", *TokenInRun._fields).iter_rows()
    return {token: TokenInRun(*numbers) for token, *numbers in rows}


def with_measures(tokens: pl.DataFrame) -> pl.DataFrame:
    """Return a table of tokens that has columns for every measure in `MEASURES`, and for the sticky score.

    Each measure has three columns: its value, and the lower and the upper end of the value's interval. A
    column that the table lacks is added, with nulls.
    """
    names = [column.key for measure in MEASURES for column in (measure, measure.low, measure.high)]
    names.append("sticky_score")
    missing = [name for name in names if name not in tokens.columns]
    return tokens.with_columns(pl.lit(None, dtype=pl.Float64).alias(name) for name in missing)


def _most_flagged_first(token: ComparedToken) -> tuple[int, float, float]:
    """Return a sort key that puts tokens first that many runs flag, or that have large measures.

    The key consists of the number of runs that flag the token, its largest erased share and its largest push,
    all negated so that large values come first.
    """
    flagged = sum(in_run.verdict == "sticky" for in_run in token.in_runs)
    erased_shares = [in_run.erased for in_run in token.in_runs if in_run.erased is not None]
    pushes = [in_run.push for in_run in token.in_runs if in_run.push is not None]
    return -flagged, -max(erased_shares, default=0.0), -max(pushes, default=0.0)


# Minimum number of tokens for a rank correlation. With fewer tokens, the correlation is mostly chance.
_FEWEST_RANKED = 20


def agreement(first: ComparedRun, second: ComparedRun) -> Agreement:
    """Compare the verdicts and measures of two runs on the tokens that both examined."""
    columns = ("token", "verdict", "erased", "push", "sticky_score")
    # Ids differ between tokenizers, so tokens are joined by their strings, which a vocabulary may repeat.
    in_first = with_measures(first.run.tokens).select(columns).unique("token")
    in_second = with_measures(second.run.tokens).select(columns).unique("token")
    shared = in_first.join(in_second, on="token", suffix="_other")  # the columns of the second end so
    sticky_in_first = shared["verdict"].fill_null("") == "sticky"
    sticky_in_second = shared["verdict_other"].fill_null("") == "sticky"
    in_both = int((sticky_in_first & sticky_in_second).sum())
    in_either = int((sticky_in_first | sticky_in_second).sum())
    return Agreement(
        first=first.name,
        second=second.name,
        shared=len(shared),
        sticky_in_both=in_both,
        jaccard=in_both / in_either if in_either else None,
        spearman_erased=_correlate_ranks(shared.select("erased", "erased_other")),
        spearman_push=_correlate_ranks(shared.select("push", "push_other")),
        spearman_score=_correlate_ranks(shared.select("sticky_score", "sticky_score_other")),
    )


def _correlate_ranks(two_columns: pl.DataFrame) -> float | None:
    from scipy.stats import spearmanr

    complete_rows = two_columns.drop_nulls()
    # Values that are all equal have no order to agree with.
    is_constant = any(column.n_unique() <= 1 for column in complete_rows)
    if len(complete_rows) < _FEWEST_RANKED or is_constant:
        return None
    first, second = complete_rows.get_columns()
    return float(spearmanr(first, second).statistic)


# Two runs are treated as measured on the same texts if they share at least this fraction of their carriers,
# the texts that receive copies. Which texts are shortest depends on the tokenizer: with those of MiniLM,
# RoBERTa, T5, Gemma and multilingual E5, two runs share 66% to 78% of the packaged carriers.
_MIN_SHARED_CARRIERS = 0.5


class ComparedNumber(StrEnum):
    """A number that is compared between runs."""

    ERASED = "largest erased share"
    PUSH = "largest push"
    SHARE = "sticky tokens per 10,000"


class Answer(StrEnum):
    """Whether a measure can be compared between runs."""

    YES = "comparable"
    CARE = "with care"
    NO = "not comparable"


class Reason(NamedTuple):
    """A reason why measures can be compared only with care, or not at all.

    Attributes:
        answer: Whether the measures can be compared with care, or not at all.
        sentence: The reason as a sentence, without a full stop.
        measures: The measures that the reason affects.
    """

    answer: Answer
    sentence: str
    measures: tuple[ComparedNumber, ...] = tuple(ComparedNumber)


class Comparability(NamedTuple):
    """What can be compared between runs.

    Attributes:
        answers: For each measure, whether its values can be compared between all of the runs.
        reasons: Why measures cannot be compared directly, the most serious reason first; empty if all
            measures are comparable.
    """

    answers: dict[ComparedNumber, Answer]
    reasons: tuple[Reason, ...]


def _find_reasons(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    """Yield every reason why measures of the runs cannot be compared directly.

    A `Reason` that is made without measures applies to all measures.
    """
    erased_and_push = (ComparedNumber.ERASED, ComparedNumber.PUSH)
    methods = _describe_differences(runs, lambda compared: compared.run.record.method)
    if methods:
        yield Reason(
            Answer.NO,
            f"the methods differ ({methods}), so the verdicts follow different rules: compare only which "
            "tokens they flag",
        )
    without_measures = [compared.name for compared in runs if not compared.run.is_profile]
    if without_measures:
        yield Reason(Answer.NO, f"the method of {listed(without_measures)} measures neither", erased_and_push)
    yield from _find_text_reasons(runs)
    yield from _find_setting_reasons(runs)
    for compared in runs:
        if compared.examined is Examined.SAMPLE:
            yield Reason(
                Answer.CARE,
                f"{compared.name}: only a random sample, {compared.counts}, was examined, so there may be a "
                "worse token",
                erased_and_push,
            )
            yield Reason(
                Answer.CARE,
                f"{compared.name}: the share is estimated from a random sample, {compared.counts}",
                (ComparedNumber.SHARE,),
            )
        elif compared.examined is Examined.CHOSEN:
            yield Reason(
                Answer.NO,
                f"{compared.name}: only chosen tokens, {compared.counts}, were examined; they say nothing "
                "about the other tokens",
            )
    versions = _describe_differences(
        runs, lambda compared: str(compared.run.record.identity_parts.get("version"))
    )
    if versions:
        yield Reason(
            Answer.CARE,
            f"the runs were computed by different versions of the method ({versions}), which give somewhat "
            "different numbers: detect again to rely on small differences",
        )
    yield from _find_use_reasons(runs)
    if _describe_differences(runs, lambda compared: str(compared.encoder.get("tokenizer"))):
        sizes = sorted(compared.run.available for compared in runs)
        yield Reason(
            Answer.CARE,
            f"the vocabularies differ ({sizes[0]:,} to {sizes[-1]:,} available tokens), and a share of a "
            "vocabulary is not a share of text",
            (ComparedNumber.SHARE,),
        )


def _find_text_reasons(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    """Yield at most one reason, which arises because the runs used different texts."""
    sources = _describe_differences(runs, lambda compared: compared.run.record.corpus.source)
    if sources:
        yield Reason(
            Answer.NO,
            f"the runs used different texts ({sources}), and erased shares and pushes depend on the texts",
        )
        return
    methods = {compared.run.record.method for compared in runs}
    if len(methods) > 1:  # each method has its own fingerprint of a corpus
        return
    if _describe_differences(runs, lambda compared: str(compared.run.record.identity_parts.get("corpus"))):
        source = runs[0].run.record.corpus.source
        yield Reason(
            Answer.NO,
            f"the sentences from {source} differ between the runs, and erased shares and pushes depend on "
            "the sentences",
        )
        return
    # From the same corpus, runs may have chosen different carriers, for example with another seed.
    carriers = [set(compared.run.plan.texts) for compared in runs]
    smallest_number = min(len(carriers_of_run) for carriers_of_run in carriers)
    shared = len(set.intersection(*carriers)) / max(1, smallest_number)
    if shared < _MIN_SHARED_CARRIERS:
        groups = "; ".join(listed(names) for names in _group_by_carriers(runs, carriers))
        yield Reason(
            Answer.CARE,
            f"the runs measured on different choices of the same texts ({groups}); {shared:.0%} of these "
            "choices are the same",
        )


def _group_by_carriers(runs: Sequence[ComparedRun], carriers: Sequence[set[str]]) -> list[list[str]]:
    """Return groups of runs whose carriers are mostly those of the first run of the group, by their names.

    ``carriers`` are the texts that receive copies, for each run.
    """
    first_carriers: list[set[str]] = []  # of the first run of each group
    groups: list[list[str]] = []
    for compared, carriers_of_run in zip(runs, carriers, strict=True):
        for first, names in zip(first_carriers, groups, strict=True):
            smaller_number = min(len(first), len(carriers_of_run))
            if len(first & carriers_of_run) >= _MIN_SHARED_CARRIERS * smaller_number:
                names.append(compared.name)
                break
        else:  # the run shares too few carriers with the first run of every group, and begins its own
            first_carriers.append(carriers_of_run)
            groups.append([compared.name])
    return groups


def _find_setting_reasons(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    """Yield the reasons that arise from different settings; nothing if the runs have different methods."""
    methods = {compared.run.record.method for compared in runs}
    if len(methods) > 1:
        return
    settings_class = SETTINGS_OF_METHOD[methods.pop()]
    for name in sorted(setting.name for setting in fields(settings_class)):
        values = _describe_differences(runs, partial(_format_setting, name))
        if not values:  # all runs have the same
            continue
        described = f"({name.replace('_', ' ')}: {values})"
        if name == "seed":
            yield Reason(
                Answer.CARE,
                f"the runs made different random choices {described}: small differences mean nothing",
            )
        elif name in PRECISION_SETTINGS:
            yield Reason(Answer.CARE, f"the runs measured with different effort {described}")
        else:
            yield Reason(Answer.NO, f"the settings differ {described}: detect with the same settings")


def _format_setting(name: str, compared: ComparedRun) -> str:
    value = getattr(compared.run.settings, name)
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)


# How encoders can use the same weights differently: keys of the identity, and their names in messages.
_USES = {
    "dimension": "length of the vectors",
    "modules": "pooling or other modules",
    "max_length": "max length",
}


def _find_use_reasons(runs: Sequence[ComparedRun]) -> Iterator[Reason]:
    """Yield the reasons against a direct comparison that arise from how the models were loaded."""
    prompts = _describe_differences(runs, _describe_prompt)
    if prompts:
        yield Reason(
            Answer.CARE,
            f"the prompts differ ({prompts}): a prompt is part of the model that was measured",
        )
    precisions = _describe_differences(runs, lambda compared: str(compared.encoder.get("dtype")))
    if precisions:
        yield Reason(Answer.CARE, f"the models computed in different precisions ({precisions})")
    for first, second in combinations(runs, 2):
        differences = _list_different_uses(first.encoder, second.encoder)
        if differences:
            yield Reason(
                Answer.CARE,
                f"{first.name} and {second.name} have the same weights, used differently "
                f"({', '.join(differences)})",
            )
    for compared in runs:
        loading = compared.run.record.model.loading
        if loading is not None and loading.endpoint is not None:
            yield Reason(
                Answer.CARE,
                f"{compared.name} was measured through an endpoint, whose vectors may be rounded and may "
                "change",
            )


def _list_different_uses(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return how two encoders with the same weights use them differently; none if the weights differ.

    ``first`` and ``second`` are identities of encoders, empty if they are unknown.
    """
    if not first or first.get("weights") != second.get("weights"):
        return []
    different_names = [name for name in _USES if first.get(name) != second.get(name)]
    if "dimension" in different_names and "modules" in different_names:
        # Truncating the vectors to another length adds or changes a module, so the modules always differ if
        # the lengths do.
        different_names.remove("modules")
    return [_USES[name] for name in different_names]


def _describe_prompt(compared: ComparedRun) -> str:
    loading: LoadingRecord | None = compared.run.record.model.loading
    if loading is not None and loading.prompting.prompt:  # passed by the user
        description = loading.prompting.prompt
        if loading.prompting.token_prepending:
            description += " with token prepending"
        return description
    prompt_of_model: Any = compared.encoder.get("prompt")
    if not prompt_of_model:
        return "none"
    return prompt_of_model if isinstance(prompt_of_model, str) else json.dumps(prompt_of_model)


def _describe_differences(runs: Sequence[ComparedRun], value_of: Callable[[ComparedRun], str]) -> str:
    """Return the values of the runs, each with the names of its runs; empty if all runs have the same."""
    names_by_value: dict[str, list[str]] = {}
    for compared in runs:
        names_by_value.setdefault(value_of(compared), []).append(compared.name)
    if len(names_by_value) == 1:
        return ""
    return "; ".join(f"{value}: {listed(names)}" for value, names in names_by_value.items())


# The share of sticky tokens is reported as a number per 10,000 examined tokens.
PER = 10_000

# What the columns of the table mean.
GLOSSARY = {
    "erases most": "The token whose copies leave least of a text's meaning, and how much less they leave "
    "than copies of an ordinary token. The interval describes how the share of this one token varies over "
    "texts. It does not account for the token being the largest of many.",
    "pushes most": "The token whose copies push documents into the most wrong results, and in how many times "
    "as many they are. The interval has the same meaning as for the erased share, over queries and "
    "documents.",
    "sticky tokens per 10,000": "The number of sticky tokens per 10,000 examined tokens. The interval is "
    "exact (Clopper and Pearson 1934). It treats the examined tokens as a random sample: of the vocabulary, "
    "or, if all tokens were examined, of the vocabularies that could have been built. It does not account "
    "for wrong verdicts.",
    "repaired copy": "Whether the run folder records a repaired copy of the model, and whether the copy was "
    "verified.",
}
# Columns of the comparison table that may be null: for each measure, in the order of `WorstToken`'s fields.
_LARGEST: dict[str, dict[str, type[pl.DataType]]] = {
    measure.key: {
        f"{measure.verb}_most_token_id": pl.Int64,
        f"{measure.verb}_most_token": pl.String,
        f"{measure.verb}_most_verdict": pl.String,
        f"{measure.verb}_most_severity": pl.String,
        measure.key: pl.Float64,
        measure.low.key: pl.Float64,
        measure.high.key: pl.Float64,
    }
    for measure in MEASURES
}
_SHARE: dict[str, type[pl.DataType]] = dict.fromkeys(
    ("sticky_per_10000", "sticky_per_10000_low", "sticky_per_10000_high"), pl.Float64
)


def _fill_columns(columns: Mapping[str, Any], values: Sequence[Any] | None) -> dict[str, Any]:
    # The columns are keyed by name; only their order matters here.
    if values is None:
        return dict.fromkeys(columns)  # null in every column
    return dict(zip(columns, values, strict=True))


@dataclass(frozen=True)
class Comparison:
    """Finished runs side by side, in the order they were passed.

    Attributes:
        runs: The runs with their names.
        comparability: What can be compared between the runs.
        agreements: The agreement of each pair of runs.
        tokens: The tokens that at least one run calls sticky. Tokens that are sticky in more runs come
            first.

    Examples:
        >>> stickytoken.compare([run, "tampered"]).table.columns[:2]
        ['run', 'folder']
    """

    runs: tuple[ComparedRun, ...]
    comparability: Comparability
    agreements: tuple[Agreement, ...]
    tokens: tuple[ComparedToken, ...]

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(self.names)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct names of the runs."""
        return tuple(compared.name for compared in self.runs)

    @property
    def table(self) -> pl.DataFrame:
        """A table with one row per run and a column for each number; a missing number is null."""
        rows = []
        for compared in self.runs:
            run = compared.run
            share_per_10000 = None
            if compared.share is not None:
                share_per_10000 = [PER * number for number in compared.share]
            row = {
                "run": compared.name,
                "folder": str(run.path),
                "model": run.model_name,
                "method": run.record.method,
                "texts": run.record.corpus.source,
                "examined": len(run.tokens),
                "available": run.available,
                "selection": compared.examined.value,
            }
            for measure in MEASURES:
                row |= _fill_columns(_LARGEST[measure.key], compared.largest(measure))
            row["sticky"] = len(run.sticky)
            row |= _fill_columns(_SHARE, share_per_10000)
            row["confidence"] = compared.confidence
            row["repair"] = compared.repair
            rows.append(row)
        # Without a value in any row, polars could not tell the type of a column.
        types = dict(_SHARE)
        for columns in _LARGEST.values():
            types |= columns
        return pl.DataFrame(rows, schema_overrides=types)

    @property
    def notes(self) -> list[str]:
        """Remarks on individual runs, each with the name of its run."""
        notes = []
        for compared in self.runs:
            version = compared.run.record.identity_parts.get("version")
            if isinstance(version, int) and version < IDENTITY_VERSION:
                notes.append(
                    f"{compared.name}: made by an earlier version of the method: detect again for current "
                    "verdicts"
                )
        for compared in self.runs:
            notes += [f"{compared.name}: {note}" for note in compared.run.description.notes]
        return notes

    @property
    def basis(self) -> str:
        """A phrase that says what the intervals cover, and at which confidence."""
        levels = sorted({compared.confidence for compared in self.runs})
        percentages = " and ".join(f"{100 * level:.4g}%" for level in levels)
        return (
            f"intervals ({percentages}): for the erased share and the push, they cover the variation of one "
            "token over texts; for the share of sticky tokens, they are exact (Clopper and Pearson 1934)"
        )

    def summary(self) -> dict[str, Any]:
        """Return the comparison as JSON-serializable values."""
        answers, reasons = self.comparability
        return {
            "runs": self.table.to_dicts(),
            "comparable": {measure.value: answer.value for measure, answer in answers.items()},
            "reasons": [_reason_values(reason) for reason in reasons],
            "notes": self.notes,
            "agreements": [asdict(agreement) for agreement in self.agreements],
            "tokens": [_token_values(token) for token in self.tokens],
            "reading": GLOSSARY,
        }


def _reason_values(reason: Reason) -> dict[str, Any]:
    measures = [measure.value for measure in reason.measures]
    return {"answer": reason.answer.value, "said": reason.sentence, "measures": measures}


def _token_values(token: ComparedToken) -> dict[str, Any]:
    return {"token": token.token, "runs": [in_run._asdict() for in_run in token.in_runs]}


def shown_reason(reason: Reason) -> str:
    """Return a reason as text, which begins with the affected measures if the reason affects only some."""
    if len(reason.measures) == len(ComparedNumber):
        return reason.sentence
    measures = ", ".join(measure.value for measure in reason.measures)
    return f"{measures}: {reason.sentence}"


def shown_token(worst: WorstToken | None) -> str:
    """Return a token as text, with its severity or else its verdict; ``-`` if there is no token."""
    if worst is None:
        return "-"
    return f"{quoted(worst.token)} ({worst.severity or worst.verdict or 'not judged'})"


def shown_value(measure: Column, worst: WorstToken | None) -> str:
    """Return the value of a measure for a token as text, with its interval; ``-`` if there is no token."""
    if worst is None:
        return "-"
    value = measure.text(worst.value)
    if worst.low is None or worst.high is None:
        return value
    return f"{value} ({interval(worst.low, worst.high, measure.digits or 0, measure.unit)})"


def shown_share(compared: ComparedRun) -> str:
    """Return the share of sticky tokens per 10,000 as text, with its interval; ``-`` if it is unknown."""
    share = compared.share
    if share is None:
        return "-"
    return f"{PER * share.value:.1f} ({PER * share.low:.1f} to {PER * share.high:.1f})"


# The columns of the comparison table: how the cell of a run is made, keyed by heading.
_CELL_MAKERS: dict[str, Callable[[ComparedRun], str]] = {
    "run": lambda compared: compared.name,
    "method": lambda compared: compared.run.record.method,
    "examined": lambda compared: f"{len(compared.run.tokens):,} of {compared.run.available:,}",
    "erases most": lambda compared: shown_token(compared.largest(ERASED)),
    "erased": lambda compared: shown_value(ERASED, compared.largest(ERASED)),
    "pushes most": lambda compared: shown_token(compared.largest(PUSH)),
    "push": lambda compared: shown_value(PUSH, compared.largest(PUSH)),
    "sticky per 10,000": shown_share,
    "repaired copy": lambda compared: compared.repair,
}
HEADINGS = tuple(_CELL_MAKERS)


def shown_rows(comparison: Comparison) -> list[list[str]]:
    """Return the cells of the comparison table as text, one row per run, in the order of `HEADINGS`."""

    def make_row(compared: ComparedRun) -> list[str]:
        return [make_cell(compared) for make_cell in _CELL_MAKERS.values()]

    return [make_row(compared) for compared in comparison.runs]


def compare(runs: Iterable[Run | str | Path]) -> Comparison:
    """Compare finished runs. No model is needed.

    Args:
        runs: At least two runs or run folders, each passed once.

    Returns:
        The runs side by side, in the order they were passed.

    Raises:
        InputError: Fewer than two runs were passed, or a run was passed twice.
        RunError: A folder is not a run, is damaged or is not finished.

    Examples:
        >>> comparison = stickytoken.compare([run, "tampered"])
        >>> comparison.names
        ('all-MiniLM-L6-v2', 'tampered all-MiniLM-L6-v2')
    """
    opened = [open_run(run) for run in list_of("runs or run folders", "runs", runs)]
    if len(opened) < 2:
        raise InputError(
            f"a comparison needs at least two runs, but {len(opened)} was passed: pass another run, or "
            "describe a single run with `stickytoken report`"
        )
    paths = [run.path.resolve() for run in opened]
    for run, path in zip(opened, paths, strict=True):
        if paths.count(path) > 1:
            raise InputError(f"the run {run.path} was passed twice: pass each run once")
    compared = [ComparedRun(name, run) for name, run in zip(_choose_names(opened), opened, strict=True)]
    most_serious_first = [Answer.NO, Answer.CARE]
    reasons = sorted(_find_reasons(compared), key=lambda reason: most_serious_first.index(reason.answer))
    answers = {}
    for measure in ComparedNumber:
        reasons_of_measure = [reason for reason in reasons if measure in reason.measures]
        # The most serious reason decides.
        answers[measure] = reasons_of_measure[0].answer if reasons_of_measure else Answer.YES
    return Comparison(
        runs=tuple(compared),
        comparability=Comparability(answers, tuple(reasons)),
        agreements=tuple(agreement(*pair) for pair in combinations(compared, 2)),
        tokens=compared_tokens(compared),
    )


def _choose_names(runs: Sequence[Run]) -> list[str]:
    """Return a distinct name for each run, the shortest of a kind that tells all of them apart."""
    short_titles = [run.record.model.short_title for run in runs]
    titles = [run.model_title for run in runs]
    with_methods = [f"{title} ({run.record.method})" for title, run in zip(short_titles, runs, strict=True)]
    with_folders = [f"{title} ({run.path.name})" for title, run in zip(short_titles, runs, strict=True)]
    for names in (short_titles, titles, with_methods, with_folders):
        if len(set(names)) == len(names):
            return names
    return [f"{number}: {name}" for number, name in enumerate(with_folders, start=1)]
