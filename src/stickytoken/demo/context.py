"""The context that all tabs of the app share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

import stickytoken.measurement as store
from stickytoken.data import Sentences
from stickytoken.detection import Reopened, available_tokens, find_named, reopen
from stickytoken.detection.run import Run, flagged_tokens, model_difference
from stickytoken.detection.run_folder import RunFolder, RunRecord
from stickytoken.encoders.loading import load_encoder
from stickytoken.encoders.protocol import IdReader
from stickytoken.encoders.text_encoder import as_id_reader
from stickytoken.errors import InputError, ModelError, RunError, StickyTokenError
from stickytoken.insertion import Placement, Token
from stickytoken.measurement import resume
from stickytoken.reports.content import RunContent, read_content
from stickytoken.validation import visible
from stickytoken.vocabulary import Category, Vocabulary, categorize, match_benign

if TYPE_CHECKING:
    from stickytoken.repairs import Repair


EXAMPLES = Path(__file__).parent / "example"
EXAMPLE, TAMPERED = EXAMPLES / "all-MiniLM-L6-v2", EXAMPLES / "tampered"


class RunLibrary:
    def __init__(self, listed: Sequence[tuple[str, Path, RunRecord]], left_out: Sequence[str] = ()) -> None:
        self.paths = {label: path for label, path, _ in listed}
        self.records = {label: record for label, _, record in listed}
        self._read: dict[str, RunContent] = {}
        self._lock = threading.Lock()
        self.left_out = tuple(left_out)

    @property
    def labels(self) -> list[str]:
        return list(self.paths)

    def content(self, label: object) -> RunContent:
        if not isinstance(label, str) or label not in self.paths:
            raise RunError("there is no run with that name: choose one from the list")
        with self._lock:
            if label not in self._read:
                self._read[label] = read_content(self.paths[label])
            return self._read[label]


def find_runs(
    named: Sequence[Path], folder: Path, examples: Sequence[Path] = (TAMPERED, EXAMPLE)
) -> RunLibrary:
    listed = [_listed(path.expanduser()) for path in named]
    taken = {path.expanduser().resolve() for path in named}
    try:
        found = [path.parent for path in folder.glob(f"*/{store.RUN_FILE}")]
        found = sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))[:50]
    except OSError:
        found = []  # nobody named this folder, so an unreadable one is no error
    unread = []
    for path in found:
        if path.resolve() in taken:
            continue
        try:
            run = _listed(path)
            if not listed:  # the app opens with the first one
                read_content(path)
            listed.append(run)
        except StickyTokenError as error:
            unread.append(error)
    for example in examples:
        if (example / store.RUN_FILE).is_file():
            record = RunFolder(example).read_run()
            listed.append((f"{record.model.title} (example)", example, record))
    labels = [label for label, *_ in listed]
    return RunLibrary(
        [
            (f"{label}, {visible(str(path))}" if labels.count(label) > 1 else label, path, record)
            for label, path, record in listed
        ],
        [" ".join(visible(str(error)).split()) for error in unread],
    )


def _listed(path: Path) -> tuple[str, Path, RunRecord]:
    folder = RunFolder(path)
    if not folder.exists():
        raise RunError(f"no run folder {str(path)!r}")
    record = folder.read_run()
    name = visible(path.resolve().name)
    return name if record.result else f"{name} (not finished)", path, record


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
        self._reopened = lru_cache(4)(lambda run: reopen(run, encoder, self.vocabulary))

    @property
    def name(self) -> str:
        return self._encoder.name

    @contextmanager
    def encoder(self) -> Iterator[IdReader]:
        with self._lock:
            yield self._encoder

    def is_model_of(self, record: resume.MeasurementRecord) -> bool:
        return model_difference(record, self._identity) == []

    def reopened(self, run: Run) -> Reopened:
        if not self.is_model_of(run.record):
            raise InputError(
                f"the run was made with {run.record.model.name} or with other settings of it, but "
                f"{self.name} is loaded: start the app with --run {run.path.name} to compute more for it"
            )
        with self._lock:
            return self._reopened(run)

    def benign(self, token_id: int, run: Run | None, count: int) -> tuple[Token, ...]:
        excluded = flagged_tokens(run) | self._unread | {token_id}
        return match_benign(self.vocabulary, token_id, excluded, count, _SEED).tokens

    def name_of(self, token_id: int) -> str:
        name = self._string(token_id)
        try:
            found = named_token(self.vocabulary, name)
        except InputError:
            return f"#{token_id}"
        return name if found.id == token_id and visible(name) == name else f"#{token_id}"

    def shown_name(self, token_id: int) -> str:
        return visible(self._string(token_id))

    def _string(self, token_id: int) -> str:
        if token_id not in self.vocabulary.ids:
            raise InputError(f"the vocabulary has no token id {token_id}: choose a token from the list")
        return self.vocabulary.tokens[self.vocabulary.ids.index(token_id)]


TEXT_CHARACTERS = 1000
COPIES = 32
_TOKEN_CHARACTERS = 200


def checked_text(name: str, text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{name} is empty: write a sentence")
    if len(text) > TEXT_CHARACTERS:
        raise InputError(
            f"{name} has {len(text):,} characters, and the limit is {TEXT_CHARACTERS:,}: shorten it"
        )
    return text


def checked_count(name: str, value: object, least: int, most: int) -> int:
    wanted = f"enter a whole number from {least} to {most}"
    if value is None:
        raise InputError(f"{name} is empty: {wanted}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} is not a number: {wanted}")
    if not least <= value <= most or value != int(value):
        raise InputError(f"{name} is {value!s:.20}: {wanted}")
    return int(value)


def checked_placement(value: object) -> Placement:
    if not isinstance(value, str) or value not in set(Placement):
        raise InputError(f"the place of the copies is unknown: choose one of {', '.join(Placement)}")
    return Placement(value)


def checked_token_id(value: object) -> int:
    # A cell of a table holds the id as text.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9:
        return value
    raise InputError("no token with that id: choose one from the list")


def named_token(vocabulary: Vocabulary, name: object) -> Token:
    if not isinstance(name, str) or not name.strip():
        raise InputError("the token is empty: write it as in the vocabulary, or # and its id")
    if len(name) > _TOKEN_CHARACTERS:
        raise InputError(f"the token has {len(name):,} characters, and the limit is {_TOKEN_CHARACTERS}")
    return available_tokens(vocabulary, [find_named(vocabulary, name)])[0]


@dataclass(frozen=True)
class AppContext:
    """Shared by all visitors and never changed."""

    model: SharedModel  # the model
    library: RunLibrary  # the runs
    # A finished run of the loaded model, for its sentences and its tokens; None without one
    content: RunContent | None
    corpus: Sentences  # sentences to use if there is no run
    repaired: SharedModel | None = None  # the model after a repair; None without one

    @property
    def run(self) -> Run | None:
        return None if self.content is None else self.content.run

    @property
    def sentences(self) -> list[str]:
        kept = []
        if self.content is not None and self.content.plan is not None:
            kept = self.content.method.texts(self.content.plan).anchors
        return kept or list(self.corpus.texts)

    def verdict_of(self, token_id: int) -> str | None:
        rows = [] if self.run is None else self.run.tokens.filter(token_id=token_id).to_dicts()
        for row in rows:
            if row["verdict"] is not None:
                return f"{row['verdict']} in the run{f': {reason}' if (reason := row.get('reason')) else ''}"
        return None


def make_context(
    model: SharedModel, library: RunLibrary, corpus: Sentences, repaired: SharedModel | None = None
) -> AppContext:
    for label, record in library.records.items():
        if record.result is not None and model.is_model_of(record):
            return AppContext(model, library, library.content(label), corpus, repaired)
    return AppContext(model, library, None, corpus, repaired)


class Startup:
    """The runs, which are available at once, and the model, which takes some seconds."""

    def __init__(self, model: str, library: RunLibrary, repair: Repair | None = None) -> None:
        self.model_name = model
        self.library = library
        self.repair = repair
        self._context: Future[AppContext] = Future()

    @property
    def opened(self) -> str | None:
        return next(iter(self.library.labels), None)

    def finish(self, load: Callable[[], AppContext]) -> None:
        try:
            context = load()
        except StickyTokenError as error:
            self._context.set_exception(error)
            raise
        except BaseException:
            self._context.set_exception(ModelError(f"{self.model_name} was not loaded: start the app again"))
            raise
        self._context.set_result(context)

    def context(self) -> AppContext:
        return self._context.result()


def tampered_models(original: Any) -> tuple[SharedModel, SharedModel]:
    import torch

    rows = np.load(TAMPERED / "rows.npz")

    def with_rows(name: str) -> SharedModel:
        model = deepcopy(original.model)
        weight = model[0].auto_model.get_input_embeddings().weight
        with torch.no_grad():
            weight[torch.from_numpy(rows["ids"])] = torch.from_numpy(rows[name]).to(weight)
        return SharedModel(as_id_reader(load_encoder(model), "demo"))

    return with_rows("tampered"), with_rows("repaired")


_COPIES = 8
_LISTED = 200
# Short sentences are preferred for the heat map: they are read in a table.
_CHARACTERS = 120


class Example(NamedTuple):
    anchor: str
    carrier: str
    token_id: int
    copies: int
    why: str


def worked_example(context: AppContext) -> Example:
    content, vocabulary = context.content, context.model.vocabulary
    if content is None or content.run is None:
        sentences = spread(list(context.corpus.texts), 2)
        # A special token that can occur in text, or else a word; special tokens are often the worst.
        entries = zip(vocabulary.ids, vocabulary.categories, strict=True)
        special = [token_id for token_id, category in entries if category is Category.OK_SPECIAL]
        token_id = (special or [token.id for token in vocabulary.available])[0]
        why = "No run of this model is open, so its sticky tokens are not known."
        return Example(sentences[0], sentences[-1], token_id, _COPIES, why)
    which = "the worst token" if len(content.flagged) else "not sticky, but ranks highest"
    why = f"It is {which} in the run {content.path.name}; the sentences are"
    if content.evidence is not None:
        known = pl.col("largest_before").is_not_null()
        rows = content.evidence.tokens.filter(known, token_id=worst_token(content))
        for row in rows.iter_rows(named=True):
            pair = (row["largest_anchor"], row["largest_carrier"])
            copies = content.evidence.record.pair_copies
            return Example(
                *pair,
                row["token_id"],
                copies,
                f"{why} the unrelated pair of that run that its copies raise most.",
            )
    own = context.sentences
    return Example(own[0], own[-1], worst_token(content), _COPIES, f"{why} from that run.")


def worst_token(content: RunContent) -> int:
    """Return the id of the worst flagged token, or of the strongest one if none is flagged."""
    if len(content.flagged):
        return int(content.flagged["token_id"][0])
    ranked = content.tokens.sort(
        content.method.ranked_by.key, "token_id", descending=[True, False], nulls_last=True
    )
    return int(ranked["token_id"][0])


def listed_tokens(content: RunContent | None) -> list[tuple[int, str]]:
    if content is None or content.run is None:
        return []
    listed = dict(content.flagged.head(_LISTED).select("token_id", "verdict").iter_rows())
    if content.evidence is not None:
        for token_id, ordinary in content.evidence.tokens.select("token_id", "ordinary").iter_rows():
            listed.setdefault(token_id, "ordinary" if ordinary else "not sticky")
    return list(listed.items())


def other_sentences(context: AppContext) -> tuple[str, ...]:
    short = [text for text in context.sentences if len(text) <= _CHARACTERS]
    return tuple(spread(short or context.sentences, 6))


def spread(texts: list[str], count: int) -> list[str]:
    if len(texts) <= count:
        return texts
    return [texts[(2 * k + 1) * len(texts) // (2 * count)] for k in range(count)]
