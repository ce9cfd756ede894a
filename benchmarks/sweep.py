"""What the sweeps over architectures and tokenizers share: what is done with each model, and the loop.

A model is loaded, its vocabulary listed, a few of its tokens measured, its texts embedded and one of its
tokens repaired. Vectors are compared with those of SentenceTransformer.encode.
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
from stickytoken.encoders.loading import load_encoder
from stickytoken.errors import StickyTokenError
from stickytoken.evaluation import embed_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

tiny: Any = importlib.import_module("tiny")
transformers_logging: Any = transformers.utils.logging

TEXTS = [*tiny.sentences(6), "river", "the river " * 4]
SENTENCES = tiny.sentences(300)
# Largest absolute difference between a component of our vector and of the library's.
TOLERANCE = 1e-5
# Time limits for one name, by the clock and of the processor. The sweep goes on with the next name.
SECONDS = 300
PROCESSOR_SECONDS = 60
# Result of a model that was only loaded and compared.
EQUAL_VECTORS = "equal vectors"
# Number of tokens that `detect` measures.
SAMPLE = 12


# Imported here once, instead of in the process of every name.
detect = stickytoken.detect
repair = stickytoken.repair


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"


def largest_difference(first: NDArray[Any], second: NDArray[Any]) -> float:
    return float(np.abs(np.asarray(first, np.float64) - second).max())


class DifferentError(Exception):
    """Vectors differ from those of the library."""


@dataclass
class Trial:
    """What is done with one saved model.

    Attributes:
        place: Folder of the model.
        folder: Folder for everything else.
        step: What is being done, for the result.
    """

    place: Path
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
        library_says = ""
        try:
            library = SentenceTransformer(str(self.place), device="cpu", local_files_only=True)
            expected = library.encode(TEXTS, batch_size=1, show_progress_bar=False)
        except Exception as error:  # noqa: BLE001 - reported beside our refusal
            library_says = said(error)
        try:
            encoder = load_encoder(self.place, device="cpu")
            vectors = encoder.encode(TEXTS)
        except StickyTokenError as error:
            if not library_says:
                raise
            raise type(error)(f"{error} (the library: {library_says})") from error
        if expected is None:
            raise DifferentError(f"only ours; the library: {library_says}")
        difference = self._require_equal(vectors, expected)
        if load_only:
            return f"{difference:.1e}"
        self.step = "tokens"
        available = stickytoken.analyze_vocabulary(encoder).available
        self.step = "detect"
        run_folder = self.folder / "run"
        detect(encoder, sentences=SENTENCES, sample=SAMPLE, out=run_folder, evidence=False)
        self.step = "embed"
        vector_file = self.folder / "vectors.parquet"
        embed_file(encoder, TEXTS, vector_file)
        self._require_equal(pl.read_parquet(vector_file)["vector"].to_numpy(), expected)
        self.step = "repair"
        token = next((token.id for token in available if "river" in token.text), available[0].id)
        repaired = self.folder / "repaired"
        repair(run_folder, [token], out=repaired, verify=False)
        self.step = "repaired model"
        library = SentenceTransformer(str(repaired), device="cpu", local_files_only=True)
        repaired_vectors = library.encode(TEXTS, batch_size=1, show_progress_bar=False)
        self._require_equal(load_encoder(repaired, device="cpu").encode(TEXTS), repaired_vectors)
        return f"{difference:.1e}"

    def _require_equal(self, vectors: NDArray[Any], expected: NDArray[Any]) -> float:
        """Return the largest difference of a component.

        Raises:
            DifferentError: it is larger than the tolerance.
        """
        difference = largest_difference(vectors, expected)
        if not difference <= TOLERANCE:
            raise DifferentError(f"{difference:.1e}")
        return difference


def tried(place: Path, folder: Path, *, load_only: bool = False) -> tuple[str, str]:
    """Return what happened to a saved model, and the figure or the reason."""
    trial = Trial(place, folder)
    result, detail = outcome(lambda: trial.run(load_only=load_only), lambda: trial.step, place)
    if load_only and result == "equal":
        result = EQUAL_VECTORS
    return result, detail


def outcome(run: Callable[[], str], step: Callable[[], str], place: Path) -> tuple[str, str]:
    """Run the steps of a trial; return what happened, and the figure or the reason.

    Args:
        run: Returns the figure.
        step: Returns the name of the current step.
        place: Folder of the model, which messages do not show.
    """
    try:
        return "equal", run()
    except DifferentError as error:
        return f"DIFFERENT at {step()}", str(error)
    except StickyTokenError as error:
        return f"refused at {step()}", said(error).replace(str(place), "MODEL")
    except Exception as error:  # noqa: BLE001 - what the sweep looks for
        frames = traceback.extract_tb(error.__traceback__)
        own_frames = [frame for frame in frames if "stickytoken" in frame.filename]
        last = (own_frames or frames)[-1]
        return f"TRACEBACK at {step()}", f"{said(error)} ({Path(last.filename).name}:{last.lineno})"


@dataclass(frozen=True)
class Row:
    """What happened to one name, and the figure or the reason."""

    name: str
    result: str
    detail: str

    @classmethod
    def read(cls, line: str) -> Row:
        return cls(*line.split("\t"))

    @property
    def line(self) -> str:
        return "\t".join([self.name, self.result, " ".join(self.detail.split())])


def run_sweep(
    description: str | None,
    names: list[str],
    measure: Callable[[str, Path, argparse.Namespace], tuple[str, str]],
    *,
    has_load_only: bool = False,
    finish: Callable[[list[Row]], None] = lambda rows: None,
) -> None:
    """Measure each name in a process and a folder of its own, and add one line for each to the --out file.

    A process that hangs, crashes or takes all memory costs only its own name.

    Args:
        description: Text of --help.
        names: What is measured without --only.
        measure: Returns what happened, and the figure or the reason.
        has_load_only: Whether there is an option --load-only.
        finish: Gets all rows when every name is measured.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    if has_load_only:
        parser.add_argument("--load-only", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    lines = options.out.read_text("utf-8").splitlines() if options.out.is_file() else []
    rows = {row.name: row for row in map(Row.read, lines)}
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


def measured_apart(
    measure: Callable[[str, Path, argparse.Namespace], tuple[str, str]],
    name: str,
    options: argparse.Namespace,
) -> tuple[str, str]:
    """Measure one name in a copy of this process; return what happened, and the figure or the reason."""
    context = multiprocessing.get_context("fork")  # a new process would import everything again
    receiver, sender = context.Pipe(duplex=False)

    def report(answer: Connection, folder: str) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS + 1))
        try:
            answer.send(measure(name, Path(folder), options))
        except Exception as error:  # noqa: BLE001 - in the making of the model
            answer.send(("not built", said(error)))

    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=report, args=(sender, folder))
        process.start()
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
