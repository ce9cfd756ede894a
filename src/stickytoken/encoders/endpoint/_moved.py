"""Recognise a model that was asked before at another address: its server may have moved to another port."""

from __future__ import annotations

import numpy as np
from pydantic import ValidationError

from stickytoken.encoders.endpoint._answers import FILE, Answers
from stickytoken.encoders.endpoint._capabilities import Capabilities
from stickytoken.errors import RunError
from stickytoken.unit_vectors import exact_unit_vectors

CAPABILITIES = "capabilities"
ADDRESS = "address"
_MODEL = "model"
_ANSWERS_IN = "answers in"
# Largest distance of two unit vectors of one text. Rounding on another machine stays below it; a quantised or
# retrained model does not.
_SAME = 1e-4


def answers_of(own: Answers) -> Answers:
    """Return the answers of a model: its own, or those of the address that it was recognised by.

    Args:
        own: what is stored for its address.
    """
    elsewhere = own.fact(_ANSWERS_IN)
    return own if elsewhere is None else Answers(own.folder.parent / elsewhere)


def recognised(own: Answers, name: str, model: str, found: Capabilities) -> Capabilities:
    """Look for the model among those at other addresses, and note what was found.

    A model is the same if it has the same name and the same vectors of fixed texts.

    Args:
        own: what is stored for the address.
        name: of the address.
        model: name of the model on its server, and whatever else changes its vectors.
        found: what was found out about the server.

    Returns:
        The capabilities, with the vectors of the fixed texts as they were first answered at any address.
    """
    own.note(_MODEL, model)
    own.note(ADDRESS, name)
    for file in sorted(own.folder.parent.glob(f"*/{FILE}")):
        other = Answers(file.parent)
        if other.folder == own.folder:
            continue
        earlier = _same(other, model, found)
        if earlier is not None:
            own.note(_ANSWERS_IN, answers_of(other).folder.name)
            return found.model_copy(update={"sentinels": earlier.sentinels})
    return found


def _same(other: Answers, model: str, found: Capabilities) -> Capabilities | None:
    """Return what was found out at another address about the same model; None if it is another one."""
    try:
        if other.fact(_MODEL) != model:
            return None
        noted = other.facts(CAPABILITIES)
    except RunError:  # damaged, and of no use to this model
        return None
    finally:
        other.close()
    for each in noted:
        try:
            earlier = Capabilities.model_validate_json(each)
        except ValidationError:  # of another version
            continue
        if earlier.dimension == found.dimension:
            gaps = exact_unit_vectors(earlier.sentinel_vectors) - exact_unit_vectors(found.sentinel_vectors)
            if np.linalg.norm(gaps, axis=1).max() < _SAME:
                return earlier
    return None
