"""Study a model as Chen et al. (2025) do, and say which list of sticky tokens predicts what.

`study` only puts measurements together that have functions of their own: `detect`, `audit`, `impact`,
`compare` and `report`. Each is a folder that resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.measurement as store
from stickytoken.audits import Audit, AuditSettings, audit
from stickytoken.audits.results import ORDINARY
from stickytoken.comparisons import Agreement, compare
from stickytoken.comparisons.published import published_list
from stickytoken.data import PairCorpus, PairSource, Sentences, SentenceSource, choose_corpus
from stickytoken.data.collection import bundled_collection
from stickytoken.data.documents import STDIN, Document, DocumentSource, NamedColumns, open_documents
from stickytoken.data.metrics import fingerprint
from stickytoken.data.rows import Meter
from stickytoken.data.tasks import QUERIES, write_retrieval
from stickytoken.detection import Run, detect
from stickytoken.encoders.protocol import IdEncoder, require_ids
from stickytoken.encoders.roles import Role, identity_of_queries, in_role
from stickytoken.errors import InputError, RunError, reading, require_package
from stickytoken.impacts import Impact, TaskSource, impact, load_tasks
from stickytoken.loading import AnyModel, load_encoder
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.measurement.ray_engine import EngineChoice
from stickytoken.reports import report
from stickytoken.search import COPIES, TOP
from stickytoken.settings.impact import Edits, ImpactSettings
from stickytoken.settings.std import PUBLISHED_SEED, Scores, StdSettings
from stickytoken.validation import file_path, list_of, markdown, markdown_table, visible, whole_number
from stickytoken.vocabulary import categorize

__all__ = ["Study", "study"]

# Most tokens of a list that are measured in documents, its worst, and number of random tokens beside them.
_MOST_TOKENS = 32
# Number of sampled tokens whose scores are compared under other sentence pairs. The standard error of a rank
# correlation over them is about 0.1.
_REPEATED = 64
# Fewest tokens of a group whose mean gets an interval. That of two tokens is wider than all possible values.
_FEWEST = 3
# Confidence level of the differences between the means of two groups of tokens.
_CONFIDENCE = 0.95
# Harms in documents. All others are tasks.
_HIDDEN = f"documents found in the top {TOP}"
_PUSHED = "documents pushed, times as many results"
# What the lists are called on the page.
_LISTS = {
    "std": "tokens that `std` finds, the paper's method",
    "published": "tokens that the paper published for this model",
    "profile": "tokens that `profile` finds, the default method",
}
_PAGE = "study.md"
_RECORD = "study.json"


@dataclass(frozen=True)
class Study:
    """What the sticky tokens of a model predict.

    Attributes:
        path: folder of the study.
        std: run of the paper's method.
        profile: run of the default method.
        audit: what copies do to documents.
        impacts: what copies cost on the tasks, keyed by list.
        tokens: one row per token of a list, and per random token, with the lists that have it.
        harm: one row per list and harm. ``value`` is the mean over the list, ``random`` that over random
            tokens (in documents) or benign ones that were drawn for the list (on a task). ``predicts`` says
            whether the list does more harm than they do, by the whole interval of the difference; null if the
            list has fewer than three tokens, or the task has no interval.
        stability: one row per pair of runs of ``std`` that differ in seed and sentence pairs: the rank
            correlation of their scores and, without a sample, the Jaccard index of their sticky tokens.
        notes: what could not be written, such as figures without a browser.

    Examples:
        >>> measured = stickytoken.study(model, sample=300)  # doctest: +SKIP
        >>> measured.harm  # doctest: +SKIP
    """

    path: Path
    std: Run
    profile: Run
    audit: Audit
    impacts: Mapping[str, Impact]
    tokens: pl.DataFrame
    harm: pl.DataFrame
    stability: pl.DataFrame
    notes: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """Return the tables as JSON-serializable values."""
        tables = {name: table.to_dicts() for name, table in self._tables.items()}
        return {"study": str(self.path), "model": self.std.model_name, **tables}

    @property
    def _tables(self) -> dict[str, pl.DataFrame]:
        return {"harm": self.harm, "tokens": self.tokens, "stability": self.stability}


def study(  # noqa: PLR0913 - all of them keyword-only, one decision each
    encoder: AnyModel,
    *,
    tasks: Sequence[TaskSource] = (),
    documents: DocumentSource | None = None,
    sentences: SentenceSource | None = None,
    pairs: PairSource | None = None,
    sample: int | None = None,
    sets: int = 2,
    seed: int = PUBLISHED_SEED,
    out: str | Path | None = None,
    engine: EngineChoice = "local",
    progress: ProgressCallback = ignore_progress,
) -> Study:
    """Do for a model what the paper does: find its sticky tokens, measure their harm, and compare the lists.

    Both methods find their tokens. Those of each list, the published ones of this model and random ones are
    written into documents, and into the texts of the tasks as the paper does it. The paper's method is then
    repeated with other sentence pairs and seeds. The folder gets a page, tables as CSV and LaTeX, and the
    figures of the run of the paper's method. The same call continues an interrupted study. If no browser can
    draw the figures, the study notes so, and the same call draws them later.

    Args:
        encoder: anything that `load_encoder` takes, or an encoder that reads token ids.
        tasks: tasks as in `impact`.
        documents: documents as in `audit`. If None, the packaged collection is used, by which ``profile`` has
            selected its tokens, so that its row is in its own favour.
        sentences: the corpus of both methods, as in `detect`.
        pairs: sentence pairs of the paper's method, as in `detect`.
        sample: number of random tokens to measure. If None, the whole vocabulary is measured.
        sets: number of times that the paper's method is repeated with the next seeds. Each time, pairs are
            drawn again from the sentences; of given pairs, a random half is used. Of a sample, only the
            scores of at most 64 tokens are compared.
        seed: seed of all random sampling.
        out: folder of the study. If None, it is ``runs/<model>-study-<identity>``.
        engine: where to compute, as in `detect`.
        progress: called after every step.

    Raises:
        InputError: tasks, documents, sentences, pairs or tokens cannot be used.
        EncodingError: a text has no usable vector.
        RunError: the folder contains something other than this study.
        MissingExtraError: the ``figures`` extra is not installed, or a task needs another one.

    Examples:
        >>> measured = stickytoken.study(model, tasks=["sts.jsonl"], sample=300)  # doctest: +SKIP
        >>> measured.harm  # doctest: +SKIP
    """
    require_package("kaleido", "a study", "figures")
    sets = whole_number("sets", sets)
    if sets < 0:
        raise InputError(f"sets is {sets}: pass 0 or more")
    task_sources = list_of("tasks", "tasks", tasks)
    # What cannot be used is refused before the first run, which may take hours.
    load_tasks(task_sources)
    documents_identity = bundled_collection().source
    if documents is not None:
        documents, documents_identity = _make_rereadable(documents)
    model = require_ids(load_encoder(encoder), "a study", "load the model on this machine")
    # Both may be read only once.
    corpus = choose_corpus(sentences, pairs)
    own_sentences = corpus if isinstance(corpus, Sentences) else None
    own_pairs = corpus.pairs if isinstance(corpus, PairCorpus) else None
    queries = identity_of_queries(in_role(model, Role.DOCUMENT))
    inputs = {
        "encoder": asdict(model.identify()),
        "queries": None if queries is None else asdict(queries),
        "corpus": corpus.fingerprint,
        "documents": documents_identity,
        "sample": sample,
        "seed": seed,
    }  # tasks and sets can be added to a study later
    path = store.default_folder(model.name, "study", digest(inputs)) if out is None else file_path("out", out)
    folder = store.ResultFolder(path)
    _require_same(folder, inputs)  # before the lock is written into a folder of something else
    with folder.locked():
        _require_same(folder, inputs)  # another process may have begun a study since
        store.write_atomically(path / _RECORD, json.dumps(inputs, indent=1).encode())
        shared_options: dict[str, Any] = {"engine": engine, "progress": progress}
        settings = StdSettings(seed=seed, scores=Scores.ALL)  # as the paper, and for the rank correlations
        std = detect(
            model,
            settings=settings,
            sentences=own_sentences,
            pairs=own_pairs,
            sample=sample,
            out=path / "std",
            **shared_options,
        )
        profile = detect(
            model,
            method="profile",
            sentences=own_sentences,
            sample=sample,
            seed=seed,
            out=path / "profile",
            **shared_options,
        )
        ids_by_list = _collect_lists(model, std, profile)
        packaged = documents is None
        if documents is None:
            documents = path / "documents"
            collection = bundled_collection()
            write_retrieval(documents, collection.documents, collection.queries, collection.answers)
        ids = {token_id for listed_ids in ids_by_list.values() for token_id in listed_ids[:_MOST_TOKENS]}
        audited = audit(
            profile,
            documents,
            encoder=model,
            tokens=sorted(ids) or std.strongest(1)["token_id"],  # without any list, only random tokens matter
            settings=AuditSettings(tokens=_MOST_TOKENS, seed=seed),
            **shared_options,
        )
        impacts = {}
        if task_sources:
            for name, listed_ids in ids_by_list.items():
                if listed_ids:
                    impacts[name] = impact(
                        model,
                        task_sources,
                        run=profile if name == "profile" else std,
                        tokens=listed_ids,
                        settings=ImpactSettings(edits=Edits.PAPER, seed=seed),
                        **shared_options,
                    )
        repeated = _repeat(model, std, settings, corpus, sets, path, shared_options)
        tokens = _make_token_table(audited, std, ids_by_list)
        notes = []
        try:
            report(std, figures=path / "figures")
        except InputError as error:  # no browser can be started, which must not cost the hours before
            notes.append(f"there are no figures, and the same command draws them later: {error}")
        finished = Study(
            path=path,
            std=std,
            profile=profile,
            audit=audited,
            impacts=impacts,
            tokens=tokens,
            harm=pl.DataFrame(
                [*_harm_in_documents(tokens, ids_by_list), *_harm_on_tasks(impacts, ids_by_list)],
                _HARM_COLUMNS,
            ),
            stability=_compare_repeats([std, *repeated]),
            notes=tuple(notes),
        )
        for name, table in finished._tables.items():
            store.write_atomically(path / f"{name}.csv", table.write_csv().encode())
            store.write_atomically(
                path / f"{name}.tex", _format_latex(table).encode("utf-8", "backslashreplace")
            )
        page = _format_page(finished, ids_by_list, packaged=packaged)
        store.write_atomically(path / _PAGE, page.encode("utf-8", "backslashreplace"))
        return finished


def _require_same(folder: store.ResultFolder, inputs: Mapping[str, Any]) -> None:
    """Check that a folder contains this study or nothing.

    Raises:
        RunError: the folder contains another study, or something else.
    """
    path = folder.path
    record = path / _RECORD
    if record.is_file():
        try:
            with reading(record, RunError):
                present = json.loads(record.read_bytes())
        except ValueError as error:
            raise RunError(f"{record} is damaged: delete it, or choose another folder") from error
        if present != inputs:
            resume.refuse_different(path, "study", inputs, present)
    elif folder.holds_other_files(_RECORD) or (path / store.IDENTITY_FILE).is_file():
        raise RunError(f"{path} contains something other than a study: choose another folder")


def _make_rereadable(documents: DocumentSource) -> tuple[DocumentSource, str]:
    """Read documents, and return a source from which they can be read again, with a hash of its content.

    The hash covers the queries and relevance judgements of a BEIR folder, because the audit uses them.
    """
    collection = open_documents(documents, NamedColumns(needs_source=False))
    texts = [record for record in collection.read(Meter()) if isinstance(record, Document)]
    content: list[Any] = [[text.id, text.text] for text in texts]
    if isinstance(documents, Iterator) or (isinstance(documents, str) and documents == STDIN):
        documents = [{"_id": text.id, "text": text.text, "source": text.source} for text in texts]
    elif isinstance(documents, (str, Path)):
        folder = Path(documents)
        files = [folder / QUERIES, *sorted(folder.glob("qrels/*.tsv"))]
        content += [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    return documents, fingerprint(content)


def _collect_lists(model: IdEncoder, std: Run, profile: Run) -> dict[str, list[int]]:
    """Return the token ids of each list, keyed by its name in `_LISTS`; without one that doesn't exist."""
    available = {token.id for token in categorize(model.tokenizer).available}
    ids_by_list = {"std": std.sticky["token_id"].to_list()}
    published = published_list(std)
    if published is not None:
        ids_by_list["published"] = [
            token_id for token_id in published["token_id"].to_list() if token_id in available
        ]
    ids_by_list["profile"] = profile.sticky["token_id"].to_list()
    return ids_by_list


def _repeat(
    model: IdEncoder,
    std: Run,
    settings: StdSettings,
    corpus: Sentences | PairCorpus,
    sets: int,
    path: Path,
    shared_options: Mapping[str, Any],
) -> list[Run]:
    """Repeat the paper's method on the tokens of a run, with other seeds and sentence pairs.

    Of sampled tokens, only some are scored again, and hardly validated: 2% of a sample are too few candidates
    for outliers among them.
    """
    tokens = None
    if not _measures_all_tokens(std):
        tokens = std.tokens["token_id"].shuffle(settings.seed).head(_REPEATED).sort().to_list()
        settings = replace(settings, validation_pairs=1)
    runs = []
    for number in range(1, sets + 1):
        seed = settings.seed + number
        texts: dict[str, Any] = {"sentences": corpus}
        if isinstance(corpus, PairCorpus):
            count = len(corpus.pairs)
            chosen = np.random.default_rng(seed).choice(count, max(1, count // 2), replace=False)
            texts = {"pairs": [corpus.pairs[index] for index in sorted(chosen.tolist())]}
        run = detect(
            model,
            settings=settings,
            seed=seed,
            tokens=tokens,
            evidence=False,
            out=path / f"set-{number}",
            **texts,
            **shared_options,
        )
        runs.append(run)
    return runs


def _make_token_table(audited: Audit, std: Run, ids_by_list: Mapping[str, Sequence[int]]) -> pl.DataFrame:
    lists_of_tokens = []
    for token_id, group in audited.tokens.select("token_id", "group").iter_rows():
        of_token = [name for name, ids in ids_by_list.items() if token_id in ids]
        lists_of_tokens.append(", ".join(of_token) or ("random" if group == ORDINARY else "none"))
    scores = std.tokens.select("token_id", "sticky_score", "validation_rate")
    return (
        audited.tokens.select("token_id", "token", "erased", "push", "found")
        .insert_column(2, pl.Series("lists", lists_of_tokens, pl.String))
        .join(scores, on="token_id", how="left", maintain_order="left")
    )


_HARM_COLUMNS = {
    "list": pl.String,
    "harm": pl.String,
    "tokens": pl.Int64,
    "value": pl.Float64,
    "random": pl.Float64,
    "difference": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "predicts": pl.Boolean,
}


def _harm_in_documents(
    tokens: pl.DataFrame, ids_by_list: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """Yield a row per list and harm in documents: the mean over its tokens, beside that of random ones.

    A list predicts a harm if the whole interval of the difference lies on the harmful side of zero.
    """
    random_tokens = tokens.filter(lists="random")
    for list_name, ids in ids_by_list.items():
        listed_tokens = tokens.filter(pl.col("token_id").is_in(list(ids)))
        for harm, column, is_harmful_if_lower in ((_HIDDEN, "found", True), (_PUSHED, "push", False)):
            listed_values = listed_tokens[column].drop_nulls().to_numpy()
            random_values = random_tokens[column].drop_nulls().to_numpy()
            row: dict[str, Any] = {"list": list_name, "harm": harm, "tokens": len(listed_values)}
            if len(listed_values) and len(random_values):
                row |= {"value": listed_values.mean(), "random": random_values.mean()}
                row["difference"] = row["value"] - row["random"]
            if min(len(listed_values), len(random_values)) >= _FEWEST:
                low, high = _difference_interval(listed_values, random_values)
                predicts = high < 0 if is_harmful_if_lower else low > 0
                row |= {"low": low, "high": high, "predicts": predicts}
            yield row


def _difference_interval(values: NDArray[np.float64], others: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of the difference of two means, by Welch's t-test (Welch 1947, Biometrika 34:28).

    scipy's function warns if all values of a group are equal, as shares of a few queries may be.
    """
    from scipy.stats import t

    variances = np.array([values.var(ddof=1) / len(values), others.var(ddof=1) / len(others)])
    difference = float(values.mean() - others.mean())
    if not variances.any():
        return difference, difference
    freedom = variances.sum() ** 2 / (variances**2 / (np.array([len(values), len(others)]) - 1)).sum()
    reach = float(t.ppf((1 + _CONFIDENCE) / 2, freedom) * np.sqrt(variances.sum()))
    return difference - reach, difference + reach


def _harm_on_tasks(
    impacts: Mapping[str, Impact], ids_by_list: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """Yield a row per list and task: the main score with its tokens, beside that with benign ones."""
    for name, measured in impacts.items():
        for effect in measured.effects.filter("main").iter_rows(named=True):
            low = effect["difference_low"]
            high = effect["difference_high"]
            is_defined = effect["sticky"] is not None and effect["benign"] is not None
            # The effect is how much more the score drops, so that the scores differ by its negative.
            yield {
                "list": name,
                "harm": f"{effect['task']}, {effect['metric']}",
                "tokens": len(ids_by_list[name]),
                "value": effect["sticky"],
                "random": effect["benign"],
                "difference": effect["sticky"] - effect["benign"] if is_defined else None,
                "low": None if high is None else -high,
                "high": None if low is None else -low,
                "predicts": None if low is None else low > 0,
            }


def _measures_all_tokens(std: Run) -> bool:
    return len(std.tokens) == std.available


_STICKY_COLUMNS = {"sticky_in_both": pl.Int64, "jaccard": pl.Float64}
_STABILITY_COLUMNS = {
    "first": pl.String,
    "second": pl.String,
    "shared": pl.Int64,
    "spearman_score": pl.Float64,
    **_STICKY_COLUMNS,
}


def _compare_repeats(runs: Sequence[Run]) -> pl.DataFrame:
    agreements: Sequence[Agreement] = compare(runs).agreements if len(runs) > 1 else ()
    table = pl.DataFrame([asdict(agreement) for agreement in agreements], _STABILITY_COLUMNS)
    # Few tokens of a sample are sticky, too few to compare.
    return table if _measures_all_tokens(runs[0]) else table.drop(*_STICKY_COLUMNS)


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _format_latex(table: pl.DataFrame) -> str:
    rows = [" & ".join(map(_escape_latex, row)) for row in (table.columns, *table.iter_rows())]
    alignment = "".join("r" if dtype.is_numeric() else "l" for dtype in table.dtypes)
    lines = [f"\\begin{{tabular}}{{{alignment}}}", "\\toprule", rows[0] + " \\\\", "\\midrule"]
    lines += [f"{row} \\\\" for row in rows[1:]]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


_LATEX_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}"}
)


def _escape_latex(value: Any) -> str:
    return visible(_format_value(value)).translate(_LATEX_ESCAPES)


# Why the row of `profile` says less about documents than those of the other lists.
_IN_ITS_FAVOUR = (
    "**The row of `profile` is in its own favour**: these are the packaged documents, in which it has "
    "selected its tokens by their push. Pass `--documents` with others to compare the lists fairly."
)


def _format_page(study: Study, ids_by_list: Mapping[str, Sequence[int]], *, packaged: bool) -> str:
    result = study.audit.result
    index = study.audit.record.index
    counts = [f"- **{name}** ({len(ids)}): {_LISTS[name]}." for name, ids in ids_by_list.items()]
    without = "" if result.found_without is None else f" Without copies, {result.found_without:.3f}."
    sections = [
        f"# Which sticky tokens of {markdown(study.std.record.model.short_title)} predict harm?",
        "\n".join(counts),
        f"{len(study.std.tokens):,} of {study.std.available:,} tokens were measured.",
        "## Which list predicts what?",
        *([_IN_ITS_FAVOUR] if packaged else []),
        f"**All tokens share the same {len(result.stuffed_ids)} documents, but the interval is over tokens "
        "only**: it doesn't say how much the numbers would change with other documents.",
        _format_markdown(study.harm),
        f"Of {index.documents:,} documents, {COPIES} copies of a token were written into "
        f"{len(result.stuffed_ids)}, one at a time, for at most {_MOST_TOKENS} tokens of a list. "
        f"*Found*: the share of the queries that a document answers that find it among the first {TOP}."
        f"{without} *Pushed*: in how many times as many wrong results it is. *Random*: with copies "
        f"of random tokens. The interval covers {_CONFIDENCE:.0%}.",
        "On tasks, the texts are edited as Chen et al. do it. *Random*: with copies of benign tokens that "
        "were drawn for the list. The interval covers 90%, over queries, pairs or texts.",
        "A list predicts a harm if the whole interval says so.",
    ]
    if not study.stability.is_empty():
        sections += [
            "## How stable is the paper's list?",
            _format_markdown(study.stability),
            "Runs of `std` with other sentence pairs and seeds: the rank correlation of the scores of their "
            "shared tokens and, of a study of the whole vocabulary, the Jaccard index of the sticky ones.",
        ]
    sections += [
        "## Where is the rest?",
        "`harm`, `tokens` and `stability` are tables as `.csv` and `.tex`, `figures` has the figures as PDF, "
        "SVG and PNG, and `std`, `profile` and `set-1` are run folders.",
        *(f"Note: {markdown(note)}." for note in study.notes),
    ]
    return "\n\n".join(sections) + "\n"


def _format_markdown(table: pl.DataFrame) -> str:
    headings = [column.replace("_", " ") for column in table.columns]
    rows = (
        [markdown(value) if isinstance(value, str) else _format_value(value) for value in row]
        for row in table.iter_rows()
    )
    return markdown_table(headings, rows)
