"""The hidden folder beside the result in which a repaired model is built and checked before it is shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.encoders.loading.load import loaded_like
from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.encoders.loading.spec import EncoderSpec
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import RepairError, StickyTokenError
from stickytoken.measurement.atomic import move_folder
from stickytoken.measurement.store import ResultFolder
from stickytoken.repairs.model_folder import ModelEdit, write_model

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

_MODEL = "model"


def repairable(encoder: IdEncoder) -> tuple[SentenceTransformerEncoder, Path]:
    """Return a model that can be repaired, and its folder."""
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

    if not isinstance(encoder, SentenceTransformerEncoder):
        raise RepairError(
            f"{encoder.name} is a {type(encoder).__name__}: only models that sentence-transformers loads by "
            "itself can be repaired"
        )
    spec: EncoderSpec | None = encoder.spec
    if spec is None:
        raise RepairError(
            f"{encoder.name} was passed as an object, and a repair starts from files: pass the name or the "
            "folder of the model"
        )
    place = Path(resolve_model(spec.model, spec.revision).location)
    if not place.is_dir():
        raise RepairError(
            f"the files of {encoder.name} are not on this machine: pass the folder of the model"
        )
    return encoder, place


class Workshop:
    """Builds edited copies of a model.

    Args:
        place: a hidden folder that nobody else uses.
        source: the model folder.
        original: the model, loaded from it.
    """

    def __init__(self, place: Path, source: Path, original: SentenceTransformerEncoder) -> None:
        self._place = place
        self._source = source
        self._original = original

    def build(self, edit: ModelEdit, name: str = _MODEL) -> Path:
        """Write an edited copy; earlier ones are removed."""
        _empty(self._place)
        target = self._place / name
        write_model(self._source, target, edit)
        return target

    def load(self, folder: Path) -> SentenceTransformerEncoder:
        """Load a copy as the original was loaded."""
        from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

        found = loaded_like(self._original, folder)
        if not isinstance(found, SentenceTransformerEncoder):
            raise RepairError(f"{folder} does not load as a SentenceTransformer")
        return found

    def finish(self, folder: Path, out: Path) -> None:
        """Put a copy in its place."""
        move_folder(folder, out)


def _empty(place: Path) -> None:
    """Remove the copies in the hidden folder, but not its lock."""
    for copy in place.iterdir():
        if copy.is_dir():
            shutil.rmtree(copy, ignore_errors=True)


@contextmanager
def _named(place: Path, out: Path) -> Iterator[None]:
    """Let errors name the folder that the user passed instead of the hidden one."""
    try:
        yield
    except StickyTokenError as error:
        said = str(error).replace(str(place / _MODEL), str(out)).replace(str(place), str(out))
        if said == str(error):
            raise
        raise type(error)(said) from error


def _hidden(out: Path) -> Path:
    return out.absolute().with_name(f".{out.name}.repairing")


def clear_workshop(out: Path) -> None:
    """Remove the hidden folder that a process left behind when it was killed just after its last step."""
    shutil.rmtree(_hidden(out), ignore_errors=True)


@contextmanager
def workshop(out: Path, source: Path, original: SentenceTransformerEncoder) -> Iterator[Workshop]:
    """Lock the hidden folder beside ``out``, clear what a killed process left there, remove it at the end."""
    place = _hidden(out)
    with _named(place, out), ResultFolder(place).locked():
        _empty(place)
        try:
            yield Workshop(place, source, original)
        finally:
            shutil.rmtree(place, ignore_errors=True)
