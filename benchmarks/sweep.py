"""The trial of a model, and the loop over models, for the sweep over architectures.

A trial loads a model, lists its vocabulary, measures a few tokens, embeds texts and repairs a token. It
compares the vectors with those of SentenceTransformer.encode. This module has no command line: run
`architecture_sweep.py`.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

import stickytoken
from stickytoken import load_encoder
from stickytoken.errors import StickyTokenError
from stickytoken.evaluation import embed_file
from stickytoken.settings.repair import RepairSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

# The tiny models and sentences of the tests.
tiny: Any = importlib.import_module("tiny")
transformers_logging: Any = transformers.utils.logging

TEXTS = [*tiny.sentences(6), "river", "the river " * 4]
SENTENCES = tiny.sentences(300)
# Largest absolute difference between a component of our vector and of the library's.
TOLERANCE = 1e-5
# Time limits for one name, by the clock and of the processor. When one is reached, the sweep continues with
# the next name.
SECONDS = 300
PROCESSOR_SECONDS = 60
# Result of a model that was only loaded and compared.
EQUAL_VECTORS = "equal vectors"
# Number of tokens that `detect` measures.
SAMPLE = 12

# `stickytoken` imports these functions when they are first used. Every name has its own process, which would
# import them again if this process had not.
detect = stickytoken.detect
repair = stickytoken.repair


def said(error: BaseException) -> str:
    """Return the type of an error and the start of its message, on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:240]}"


def largest_difference(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the largest absolute difference between corresponding components of two arrays."""
    return float(np.abs(np.asarray(first, np.float64) - second).max())


class DifferentError(Exception):
    """Vectors differ from those of the library."""


@dataclass
class Trial:
    """The trial of one saved model.

    Attributes:
        model_folder: Folder of the model.
        folder: Folder for everything that the trial writes.
        step: Name of the current step, for the result.
    """

    model_folder: Path
    folder: Path
    step: str = "load"

    def run(self, *, load_only: bool) -> str:
        """Load, list, detect, embed and repair the model.

        Returns:
            The largest difference from the vectors of the library.

        Raises:
            DifferentError: vectors differ from those of the library.
            StickyTokenError: the model was refused.
        """
        expected = None
        library_error = ""
        try:
            expected = library_vectors(self.model_folder)
        except Exception as error:  # noqa: BLE001 - reported beside our refusal
            library_error = said(error)
        try:
            encoder = load_encoder(self.model_folder, device="cpu")
            vectors = encoder.encode(TEXTS)
        except StickyTokenError as error:
            if not library_error:
                raise
            raise type(error)(f"{error} (the library: {library_error})") from error
        if expected is None:
            raise DifferentError(f"only ours; the library: {library_error}")
        difference = self._require_equal(vectors, expected)
        if load_only:
            return f"{difference:.1e}"
        self.step = "tokens"
        available = stickytoken.analyze_vocabulary(encoder).available
        self.step = "detect"
        run_folder = self.folder / "run"
        detect(encoder, sentences=SENTENCES, sample=SAMPLE, out=run_folder)
        self.step = "embed"
        vector_file = self.folder / "vectors.parquet"
        embed_file(encoder, TEXTS, vector_file)
        self._require_equal(pl.read_parquet(vector_file)["vector"].to_numpy(), expected)
        self.step = "repair"
        # "river" is in the texts, so the repair of its token changes their vectors.
        token_id = next((token.id for token in available if "river" in token.text), available[0].id)
        repaired = self.folder / "repaired"
        repair(run_folder, [token_id], out=repaired, settings=RepairSettings(verify=False))
        self.step = "repaired model"
        expected_after_repair = library_vectors(repaired)
        vectors_after_repair = load_encoder(repaired, device="cpu").encode(TEXTS)
        self._require_equal(vectors_after_repair, expected_after_repair)
        return f"{difference:.1e}"

    def _require_equal(self, vectors: NDArray[Any], expected: NDArray[Any]) -> float:
        """Return the largest difference of a component.

        Raises:
            DifferentError: the difference is larger than the tolerance, or not a number.
        """
        difference = largest_difference(vectors, expected)
        # ``difference > TOLERANCE`` would be false for NaN.
        if not difference <= TOLERANCE:
            raise DifferentError(f"{difference:.1e}")
        return difference


def library_vectors(model_folder: Path) -> NDArray[Any]:
    """Return the vectors that sentence-transformers computes for the texts, shape (texts, d)."""
    library = SentenceTransformer(str(model_folder), device="cpu", local_files_only=True)
    # One text at a time, so that no vector depends on the padding to the length of another text.
    vectors: NDArray[Any] = library.encode(TEXTS, batch_size=1, show_progress_bar=False)
    return vectors


def tried(model_folder: Path, folder: Path, *, load_only: bool = False) -> tuple[str, str]:
    """Try a saved model.

    Args:
        model_folder: Folder of the model.
        folder: Folder for everything that the trial writes.
        load_only: Only load the model and compare its vectors.

    Returns:
        What happened, and the figure or the reason.
    """
    trial = Trial(model_folder, folder)
    result, detail = outcome(lambda: trial.run(load_only=load_only), lambda: trial.step, model_folder)
    if load_only and result == "equal":
        result = EQUAL_VECTORS
    return result, detail


def outcome(run: Callable[[], str], step: Callable[[], str], model_folder: Path) -> tuple[str, str]:
    """Run the steps of a trial.

    Args:
        run: Returns the figure.
        step: Returns the name of the current step.
        model_folder: Folder of the model, which messages do not show.

    Returns:
        What happened, and the figure or the reason.
    """
    try:
        return "equal", run()
    except DifferentError as error:
        return f"DIFFERENT at {step()}", str(error)
    except StickyTokenError as error:
        return f"refused at {step()}", said(error).replace(str(model_folder), "MODEL")
    except Exception as error:  # noqa: BLE001 - what the sweep looks for
        frames = traceback.extract_tb(error.__traceback__)
        own_frames = [frame for frame in frames if "stickytoken" in frame.filename]
        last_frame = (own_frames or frames)[-1]
        position = f"{Path(last_frame.filename).name}:{last_frame.lineno}"
        return f"TRACEBACK at {step()}", f"{said(error)} ({position})"


@dataclass(frozen=True)
class Row:
    """What happened to one name, and the figure or the reason."""

    name: str
    result: str
    detail: str

    @classmethod
    def read(cls, line: str) -> Row:
        """Return the row that a line of the --out file holds."""
        return cls(*line.split("\t"))

    @property
    def line(self) -> str:
        """The row as a line of the --out file, with tabs between the fields."""
        return "\t".join([self.name, self.result, " ".join(self.detail.split())])


def run_sweep(
    description: str | None,
    names: list[str],
    measure: Callable[[str, Path, argparse.Namespace], tuple[str, str]],
    finish: Callable[[list[Row]], None],
) -> None:
    """Run the command line of a sweep: measure each name, and append a line for it to the --out file.

    Every name has its own process and its own folder, so if a process hangs, crashes or uses up all memory,
    only its name is lost. Names that the --out file already has are not measured again.

    Args:
        description: Text of --help.
        names: Names to measure, unless --only lists others.
        measure: Measures a name, given an empty folder and the options; returns what happened, and the figure
            or the reason.
        finish: Is called with all rows, in the order of the names, when every name is measured.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--load-only", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows = read_rows(options.out)
    for name in options.only or names:
        if name in rows:
            continue
        result, detail = measured_apart(measure, name, options)
        rows[name] = Row(name, result, detail)
        with options.out.open("a", encoding="utf-8") as stream:
            stream.write(f"{rows[name].line}\n")
    for result, count in Counter(row.result for row in rows.values()).most_common():
        print(f"{count:4} {result}")
    if rows.keys() >= set(names):
        finish([rows[name] for name in names])


def read_rows(path: Path) -> dict[str, Row]:
    """Return the rows of an --out file, keyed by name; none if there is no file."""
    if not path.is_file():
        return {}
    rows = [Row.read(line) for line in path.read_text("utf-8").splitlines()]
    return {row.name: row for row in rows}


def measured_apart(
    measure: Callable[[str, Path, argparse.Namespace], tuple[str, str]],
    name: str,
    options: argparse.Namespace,
) -> tuple[str, str]:
    """Measure one name in a copy of this process, with limits on its time.

    Returns:
        What happened, and the figure or the reason.
    """
    # A fork has all imported modules; a new process would import them again.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def report(answer: Connection, folder: str) -> None:
        """Measure the name within the process, and send the result back."""
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS + 1))
        try:
            answer.send(measure(name, Path(folder), options))
        except Exception as error:  # noqa: BLE001 - the model could not be made
            answer.send(("not built", said(error)))

    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=report, args=(sender, folder))
        process.start()
        # Only the other process holds the sender now, so if it dies, ``recv`` ends with an EOFError.
        sender.close()
        try:
            if not receiver.poll(SECONDS):
                return "TIMEOUT", f"more than {SECONDS} s"
            result, detail = receiver.recv()
            return str(result), str(detail)
        except EOFError:
            process.join()
            if process.exitcode == -signal.SIGXCPU:
                return "TIMEOUT", f"more than {PROCESSOR_SECONDS} s of processor time"
            return "CRASHED", f"the process ended with {process.exitcode}"
        finally:
            process.kill()
            process.join()
