"""A repaired model, opened for reading."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.errors import RepairError, RunError
from stickytoken.measurement.atomic import make_folder, require_writable
from stickytoken.measurement.default_folder import folder_name
from stickytoken.measurement.resume import measurements_in
from stickytoken.measurement.store import ResultFolder
from stickytoken.repairs.affected import affected_documents
from stickytoken.repairs.model_folder import ModelEdit
from stickytoken.repairs.record import CENTRE_FILE, REPAIR_FILE, REPAIR_SCHEMA_VERSION, RepairRecord
from stickytoken.repairs.strategies import ROWS, Strategy
from stickytoken.repairs.tokenizer_edit import TokenizerEdit
from stickytoken.validation import file_path

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

REPAIR = "repair"
"""Prefix of the folders in a run folder that hold the record of a repair."""


class Repair:
    """A repaired model and its measurements.

    Args:
        path: folder of the model.

    Raises:
        RunError: the folder holds no repaired model, or its record is damaged.
    """

    def __init__(self, path: Path) -> None:
        record = finished_repair(path)
        if record is None:
            raise RunError(f"there is no repaired model in {str(path)!r}: it has no {REPAIR_FILE}")
        self.path = path
        self.record = record

    def __repr__(self) -> str:
        found = f"{len(self.record.tokens)} tokens, {self.record.state}"
        return f"<Repair: {self.record.model}, {found}, in {self.path}>"

    @property
    def verified(self) -> bool | None:
        """Whether the repair was verified; None if the verification was switched off."""
        return self.record.verified

    @cached_property
    def model(self) -> SentenceTransformer:
        """The repaired model, loaded as anyone would load it."""
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(self.path))

    @property
    def tokens(self) -> pl.DataFrame:
        """One row per repaired token: strategy and reason, lift and contraction before and after."""
        return pl.DataFrame(token_rows(self.record), infer_schema_length=None)

    def affected(
        self,
        texts: Iterable[str],
        original: str | Path,
        ids: Iterable[str] | None = None,
        *,
        revision: str | None = None,
    ) -> pl.DataFrame:
        """Find the documents whose vectors the repair changes: those must be encoded again.

        Args:
            texts: the documents, read one batch at a time.
            original: name or folder of the model before the repair.
            ids: names of the documents; None for none.
            revision: branch, tag or commit of a model on the hub; the one that was repaired.

        Returns:
            One row per affected document: index, id if there are names, and the ids of its repaired tokens.
        """
        strategies = {token.token_id: Strategy(token.strategy) for token in self.record.tokens}
        rows = {k: np.zeros(0, np.float32) for k, strategy in strategies.items() if strategy in ROWS}
        folder = Path(resolve_model(str(original), revision).location)
        encoder = self.record.identity_parts.get("encoder", {})
        prompt = str(encoder.get("prompt", ""))
        return affected_documents(folder, edit_of(strategies, rows, self.centre), texts, ids, prompt=prompt)

    @cached_property
    def centre(self) -> NDArray[np.float32] | None:
        """The direction that was removed from all vectors, of length 1; None if there is none.

        Raises:
            RunError: the file with it is damaged.
        """
        path = self.path / CENTRE_FILE
        if not path.is_file():
            return None
        try:
            return np.array(json.loads(path.read_text("utf-8"))["direction"], dtype=np.float32)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged ({error}): repair the model again") from error

    def centred(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        """Apply the strategy ``centre`` to vectors of the original model, instead of encoding again.

        Args:
            vectors: of the original model, shape (n, d).

        Raises:
            RepairError: the repair took out no direction, or the vectors have another dimension.
        """
        direction = self.centre
        if direction is None:
            raise RepairError(f"the repair in {self.path} removed no direction: its strategy is not centre")
        given = np.asarray(vectors, dtype=np.float32)
        if given.ndim != 2 or given.shape[1] != len(direction):
            raise RepairError(
                f"the vectors have shape {given.shape}: pass an array of shape (n, {len(direction)})"
            )
        found: NDArray[np.float32] = given - np.outer(given @ direction, direction)
        return found

    def summary(self) -> dict[str, Any]:
        """Return the repair as JSON values."""
        return {"repair": str(self.path), "verified": self.verified, **self.record.model_dump()}


def token_rows(record: RepairRecord) -> list[dict[str, Any]]:
    """Lay out the repaired tokens; see `Repair.tokens`."""
    return [
        {
            "token_id": token.token_id,
            "token": token.token,
            "strategy": token.strategy,
            "reason": token.reason,
            **{
                f"{name}_{side}": None if measured is None else getattr(measured, name)
                for side, measured in (("before", token.before), ("after", token.after))
                for name in ("lift", "deviations", "contraction")
            },
            "verdict_after": None if token.after is None else token.after.verdict,
        }
        for token in record.tokens
    ]


def edit_of(
    strategies: Mapping[int, Strategy],
    rows: Mapping[int, NDArray[np.float32]],
    centre: NDArray[np.float32] | None,
) -> ModelEdit:
    """Put the decisions for all tokens together.

    Args:
        strategies: strategy of each token, by id.
        rows: new rows, by id.
        centre: direction to take out; None for none.
    """

    def ids(strategy: Strategy) -> tuple[int, ...]:
        return tuple(sorted(k for k, own in strategies.items() if own is strategy))

    tokenizer = TokenizerEdit(
        unreachable=ids(Strategy.UNREACHABLE),
        plain_specials=ids(Strategy.PLAIN_SPECIALS),
        collapse=bool(ids(Strategy.COLLAPSE)),
    )
    return ModelEdit(rows=dict(rows), tokenizer=tokenizer, centre=centre)


def open_repair(path: str | Path) -> Repair:
    """Open a repaired model.

    Raises:
        RunError: the folder holds no repaired model, or its record is damaged.
    """
    return Repair(file_path("the repair", path))


def require_place(out: Path) -> None:
    """Refuse a folder that cannot take a repaired model, before anything is loaded.

    Raises:
        RunError: it cannot be written, or holds something other than a repaired model.
    """
    require_writable(out)
    try:
        taken = out.is_dir() and any(out.iterdir()) and not (out / REPAIR_FILE).is_file()
    except OSError as error:
        raise RunError(f"{out} cannot be read: {error.strerror or error}") from error
    if taken:
        raise RunError(f"{out} contains files but no repaired model: choose an empty or new folder")


def finished_repair(folder: Path) -> RepairRecord | None:
    """Read the record of a repair; None if the folder holds none.

    Raises:
        RunError: the record is damaged, or of a newer version.
    """
    return ResultFolder(folder).read_record(REPAIR_FILE, RepairRecord, REPAIR_SCHEMA_VERSION)


def keep_copy(run: Path, record: RepairRecord) -> None:
    """Write a copy of the record into the run folder, where reports look for it.

    Raises:
        RunError: it cannot be written.
    """
    folder = run / folder_name(REPAIR, record.identity)
    make_folder(folder)
    ResultFolder(folder).write_record(REPAIR_FILE, record)


def repairs_in(run: Path) -> tuple[tuple[RepairRecord, ...], tuple[str, ...]]:
    """Read the records of repairs in a run folder; see `measurements_in`."""
    return measurements_in(
        run,
        f"{REPAIR}-*/{REPAIR_FILE}",
        lambda folder: Repair(folder).record,
        "A repair",
        lambda record: record.started,
    )
