"""The context that all tabs of the app share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stickytoken.data import Sentences
from stickytoken.detection.naming import available_tokens, parse_token, token_ids
from stickytoken.detection.run import Run, identify_model, is_same_model
from stickytoken.detection.run_folder import RunFolder, RunRecord
from stickytoken.encoders.protocol import IdReader
from stickytoken.encoders.text_encoder import as_id_reader
from stickytoken.errors import InputError, ModelError, RunError, StickyTokenError
from stickytoken.insertion import Placement, Token
from stickytoken.loading import load_encoder
from stickytoken.measurement import store
from stickytoken.reports.content import RunContent, read_content
from stickytoken.validation import file_path, visible
from stickytoken.vocabulary import Category, Vocabulary, categorize, match_benign

EXAMPLES = Path(__file__).parent / "example"
EXAMPLE = EXAMPLES / "all-MiniLM-L6-v2"
TAMPERED = EXAMPLES / "tampered"
# Maximum number of runs listed from a folder, latest first; more would make the list hard to use.
_MOST_RUNS = 50


@dataclass(frozen=True)
class ListedRun:
    """A run in the list of the app."""

    label: str
    path: Path
    record: RunRecord


class RunLibrary:
    """The runs that the app lists. A run is read when a visitor first opens it."""

    def __init__(self, runs: Sequence[ListedRun], left_out: Sequence[str] = ()) -> None:
        """List runs.

        Args:
            runs: The runs, with distinct labels.
            left_out: One line for each folder that could not be read as a run, with the reason.
        """
        self.paths = {run.label: run.path for run in runs}
        self.records = {run.label: run.record for run in runs}
        self.left_out = tuple(left_out)
        self._contents: dict[str, RunContent] = {}
        self._lock = threading.Lock()

    @property
    def labels(self) -> list[str]:
        return list(self.paths)

    def report_path(self, label: str) -> str:
        """Return the path of a run's report on the app's page."""
        return f"report/{self.labels.index(label)}"

    def path_of_report(self, number: int) -> Path:
        """Return the folder of the run whose `report_path` ends in this number, or raise RunError."""
        if not 0 <= number < len(self.paths):
            raise RunError("there is no run with that number: reload the page of the app")
        return self.paths[self.labels[number]]

    def content(self, label: object) -> RunContent:
        """Return the content of the run with the given label. The run is read only on the first call.

        Raises:
            RunError: There is no run with that label, or the run is damaged.
        """
        if not isinstance(label, str) or label not in self.paths:
            raise RunError("there is no run with that name: choose one from the list")
        with self._lock:  # visitors may ask for it at the same time
            if label not in self._contents:
                self._contents[label] = read_content(self.paths[label])
            return self._contents[label]


def find_runs(
    named: Sequence[Path], folder: Path, examples: Sequence[Path] = (TAMPERED, EXAMPLE)
) -> RunLibrary:
    """List the runs that the user named, then those in a folder, latest first, then packaged examples.

    Args:
        named: Run folders that the user named.
        folder: Folder that may contain run folders. Runs that cannot be read or are not finished are left
            out.
        examples: Packaged run folders. Folders that do not exist are left out.

    Raises:
        RunError: A folder in ``named`` is not a run folder, or its run is damaged or not finished.
    """
    named = [file_path("the run", path) for path in named]
    runs = [_list_run(path) for path in named]
    named_paths = {path.resolve() for path in named}
    errors = []
    for path in _find_latest_runs(file_path("the folder of runs", folder)):
        if path.resolve() in named_paths:
            continue
        try:
            run = _list_run(path)
            # The app opens the first run when it starts, so this run must be readable in full.
            is_opened_first = not runs
            if is_opened_first:
                read_content(path)
            runs.append(run)
        except StickyTokenError as error:
            errors.append(error)
    for example in examples:
        if (example / store.RUN_FILE).is_file():
            record = RunFolder(example).read_run()
            runs.append(ListedRun(f"{record.model.short_title} (example)", example, record))
    left_out = [" ".join(visible(str(error)).split()) for error in errors]
    return RunLibrary(_make_labels_distinct(runs), left_out)


def _find_latest_runs(folder: Path) -> list[Path]:
    try:
        run_folders = [path.parent for path in folder.glob(f"*/{store.RUN_FILE}")]
        return sorted(run_folders, key=lambda path: (-path.stat().st_mtime, path.name))[:_MOST_RUNS]
    except OSError:
        # The user did not name this folder, so it is not an error if it is unreadable.
        return []


def _make_labels_distinct(runs: Sequence[ListedRun]) -> list[ListedRun]:
    labels = [run.label for run in runs]
    distinct = []
    for run in runs:
        is_shared = labels.count(run.label) > 1
        label = f"{run.label}, {visible(str(run.path))}" if is_shared else run.label
        distinct.append(replace(run, label=label))
    return distinct


def _list_run(path: Path) -> ListedRun:
    record, _ = RunFolder(path).read_finished()
    return ListedRun(visible(path.resolve().name), path, record)


# Seed for the choice of benign tokens.
_SEED = 42


class SharedModel:
    """A loaded model that visitors use one at a time. It does not store visitors' input."""

    def __init__(self, encoder: IdReader) -> None:
        self._encoder = encoder
        self._identity = identify_model(encoder)  # computed once: the model of a server does not change
        self._lock = threading.Lock()
        self.vocabulary: Vocabulary = categorize(encoder.tokenizer)
        available = self.vocabulary.available
        # Tokens that the model can't take even alone: its embedding matrix has no row for them.
        self._unread = frozenset(token.id for token in available if not encoder.fits((token.id,)))

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._encoder.name

    @contextmanager
    def encoder(self) -> Iterator[IdReader]:
        """Yield the model, to one visitor at a time."""
        with self._lock:
            yield self._encoder

    def is_model_of(self, record: RunRecord) -> bool:
        """Return whether a run was made with this model."""
        return is_same_model(record, self._identity)

    def choose_benign(self, token_id: int, run: Run | None, count: int) -> tuple[Token, ...]:
        """Return at most `count` benign tokens that are matched to the given token.

        Sticky tokens of the run, and tokens that do not fit into the model's input, are excluded.
        """
        excluded = self._unread | {token_id}
        if run is not None:  # without a run, no token is known to be sticky
            excluded |= run.sticky_ids
        return match_benign(self.vocabulary, token_id, excluded, count, _SEED).tokens

    def name_of(self, token_id: int) -> str:
        """Return what a visitor can type to name a token.

        This is the token's string, or # and its id if the string is ambiguous or has invisible characters.
        """
        name = self._string(token_id)
        try:
            is_unambiguous = named_token(self.vocabulary, name).id == token_id
        except InputError:
            is_unambiguous = False
        can_be_typed = visible(name) == name
        return name if is_unambiguous and can_be_typed else f"#{token_id}"

    def shown_name(self, token_id: int) -> str:
        """Return the string of a token, with invisible characters made visible."""
        return visible(self._string(token_id))

    def _string(self, token_id: int) -> str:
        if token_id not in self.vocabulary.ids:
            raise InputError(f"the vocabulary has no token id {token_id}: choose a token from the list")
        return self.vocabulary.tokens[self.vocabulary.ids.index(token_id)]


# Limits on a visitor's input. Larger inputs would keep other visitors waiting.
TEXT_CHARACTERS = 1000
COPIES = 32
_TOKEN_CHARACTERS = 200
# No vocabulary has ids with more digits.
_MOST_DIGITS_OF_ID = 9


def check_text(name: str, text: object) -> str:
    """Return a sentence that a visitor typed, or raise InputError with the name of its field."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{name} is empty: write a sentence")
    if len(text) > TEXT_CHARACTERS:
        raise InputError(
            f"{name} has {len(text):,} characters, and the limit is {TEXT_CHARACTERS:,}: shorten it"
        )
    return text


def check_count(name: str, value: object, smallest: int, largest: int) -> int:
    """Return a whole number that a visitor typed, or raise InputError with the name of its field."""
    advice = f"enter a whole number from {smallest} to {largest}"
    if value is None:
        raise InputError(f"{name} is empty: {advice}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} is not a number: {advice}")
    if not smallest <= value <= largest or value != int(value):
        raise InputError(f"{name} is {value!s:.20}: {advice}")
    return int(value)


def check_placement(value: object) -> Placement:
    """Return the placement that a visitor chose, or raise InputError."""
    if not isinstance(value, str) or value not in set(Placement):
        raise InputError(f"the place of the copies is unknown: choose one of {', '.join(Placement)}")
    return Placement(value)


def check_token_id(value: object) -> int:
    """Return the id of a token that a visitor chose from a list (as a number) or a table (as text)."""
    # Digits are counted before the conversion, because Python refuses to convert very many.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS_OF_ID:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**_MOST_DIGITS_OF_ID:
        return value
    raise InputError("no token with that id: choose one from the list")


def named_token(vocabulary: Vocabulary, name: object) -> Token:
    """Return the token that a visitor named by its string, or by # and its id.

    Raises:
        InputError: There is no such token, or it cannot occur in text.
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError("the token is empty: write it as in the vocabulary, or # and its id")
    if len(name) > _TOKEN_CHARACTERS:
        raise InputError(f"the token has {len(name):,} characters, and the limit is {_TOKEN_CHARACTERS}")
    (token,) = available_tokens(vocabulary, token_ids(vocabulary, parse_token(name)))
    return token


@dataclass(frozen=True)
class AppContext:
    """The model, the runs and the texts that all visitors share. The context never changes."""

    model: SharedModel  # the loaded model
    library: RunLibrary  # all listed runs
    # A finished run of the loaded model, for its tokens; None if there is no such run
    content: RunContent | None
    corpus: Sentences

    @property
    def run(self) -> Run | None:
        return None if self.content is None else self.content.run

    def verdict_of(self, token_id: int) -> str | None:
        """Return the run's verdict on a token, with the reason; None if the token was not judged."""
        rows = [] if self.run is None else self.run.tokens.filter(token_id=token_id).to_dicts()
        if not rows or rows[0]["verdict"] is None:
            return None
        verdict = f"{rows[0]['verdict']} in the run"
        reason = rows[0].get("reason")
        return f"{verdict}: {reason}" if reason else verdict


def make_context(model: SharedModel, library: RunLibrary, corpus: Sentences) -> AppContext:
    """Return the context of an app, which contains the first finished run of the loaded model, if any."""
    for label, record in library.records.items():
        is_finished = record.result is not None
        if is_finished and model.is_model_of(record):
            return AppContext(model, library, library.content(label), corpus)
    return AppContext(model, library, content=None, corpus=corpus)


class Startup:
    """The runs, which are available at once, and the context, which is available once the model is loaded."""

    def __init__(self, model: str, library: RunLibrary) -> None:
        self.model_name = model
        self.library = library
        self._context: Future[AppContext] = Future()

    @property
    def first_label(self) -> str | None:
        """The label of the run that the app shows first; None if there are no runs."""
        return next(iter(self.library.labels), None)

    def finish(self, load: Callable[[], AppContext]) -> None:
        """Call `load`, and pass the context or the error on to visitors who wait in `context`."""
        try:
            context = load()
        except StickyTokenError as error:
            self._context.set_exception(error)
            raise
        except BaseException:  # visitors must not wait for ever, even if the app is stopped
            self._context.set_exception(ModelError(f"{self.model_name} was not loaded: start the app again"))
            raise
        self._context.set_result(context)

    def context(self) -> AppContext:
        """Wait until the model is loaded, and return the context."""
        return self._context.result()


def make_tampered_model(original: Any) -> SharedModel:
    """Return a copy of the packaged model with the embedding rows that the packaged example tampered with."""
    import torch

    rows = np.load(TAMPERED / "rows.npz")  # token ids, and their new embeddings
    model = deepcopy(original.model)
    weight = model[0].auto_model.get_input_embeddings().weight
    with torch.no_grad():
        weight[torch.from_numpy(rows["ids"])] = torch.from_numpy(rows["tampered"]).to(weight)
    return SharedModel(as_id_reader(load_encoder(model), "demo"))


# Number of copies in the worked example.
_COPIES = 8
# Maximum number of flagged tokens in the list of the first tab, and about how many of the strongest tokens
# that are not flagged it has.
_LISTED = 200
_STRONGEST = 8
# Sentences of at most this many characters are preferred for the heat map, because a table lists them.
_CHARACTERS = 120
# Number of sentences in the heat map in addition to the visitor's two.
_OTHER_SENTENCES = 6


@dataclass(frozen=True)
class Example:
    """The example that the app shows before a visitor asks anything.

    Attributes:
        anchor: Sentence A, which stays as it is.
        carrier: Sentence B, which gets the copies.
        token_id: Id of the token that is inserted.
        copies: Number of copies that are inserted.
        why: Why this token was chosen.
    """

    anchor: str
    carrier: str
    token_id: int
    copies: int
    why: str


def make_worked_example(context: AppContext) -> Example:
    """Return an example: the worst token of the run, and the first two sentences of the corpus.

    The first two sentences of the packaged corpus say the same, so copies can take away much of their
    similarity.
    """
    content = context.content
    if content is None:
        token_id = _choose_token_without_run(context.model.vocabulary)
        why = "No run of this model is open, so its sticky tokens are not known."
    else:
        token_id = worst_token(content)
        which = "the worst token" if len(content.sticky) else "not sticky, but ranks highest"
        why = f"It is {which} in the run {content.run.path.name}."
    sentences = context.corpus.texts[:2]
    return Example(sentences[0], sentences[-1], token_id, _COPIES, why)


def _choose_token_without_run(vocabulary: Vocabulary) -> int:
    entries = zip(vocabulary.ids, vocabulary.categories, strict=True)
    # Special tokens are often the worst.
    special_ids = [token_id for token_id, category in entries if category is Category.OK_SPECIAL]
    return special_ids[0] if special_ids else vocabulary.available[0].id


def worst_token(content: RunContent) -> int:
    """Return the id of the worst flagged token, or of the highest-ranked token if none is flagged."""
    if len(content.sticky):
        return int(content.sticky["token_id"][0])
    ranked = content.tokens.sort(
        content.run.method.TABLE.ranked_by.key, "token_id", descending=[True, False], nulls_last=True
    )
    return int(ranked["token_id"][0])


def list_tokens(content: RunContent | None) -> list[tuple[int, str]]:
    """Return the ids and verdicts of the tokens to choose from: flagged ones, then the strongest of the rest.

    The list is empty without a run.
    """
    if content is None:
        return []
    listed = dict(content.sticky.head(_LISTED).select("token_id", "verdict").iter_rows())
    not_flagged = dict.fromkeys(content.run.strongest(_STRONGEST)["token_id"], "not sticky")
    return list((listed | not_flagged).items())


def other_sentences(context: AppContext) -> tuple[str, ...]:
    """Return the sentences that the heat map shows in addition to the visitor's two."""
    sentences = list(context.corpus.texts)
    short = [text for text in sentences if len(text) <= _CHARACTERS]
    return tuple(spread(short or sentences, _OTHER_SENTENCES))


def spread(texts: list[str], count: int) -> list[str]:
    """Return `count` evenly spaced texts from a list, or all texts if there are no more than `count`."""
    if len(texts) <= count:
        return texts
    # The middle text of each of `count` equal parts of the list.
    return [texts[(2 * position + 1) * len(texts) // (2 * count)] for position in range(count)]
