"""Plan an impact measurement: load tasks, choose tokens, and match them with benign tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from stickytoken.detection.flagged import flagged_tokens
from stickytoken.detection.run import Run
from stickytoken.detection.run_model import worst_tokens
from stickytoken.detection.selection import TokenSource, available_tokens, token_ids
from stickytoken.encoders.protocol import WordEncoder
from stickytoken.errors import InputError
from stickytoken.impacts._compute import shard_stage
from stickytoken.impacts._conditions import NAMED, Condition, Kind, make_conditions
from stickytoken.impacts._intrusion import SearchCorpus, load_search_corpus
from stickytoken.impacts.record import TokenRecord
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import Token
from stickytoken.measurement.identity import identity_of
from stickytoken.tasks import Task
from stickytoken.tasks.mteb import AnyTask, find_mteb_task, find_task
from stickytoken.validation import list_of
from stickytoken.vocabulary.benign import match_apart
from stickytoken.vocabulary.categories import Vocabulary, categorize

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

TaskSource: TypeAlias = "str | Path | Task | AbsTask"

# Increase it when the same inputs give different numbers than before.
_IDENTITY_VERSION = 2


@dataclass(frozen=True)
class ImpactPlan:
    """What a measurement computes, and what identifies it.

    Attributes:
        encoder: the model.
        settings: settings of the measurement.
        sticky: tokens to measure.
        benign: benign tokens matched with them.
        tasks: tasks to measure.
        corpus: corpus of the intrusion, if any.
        names: vocabulary strings by id.
        notes: what a reader should know.
        run: folder of the run that the tokens come from, if any.
        named: ids of the measured tokens that no run calls sticky.
    """

    encoder: WordEncoder
    settings: ImpactSettings
    sticky: list[Token]
    benign: list[Token]
    tasks: list[AnyTask]
    corpus: SearchCorpus | None
    names: dict[int, str]
    notes: list[str]
    run: Path | None
    named: frozenset[int]

    @property
    def conditions(self) -> list[Condition]:
        """Conditions of all tasks."""
        return make_conditions(self.sticky, self.benign, self.settings.seed, self.settings.seeds)

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Everything that can change the numbers, as JSON values."""
        return identity_of(
            _IDENTITY_VERSION,
            self.encoder.identity,
            self.settings,
            tasks={task.name: task.fingerprint for task in self.tasks},
            intrusion=self.corpus.fingerprint if self.corpus else None,
            sticky=[token.id for token in self.sticky],
            benign=[token.id for token in self.benign],
            **({"named": sorted(self.named)} if self.named else {}),
        )

    def token_records(self) -> list[TokenRecord]:
        """Return records of all tokens, each benign one with the token that it is compared with."""
        matches = [
            (token, self.sticky[place % len(self.sticky)].id) for place, token in enumerate(self.benign)
        ]
        pairs = [
            *((token, Kind.STICKY, None) for token in self.sticky),
            *((token, Kind.BENIGN, match) for token, match in matches),
        ]
        return [
            TokenRecord(
                token_id=token.id,
                token=self.names[token.id],
                text=token.text,
                kind=NAMED if kind is Kind.STICKY and token.id in self.named else kind.value,
                matched_to=match,
            )
            for token, kind, match in pairs
        ]


def make_plan(
    encoder: WordEncoder,
    tasks: Sequence[TaskSource],
    run: Run | None,
    tokens: TokenSource | None,
    exclude: Iterable[int | str],
    intrusion: str | Path | None,
    settings: ImpactSettings,
) -> ImpactPlan:
    """Load tasks, choose tokens, and match them with benign tokens; see `impact`."""
    if not tasks and intrusion is None:
        raise InputError("there is nothing to measure: pass a task, or documents for an intrusion")
    loaded, notes = _loaded(tasks)
    vocabulary = categorize(encoder.tokenizer)
    sticky = _wanted(vocabulary, run, tokens, settings.sticky)
    flagged = set(flagged_tokens(run))
    if excluded := list_of("token ids or texts", "exclude", exclude, ordered=False):
        flagged.update(token_ids(vocabulary, excluded))
    if run is None:
        notes.append("no run says which tokens are sticky, so a benign token may be one of them")
    unread = {token.id for token in vocabulary.available if not encoder.fits((token.id,))}
    benign = match_apart(
        vocabulary, [token.id for token in sticky], flagged | unread, settings.benign, settings.seed
    )
    corpus = load_search_corpus(intrusion, settings.seed) if intrusion is not None else None
    names = dict(zip(vocabulary.ids, vocabulary.tokens, strict=True))
    folder = None if run is None else run.path
    verdicts = set() if run is None else set(run.sticky["token_id"])
    named = frozenset(token.id for token in sticky if token.id not in verdicts)
    return ImpactPlan(encoder, settings, sticky, benign, loaded, corpus, names, notes, folder, named)


def _wanted(vocabulary: Vocabulary, run: Run | None, tokens: TokenSource | None, count: int) -> list[Token]:
    if tokens is not None:
        return available_tokens(vocabulary, token_ids(vocabulary, tokens))
    if run is None:
        raise InputError(
            "no tokens to measure: pass the folder of a finished run, or name the tokens (--tokens)"
        )
    return available_tokens(vocabulary, worst_tokens(run, count))


def _loaded(sources: Sequence[TaskSource]) -> tuple[list[AnyTask], list[str]]:
    tasks: list[AnyTask] = []
    notes: list[str] = []
    for source in sources:
        if isinstance(source, (str, Path)):
            task, said = find_task(source)
            tasks.append(task)
            notes += said
        elif hasattr(source, "outcomes"):
            tasks.append(cast("Task", source))
        else:
            tasks.append(find_mteb_task(source))
    stages = [shard_stage(task.name) for task in tasks]
    for stage, each in zip(stages, tasks, strict=True):
        if stages.count(stage) > 1:
            raise InputError(
                f"two tasks have the name {each.name!r}: rename a file, or measure them separately"
            )
    return tasks, notes
