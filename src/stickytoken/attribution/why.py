"""Attribute the similarity of two texts to pairs of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stickytoken.attribution._attributed import attributed
from stickytoken.attribution._parts import CutText, cut_text
from stickytoken.attribution.methods import AttributionMethod
from stickytoken.attribution.result import Part, ReadText, Why
from stickytoken.detection.run import Run, open_run
from stickytoken.encoders.mean_similarity import mean_similarity
from stickytoken.encoders.protocol import IdEncoder, require_ids
from stickytoken.errors import InputError
from stickytoken.measurement.progress import ProgressCallback, ignore_progress
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import require_callable, shown

if TYPE_CHECKING:
    from stickytoken.encoders.loading.load import AnyModel

# More parts than this are joined to spans: the time grows with their number.
_MOST_PARTS = 48
# Vocabulary entries that u is estimated from without a run.
_ENTRIES = 256


def why(
    encoder: AnyModel,
    first: str,
    second: str,
    *,
    method: AttributionMethod | str = AttributionMethod.DELETION,
    run: Run | str | Path | None = None,
    words: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> Why:
    """Say which pairs of tokens make two texts similar.

    Each part is also deleted on its own, and the similarity computed again. The order of the texts does not
    matter. Texts of more than 48 parts are cut into 48 spans.

    Args:
        encoder: anything that `load_encoder` takes and that reads token ids: a SentenceTransformer or a
            prompted language model.
        first: one text.
        second: the other text.
        method: how the similarity is divided among pairs: ``deletion`` (Shapley values) or ``jacobians``
            (integrated Jacobians).
        run: a finished run of this model, or its folder, whose sticky tokens are marked.
        words: attribute to words in place of tokens.
        progress: called after every batch; a stage for each text.

    Raises:
        InputError: a text is empty or not a text, or an argument cannot be used.
        ModelError: the method needs the inside of the model, and cannot look into this one.
        EncodingError: a text has no tokens or no usable vector.
        RunError: the run is of another model.
    """
    from stickytoken.detection.run_model import encoder_for

    _require_text("first", first)
    _require_text("second", second)
    require_callable("progress", progress)
    chosen = _chosen(method)
    opened = None if run is None else open_run(run)
    model = require_ids(encoder_for(encoder, opened, "why"), "why")
    texts = [cut_text(model, text, words=words, most=_MOST_PARTS) for text in (first, second)]
    units = _unit_vectors(model, [text.ids for text in texts])
    similarity = float(units[0] @ units[1])
    matrix = attributed(model, texts, similarity, chosen, progress)
    sticky = frozenset[int]() if opened is None else frozenset(opened.sticky["token_id"].to_list())
    left, right = (_read(model, texts[side], units[1 - side], similarity, sticky) for side in (0, 1))
    return Why(
        model=model.name,
        method=chosen.value,
        similarity=similarity,
        u=mean_similarity(model, most=_ENTRIES).value if opened is None else opened.plan.mean_similarity,
        first=left,
        second=right,
        matrix=matrix[:-1, :-1].astype(np.float32),
        first_reference=matrix[:-1, -1].astype(np.float32),
        second_reference=matrix[-1, :-1].astype(np.float32),
        reference=float(matrix[-1, -1]),
        without_sticky=_without_sticky(model, texts, (left, right)),
        run=None if opened is None else str(opened.path),
    )


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the {name} text is {shown(text)}: pass a text with words")


def _chosen(method: object) -> AttributionMethod:
    try:
        return AttributionMethod(str(method))
    except ValueError:
        raise InputError(f"method is {shown(method)}: pass one of {', '.join(AttributionMethod)}") from None


def _read(
    model: IdEncoder, text: CutText, other: NDArray[np.float64], similarity: float, sticky: frozenset[int]
) -> ReadText:
    """Delete every part once, and mark the sticky ones; ``other`` is the unit vector of the other text."""
    deletions: list[float | None] = [None] * len(text.parts)
    if len(text.parts) > 1:
        vectors = _unit_vectors(model, [text.without([place]) for place in range(len(text.parts))])
        deletions = (vectors @ other - similarity).tolist()
    parts = tuple(
        Part(name, ids, not sticky.isdisjoint(ids), deletion)
        for name, ids, deletion in zip(text.names, text.parts, deletions, strict=True)
    )
    return ReadText(text.text, parts, text.left_out)


def _without_sticky(model: IdEncoder, texts: Sequence[CutText], read: Sequence[ReadText]) -> float | None:
    """Return the similarity without sticky parts; None if there are none, or nothing else."""
    sticky = [[place for place, part in enumerate(side.parts) if part.sticky] for side in read]
    rest = [text.without(places) for text, places in zip(texts, sticky, strict=True)]
    if not any(sticky) or not all(rest):
        return None
    one, other = _unit_vectors(model, rest)
    return float(one @ other)


def _unit_vectors(model: IdEncoder, contents: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    return exact_unit_vectors(model.encode_ids(contents))
