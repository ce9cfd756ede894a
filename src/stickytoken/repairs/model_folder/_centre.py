"""Remove a direction from every vector, with a module that every release of sentence-transformers knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.errors import RepairError
from stickytoken.repairs.model_folder._places import MODULES_FILE, read_modules

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TYPE = "sentence_transformers.models.Dense"


def add_projection(folder: Path, centre: NDArray[np.float32]) -> None:
    """Add a linear layer that removes a direction, before the vectors are normalised.

    Raises:
        RepairError: The direction is zero or not finite, or the folder has no modules.
    """
    import numpy as np
    import torch
    from sentence_transformers.base.modules import Dense

    modules = read_modules(folder)
    length = float(np.linalg.norm(centre.astype(np.float64)))
    if centre.ndim != 1 or not np.isfinite(length) or length == 0:
        raise RepairError(f"a direction of the shape {centre.shape} and length {length} cannot be removed")
    unit = centre.astype(np.float64) / length
    weight = torch.from_numpy((np.eye(len(unit)) - np.outer(unit, unit)).astype(np.float32))
    size = len(unit)
    layer = Dense(size, size, bias=False, activation_function=torch.nn.Identity(), init_weight=weight)
    last = modules[-1]["type"].rpartition(".")[2] if modules else ""
    place = len(modules) - (last == "Normalize")
    names = {str(entry["name"]) for entry in modules}
    number = next(number for number in range(len(modules), 1000) if _is_free(folder, number, names))
    path = f"{number}_Dense"
    (folder / path).mkdir()
    layer.save(str(folder / path))
    modules.insert(place, {"idx": place, "name": str(number), "path": path, "type": _TYPE})
    listed = [entry | {"idx": index} for index, entry in enumerate(modules)]
    (folder / MODULES_FILE).write_text(json.dumps(listed, indent=2), "utf-8")


def _is_free(folder: Path, number: int, names: set[str]) -> bool:
    return str(number) not in names and not (folder / f"{number}_Dense").exists()
