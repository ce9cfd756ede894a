"""Write rows into stored embeddings; every other byte stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stickytoken.errors import RepairError
from stickytoken.repairs.model_folder._places import TensorPlace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def require_rows_fit(rows: Mapping[int, NDArray[np.float32]], places: Sequence[TensorPlace]) -> None:
    """Refuse rows that do not fit the stored embeddings.

    Raises:
        RepairError: A row has the wrong size, is not finite in the type of the weights, or has no place.
    """
    for place in places:
        if place.dtype not in _TYPES:
            raise RepairError(
                f"the embeddings in {place.file} are stored as {place.dtype}: rows can be written into "
                f"{', '.join(_TYPES)}; repair the model before it is quantized"
            )
        count, width = place.shape
        for token_id, row in rows.items():
            if not 0 <= token_id < count:
                raise RepairError(f"{place.file} has {count} rows, and none for token {token_id}")
            if row.shape != (width,):
                raise RepairError(
                    f"the row of token {token_id} has the shape {row.shape}, and not ({width},)"
                )
            as_stored(row, place, token_id)


def as_stored(row: NDArray[np.float32], place: TensorPlace, token_id: int) -> bytes:
    """Convert a row to the type of the stored weights.

    Raises:
        RepairError: It is not finite there.
    """
    import torch

    stored = torch.from_numpy(row.copy()).to(getattr(torch, _TYPES[place.dtype]))
    if not bool(stored.isfinite().all()):
        raise RepairError(f"the row of token {token_id} is not finite in {_TYPES[place.dtype]}")
    return stored.view(torch.uint8).numpy().tobytes()


def write_rows(rows: Mapping[int, NDArray[np.float32]], places: Sequence[TensorPlace]) -> None:
    """Write rows into files that may be changed."""
    for place in places:
        with place.file.open("r+b") as stream:
            for token_id, row in rows.items():
                content = as_stored(row, place, token_id)
                stream.seek(place.start + token_id * len(content))
                stream.write(content)
