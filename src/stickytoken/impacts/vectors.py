"""Vectors of what conditions read, each distinct input encoded once."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import IdEncoder
from stickytoken.insertion import Probe
from stickytoken.measurement.atomic import write_atomically
from stickytoken.measurement.engines.local import encode_probes, tokenized_probes


class VectorStore:
    """Encodes what was not encoded before.

    Inputs without copies are shared by all conditions. They are encoded together and committed to
    a file, so that a later session reads them: it encodes nothing twice, and its batches are those
    of the session that was cut off. Inputs with copies are kept until the next token, since only
    repetitions of the same token share them.

    Args:
        encoder: the model.
        clean: all inputs without copies.
        file: where their vectors are committed.
    """

    def __init__(self, encoder: IdEncoder, clean: Iterable[Probe], file: Path) -> None:
        self._encoder = encoder
        self._clean_probes = list(dict.fromkeys(clean))
        self._file = file
        self._clean: dict[Probe, NDArray[np.float32]] = {}
        self._recent: dict[Probe, NDArray[np.float32]] = {}
        self._token: object = None
        self.edited = 0
        """Inputs with copies that were encoded."""

    @property
    def clean(self) -> int:
        """Number of distinct inputs without copies."""
        return len(self._clean_probes)

    def begin(self, token: object) -> None:
        """Say whose copies come next; those of another token are forgotten."""
        if token != self._token:
            self._recent = {}
            self._token = token

    def of(self, probes: Sequence[Probe]) -> NDArray[np.float32]:
        """Vectors of inputs in order, shape (n, d).

        Args:
            probes: all texts, or all id tuples.

        Raises:
            EncodingError: one has no usable vector.
        """
        self._require_clean()
        missing = [
            each for each in dict.fromkeys(probes) if each not in self._clean and each not in self._recent
        ]
        if missing:
            self._recent.update(zip(missing, self._encoded(missing), strict=True))
            self.edited += len(missing)
        return np.stack([self._clean[each] if each in self._clean else self._recent[each] for each in probes])

    def _encoded(self, probes: Sequence[Probe]) -> NDArray[np.float32]:
        return encode_probes(self._encoder, tokenized_probes(self._encoder, probes))

    def _require_clean(self) -> None:
        if self._clean or not self._clean_probes:
            return
        key = hashlib.sha256(repr(self._clean_probes).encode("utf-8", "surrogatepass")).hexdigest()
        vectors = _read(self._file, key)
        if vectors is None:
            vectors = self._encoded(self._clean_probes)
            _write(self._file, key, vectors)
        self._clean = dict(zip(self._clean_probes, vectors, strict=True))


def _read(file: Path, key: str) -> NDArray[np.float32] | None:
    """Committed vectors; None where there are none, of these inputs and undamaged."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as content:
            vectors: NDArray[np.float32] = content["vectors"]  # read to its end, so its checksum is checked
            return vectors if str(content["key"]) == key else None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def _write(file: Path, key: str, vectors: NDArray[np.float32]) -> None:
    def write(stream: BinaryIO) -> None:
        np.savez(stream, vectors=vectors, key=np.array(key))

    write_atomically(file, write)
