"""Validation evidence for named tokens, without a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import choose_corpus
from stickytoken.corpora.pairs import SentencePair
from stickytoken.encoders.protocol import Encoder
from stickytoken.measurement.engines.local import compute_shard
from stickytoken.measurement.progress import Progress, ProgressCallback, ignore_progress
from stickytoken.measurement.stage import Shard
from stickytoken.methods.probed_tokens import probed_token
from stickytoken.methods.std.distances import Metric
from stickytoken.methods.std.plan import make_plan, validation_stage
from stickytoken.methods.std.settings import StdSettings
from stickytoken.methods.std.stages import PLACEMENTS
from stickytoken.vocabulary.categories import Vocabulary


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the validation pairs say about one token.

    Attributes:
        token_id: its id.
        token: its vocabulary string.
        category: what the round trip says about it.
        validation_rate: by metric, the weighted share of pairs whose distance falls.
        by_placement: the shares by placement and metric, unweighted.
        lift: mean rise of the cosine over pairs, placements and copies.
        lift_by_copies: the same for 1, 2, ... copies.
        pairs: pairs that the numbers rest on.
    """

    token_id: int
    token: str
    category: str
    validation_rate: dict[str, float]
    by_placement: dict[str, dict[str, float]]
    lift: float
    lift_by_copies: list[float]
    pairs: int


def probe_std(
    encoder: Encoder,
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    *,
    sentences: Sentences | str | Path | None = None,
    pairs: Sequence[SentencePair] | str | Path | None = None,
    settings: StdSettings | None = None,
    progress: ProgressCallback = ignore_progress,
) -> list[Evidence]:
    """Validate tokens one by one on the validation pairs of a run with these settings.

    Args:
        encoder: the model.
        vocabulary: of the model.
        token_ids: the tokens; with text insertion they must be able to occur in text.
        sentences: the corpus; None is the bundled one.
        pairs: pairs, in place of sampling.
        settings: of the method; None is the published ones.
        progress: told of every step.

    Raises:
        InputError: a token that cannot be probed, or inputs that cannot be used.
    """
    settings = settings or StdSettings()
    tokens = [probed_token(vocabulary, token_id, settings.insertion) for token_id in token_ids]
    corpus = choose_corpus(sentences, pairs)
    plan = make_plan(encoder, settings, corpus, progress)
    stage = validation_stage(encoder, settings, plan)
    names = dict(zip(vocabulary.ids, zip(vocabulary.tokens, vocabulary.categories, strict=True), strict=True))
    found = []
    progress(Progress(stage.name, 0, len(tokens)))
    for place, token in enumerate(tokens, start=1):
        (row,), sequences = compute_shard(stage, Shard(place, (token,)), encoder)
        name, category = names[token.id]
        found.append(_evidence(row, name, category.value, len(plan.validation)))
        progress(Progress(stage.name, place, len(tokens), place, sequences * place))
    return found


def _evidence(row: dict[str, Any], name: str, category: str, pairs: int) -> Evidence:
    return Evidence(
        token_id=row["token_id"],
        token=name,
        category=category,
        validation_rate={metric.value: row[f"rate_{metric}"] for metric in Metric},
        by_placement={
            placement.value: {metric.value: row[f"rate_{metric}_{placement}"] for metric in Metric}
            for placement in PLACEMENTS
        },
        lift=row["lift"],
        lift_by_copies=row["lift_by_copies"],
        pairs=pairs,
    )
