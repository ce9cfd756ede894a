"""The context that all tabs of the app share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.corpora import Sentences
from stickytoken.detection.model_files import model_difference
from stickytoken.detection.run import Run
from stickytoken.detection.run_folder import RunFolder, RunRecord, flagged_tokens
from stickytoken.detection.selection import Reopened, available_tokens, find_named, reopen
from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError, ModelError, RunError, StickyTokenError
from stickytoken.insertion import Placement, Token
from stickytoken.measurement.resume import MeasurementRecord
from stickytoken.measurement.store import RUN_FILE
from stickytoken.reports.content import RunContent, read_content
from stickytoken.validation import visible
from stickytoken.vocabulary import Vocabulary, categorize, match_benign

if TYPE_CHECKING:
    from stickytoken.repairs import Repair


EXAMPLE = Path(__file__).parent / "example" / "all-MiniLM-L6-v2"
_MOST_FOUND = 50


@dataclass(frozen=True)
class ListedRun:
    """A run that can be opened.

    Attributes:
        label: its distinct name in the app.
        path: its folder.
        record: run.json.
    """

    label: str
    path: Path
    record: RunRecord


class RunLibrary:
    """Runs by label; each is read on first use and then kept."""

    def __init__(self, listed: Sequence[ListedRun], left_out: Sequence[str] = ()) -> None:
        self._listed = {run.label: run for run in listed}
        self._read: dict[str, RunContent] = {}
        self._lock = threading.Lock()
        self.left_out = tuple(left_out)

    @property
    def labels(self) -> list[str]:
        """Names of all runs."""
        return list(self._listed)

    def record(self, label: str) -> RunRecord:
        """run.json of a run."""
        return self._listed[label].record

    def content(self, label: object) -> RunContent:
        """Return a run by its label."""
        if not isinstance(label, str) or label not in self._listed:
            raise RunError("there is no run with that name: choose one from the list")
        with self._lock:
            if label not in self._read:
                self._read[label] = read_content(self._listed[label].path)
            return self._read[label]


def find_runs(named: Sequence[Path], folder: Path, example: Path = EXAMPLE) -> RunLibrary:
    """List the named runs, then those in a folder, newest first, then the packaged example."""
    listed = [_listed_run(path.expanduser()) for path in named]
    taken = {_resolved(path) for path in named}
    found: list[ListedRun] = []
    left_out: list[str] = []
    for path in _runs_in(folder):
        if _resolved(path) in taken:
            continue
        try:
            found.append(_listed_run(path))
        except StickyTokenError as error:
            left_out.append(_one_line(error))
    listed += found if named else _from_first_readable(found, left_out)
    if (example / RUN_FILE).is_file():
        label = f"{example.name} (example that comes with stickytoken)"
        listed.append(ListedRun(label, example, RunFolder(example).read_run()))
    return RunLibrary(_distinct(listed), left_out)


def _listed_run(path: Path) -> ListedRun:
    if not RunFolder(path).exists():
        raise RunError(f"no run folder {str(path)!r}")
    record = RunFolder(path).read_run()
    name = visible(path.resolve().name)
    return ListedRun(name if record.result else f"{name} (not finished)", path, record)


def _from_first_readable(listed: Sequence[ListedRun], left_out: list[str]) -> Sequence[ListedRun]:
    """Drop unreadable runs from the front of the list: the app opens with the first one."""
    for place, run in enumerate(listed):
        try:
            read_content(run.path)
        except StickyTokenError as error:
            left_out.append(_one_line(error))
        else:
            return listed[place:]
    return []


def _one_line(error: StickyTokenError) -> str:
    return " ".join(visible(str(error)).split())


def _runs_in(folder: Path) -> list[Path]:
    try:
        found = [path.parent for path in folder.glob(f"*/{RUN_FILE}")]
        return sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))[:_MOST_FOUND]
    except OSError:
        return []  # nobody named this folder, so an unreadable one is no error


def _resolved(path: Path) -> Path:
    return path.expanduser().resolve()


def _distinct(listed: list[ListedRun]) -> list[ListedRun]:
    labels = [run.label for run in listed]
    return [
        replace(run, label=f"{run.label}, {visible(str(run.path))}") if labels.count(run.label) > 1 else run
        for run in listed
    ]


_RUNS_KEPT = 4
_SEED = 42


class SharedModel:
    """A model that is loaded once. One visitor computes at a time; no visitor's input is kept."""

    def __init__(self, encoder: IdReader) -> None:
        self._encoder = encoder
        self._identity = encoder.identity  # once: nobody changes the model of a server
        # Reentrant: a run is reopened within calls that already hold the lock.
        self._lock = threading.RLock()
        self.vocabulary: Vocabulary = categorize(encoder.tokenizer)
        available = self.vocabulary.available
        self._unread = frozenset(token.id for token in available if not encoder.fits((token.id,)))
        self._reopened: Callable[[Run], Reopened] = lru_cache(_RUNS_KEPT)(self._reopen)

    @property
    def name(self) -> str:
        """The model's name, as the user gave it."""
        return self._encoder.name

    @contextmanager
    def encoder(self) -> Iterator[IdReader]:
        """Hold the model exclusively: neither it nor its tokenizer is thread-safe."""
        with self._lock:
            yield self._encoder

    def is_model_of(self, record: MeasurementRecord) -> bool:
        """Whether a run was made with this model, or a repair began with it."""
        return model_difference(record, self._identity) == []

    def reopened(self, run: Run) -> Reopened:
        """Return a run of this model with its texts encoded; the last few are cached."""
        if not self.is_model_of(run.record):
            raise InputError(
                f"the run was made with {run.record.model.name} or with other settings of it, but "
                f"{self.name} is loaded: start the app with --run {run.path.name} to compute more for it"
            )
        with self._lock:
            return self._reopened(run)

    def benign(self, token_id: int, run: Run | None, count: int) -> tuple[Token, ...]:
        """Match benign tokens to a token as an explanation does."""
        excluded = flagged_tokens(run) | self._unread | {token_id}
        return match_benign(self.vocabulary, token_id, excluded, count, _SEED).tokens

    def _reopen(self, run: Run) -> Reopened:
        return reopen(run, self._encoder, self.vocabulary)


TEXT_CHARACTERS = 1000
TOKEN_CHARACTERS = 200
COPIES = 32
EXPLAIN_CARRIERS = 20
EXPLAIN_BENIGN = 16
TABLE_ROWS = 500
WAITING = 32
"""Requests that may wait for the model; more are refused."""


_MOST_IDS = 10**9


def checked_text(name: str, text: object) -> str:
    """Return a sentence that a visitor typed."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{name} is empty: write a sentence")
    if len(text) > TEXT_CHARACTERS:
        raise InputError(
            f"{name} has {len(text):,} characters, and the limit is {TEXT_CHARACTERS:,}: shorten it"
        )
    return text


def checked_count(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number between its limits."""
    wanted = f"enter a whole number from {least} to {most}"
    if value is None:
        raise InputError(f"{name} is empty: {wanted}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} is not a number: {wanted}")
    if not least <= value <= most or value != int(value):
        raise InputError(f"{name} is {value!s:.20}: {wanted}")
    return int(value)


def checked_placement(value: object) -> Placement:
    """Return the placement of the copies."""
    if not isinstance(value, str) or value not in set(Placement):
        raise InputError(f"the place of the copies is unknown: choose one of {', '.join(Placement)}")
    return Placement(value)


def checked_choices(name: str, values: object) -> tuple[str, ...]:
    """Return the entries chosen in a list; an empty selection gives none."""
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise InputError(f"{name} is not a list of entries: choose some from the list")
    return tuple(values)


def checked_token_id(value: object) -> int:
    """Return the id of a token chosen in a list or a table."""
    # A cell of a table holds the id as text.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_IDS:
        return value
    raise InputError("no token with that id: choose one from the list")


def named_token(vocabulary: Vocabulary, name: object) -> Token:
    """Find the token that a visitor named: ``#`` and an id, a vocabulary string, or its text."""
    if not isinstance(name, str) or not name.strip():
        raise InputError("the token is empty: write it as in the vocabulary, or # and its id")
    if len(name) > TOKEN_CHARACTERS:
        raise InputError(f"the token has {len(name):,} characters, and the limit is {TOKEN_CHARACTERS}")
    return available_tokens(vocabulary, [find_named(vocabulary, name)])[0]


def name_of(vocabulary: Vocabulary, token_id: int) -> str:
    """Return what a visitor can type to name a token: its vocabulary string if that is enough, else #id."""
    name = vocabulary.tokens[_place(vocabulary, token_id)]
    try:
        found = named_token(vocabulary, name)
    except InputError:
        return f"#{token_id}"
    return name if found.id == token_id and visible(name) == name else f"#{token_id}"


def shown_name(vocabulary: Vocabulary, token_id: int) -> str:
    """Return the vocabulary string with every character visible."""
    return visible(vocabulary.tokens[_place(vocabulary, token_id)])


def _place(vocabulary: Vocabulary, token_id: int) -> int:
    if token_id not in vocabulary.ids:
        raise InputError(f"the vocabulary has no token id {token_id}: choose a token from the list")
    return vocabulary.ids.index(token_id)


@dataclass(frozen=True)
class Context:
    """Shared by all visitors and never changed.

    Attributes:
        model: the model.
        library: the runs.
        content: a finished run of the loaded model, for its sentences and its tokens; None without one.
        corpus: sentences to use if there is no run.
        repaired: the model after a repair; None without one.
    """

    model: SharedModel
    library: RunLibrary
    content: RunContent | None
    corpus: Sentences
    repaired: SharedModel | None = None

    @property
    def run(self) -> Run | None:
        """The run of the loaded model."""
        return None if self.content is None else self.content.run

    def name_of(self, token_id: int) -> str:
        """Return what a visitor can type to name a token."""
        return name_of(self.model.vocabulary, token_id)

    def shown_name(self, token_id: int) -> str:
        """Return a token's vocabulary string with every character visible."""
        return shown_name(self.model.vocabulary, token_id)

    def verdict_of(self, token_id: int) -> str | None:
        """Return the verdict on a token in the run of the loaded model."""
        if self.run is None:
            return None
        found = self.run.tokens.filter(token_id=token_id)["verdict"]
        return found[0] if len(found) else None


def make_context(
    model: SharedModel, library: RunLibrary, corpus: Sentences, repaired: SharedModel | None = None
) -> Context:
    """Find the run that belongs to the model."""
    own = next((label for label in library.labels if _is_finished_run_of(library.record(label), model)), None)
    content = None if own is None else library.content(own)
    return Context(model, library, content, corpus, repaired)


def _is_finished_run_of(record: RunRecord, model: SharedModel) -> bool:
    return record.result is not None and model.is_model_of(record)


class Startup:
    """The runs, which are available at once, and the model, which takes some seconds."""

    def __init__(self, model: str, library: RunLibrary, repair: Repair | None = None) -> None:
        self.model_name = model
        self.library = library
        self.repair = repair
        self._context: Future[Context] = Future()

    @property
    def opened(self) -> str | None:
        """Label of the run that the app opens with; None if there is no run."""
        return next(iter(self.library.labels), None)

    def finish(self, load: Callable[[], Context]) -> None:
        """Load the model, then wake all waiting requests; if loading fails, they raise its error."""
        try:
            context = load()
        except StickyTokenError as error:
            self._context.set_exception(error)
            raise
        except BaseException:
            self._context.set_exception(ModelError(f"{self.model_name} was not loaded: start the app again"))
            raise
        self._context.set_result(context)

    def context(self) -> Context:
        """Wait until the model is loaded, and return the context of the tabs."""
        return self._context.result()
