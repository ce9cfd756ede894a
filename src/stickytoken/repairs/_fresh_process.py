"""Check that a repaired model loads without stickytoken, and is then the model that was verified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stickytoken.encoders.files.tokenizer_loading import text_module
from stickytoken.repairs.model_folder import RepairableModel
from stickytoken.repairs.records import CheckRecord
from stickytoken.validation import visible

# Number of texts whose vectors are compared. A few suffice, because a wrong weight changes every vector.
ENCODED_TEXTS = 24
# Number of texts that are tokenized, besides spellings of the repaired tokens.
_TOKENIZED_TEXTS = 256
# Minimum cosine between the vectors that this process and the fresh process compute for a text, for the two
# to count as equal.
_SAME_COSINE = 0.999

# Limits on what a finding quotes: characters of an error, and of a text.
_SHOWN_ERROR = 300
SHOWN_TEXT = 60


def check_fresh_process(
    original: RepairableModel, repaired: RepairableModel, spellings: Sequence[str], texts: Sequence[str]
) -> list[CheckRecord]:
    """Load the repaired model in a new process without stickytoken; compare vectors and token ids.

    Args:
        original: the model before the repair.
        repaired: the model after the repair.
        spellings: texts that contain the repaired tokens.
        texts: other texts.

    Returns:
        A check that the model loads and gives the same vectors. If the model loads, the list also has a check
        that all ways to load its tokenizer give the same token ids.
    """
    tokenized = [*spellings, *texts[:_TOKENIZED_TEXTS]]
    # Leave out texts that are longer than the model reads, because `encode` refuses them.
    all_ids = repaired.encoder.content_ids(texts)
    fitting = [text for text, ids in zip(texts, all_ids, strict=True) if repaired.encoder.fits(ids)]
    encoded = fitting[:ENCODED_TEXTS]
    process = _run_script(original, repaired, tokenized, encoded)
    if process.returncode:
        error_lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = f"the process ended with {process.returncode}"
        if error_lines:
            reason = error_lines[-1][:_SHOWN_ERROR]  # a traceback ends with the error itself
        finding = f"a process without stickytoken cannot load the folder: {visible(reason)}"
        return [CheckRecord(name="fresh process", passed=False, finding=finding)]
    # The answer is the last line, because libraries may print lines before it.
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    same_vectors = _check_vectors(answer, repaired, encoded)
    return [same_vectors, _check_loaders(answer, len(tokenized))]


def _check_vectors(
    answer: Mapping[str, Any], repaired: RepairableModel, encoded: Sequence[str]
) -> CheckRecord:
    """Check that the fresh process and this one compute the same vectors.

    ``answer`` is the answer of `_SCRIPT`, and ``encoded`` the texts that it encoded.
    """
    name = "fresh process"
    loads = f"a process without stickytoken loads the folder with sentence-transformers {answer['version']}"
    if not encoded:
        finding = f"{loads}, but no text fits the model, so no vectors could be compared"
        return CheckRecord(name=name, passed=False, finding=finding)
    our_vectors = repaired.encoder.encode(encoded).astype(np.float64)
    their_vectors = np.array(answer["vectors"])
    norms = np.linalg.norm(our_vectors, axis=1) * np.linalg.norm(their_vectors, axis=1)
    cosines = (our_vectors * their_vectors).sum(axis=1) / norms  # shape (texts,)
    least_cosine = float(cosines.min())
    finding = (
        f"{loads} and computes vectors with a cosine of at least {least_cosine:.6f} to those computed here, "
        f"on {len(encoded)} texts"
    )
    return CheckRecord(name=name, passed=least_cosine >= _SAME_COSINE, finding=finding)


def _run_script(
    original: RepairableModel, repaired: RepairableModel, tokenized: Sequence[str], encoded: Sequence[str]
) -> subprocess.CompletedProcess[bytes]:
    """Run `_SCRIPT` in a new process, and return the finished process with its output.

    It tokenizes the texts ``tokenized``, and encodes the texts ``encoded``.
    """
    route = original.encoder.route
    request = {
        "folder": str(repaired.folder.absolute()),
        "tokenizer": str(_tokenizer_folder(repaired.folder, original.named_route)),
        "prompt": original.encoder.prompt,
        "truncate_dim": original.encoder.truncate_dim,
        "task": None if route is None else route.task,
        "route": None if route is None else route.route,
        "texts": [*tokenized],
        "encoded": [*encoded],
        "original": str(original.folder.absolute()),
        "original_tokenizer": str(_tokenizer_folder(original.folder, original.named_route)),
    }
    # Python imports modules from the working directory first, so an empty one is used.
    with tempfile.TemporaryDirectory(prefix="stickytoken-") as empty_folder:
        return subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            cwd=empty_folder,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            input=json.dumps(request).encode(),
            capture_output=True,
            check=False,  # an error is a finding
        )


def _tokenizer_folder(model: Path, route: str | None) -> Path:
    return text_module(model, model.name, route).folder.absolute()


def _check_loaders(answer: Mapping[str, Any], count: int) -> CheckRecord:
    """Check that all ways to load the tokenizer give the same token ids.

    Differences that the model already had before the repair do not fail the check. ``answer`` is the answer
    of `_SCRIPT`, and ``count`` the number of texts that it tokenized.

    Returns:
        The record of the check. If the repair made a loader differ, the finding names one loader and one text
        for which it differs. If all differences existed before the repair, the finding mentions them.
    """
    loaders = ", ".join(answer["loaders"])
    # For each loader that the repair made differ, the first text for which it differs.
    first_difference_by_loader: dict[str, str] = answer["unequal"]
    if first_difference_by_loader:
        loader, text = next(iter(first_difference_by_loader.items()))
        shown_text = visible(text[:SHOWN_TEXT])
        finding = f"{loader} tokenizes {shown_text!r} differently from sentence-transformers"
        return CheckRecord(name="tokenizers", passed=False, finding=finding)
    finding = f"{loaders} give equal ids for {count:,} texts"
    # For each loader, the number of texts for which it differed before the repair too.
    old_differences_by_loader: dict[str, int] = answer["as_before"]
    if old_differences_by_loader:
        differing = max(old_differences_by_loader.values())
        finding = (
            f"{loaders} read {count:,} texts as they did before the repair; on {differing:,} of them they "
            "differ from sentence-transformers, because of the model's settings"
        )
    return CheckRecord(name="tokenizers", passed=True, finding=finding)


# The program that the fresh process runs. It reads a request as JSON: the folders of both models and their
# tokenizers, the prompt, the number of components, the task and the route, the texts to tokenize, and the
# texts to encode. The last line of its output is also JSON: the version of sentence-transformers, the
# vectors, the names of the tokenizer's loaders, and the loaders whose token ids differ from those of
# sentence-transformers. New differences and differences that existed before the repair are listed separately.
# Remote code is never run.
_SCRIPT = """
import json, sys
sys.modules["stickytoken"] = None
request = json.loads(sys.stdin.buffer.read())
import sentence_transformers
from pathlib import Path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

texts = request["texts"]

def ids_by_tokenizers(tokenizer):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=True)]

def ids_by_transformers(tokenizer):
    return tokenizer(texts, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]

def ids_of_model(model):
    module = model[0]
    routes = getattr(module, "sub_modules", {})
    if request["route"] in routes:
        module = routes[request["route"]][0]
    if isinstance(module.tokenizer, Tokenizer):
        return ids_by_tokenizers(module.tokenizer)
    return ids_by_transformers(module.tokenizer)

def ids_by_loader(folder):
    ids = {}
    has_config = (folder / "tokenizer_config.json").is_file()
    if (folder / "tokenizer.json").is_file():
        ids["tokenizers"] = ids_by_tokenizers(Tokenizer.from_file(str(folder / "tokenizer.json")))
        if has_config:
            generic = PreTrainedTokenizerFast.from_pretrained(folder)
            ids["PreTrainedTokenizerFast"] = ids_by_transformers(generic)
    if has_config:
        ids["AutoTokenizer"] = ids_by_transformers(AutoTokenizer.from_pretrained(folder))
    return ids

def differing_texts(expected, ids_by_name):
    differing = {}
    for name, ids in ids_by_name.items():
        differing[name] = {i for i in range(len(texts)) if list(ids[i]) != list(expected[i])}
    return differing

model = SentenceTransformer(request["folder"], device="cpu", truncate_dim=request["truncate_dim"])
# An empty prompt is passed on, because without one the model's default prompt would be used.
options = {"prompt": request["prompt"], "show_progress_bar": False}
if request["task"]:
    options["task"] = request["task"]
vectors = model.encode(request["encoded"], **options)
repaired_ids = ids_by_loader(Path(request["tokenizer"]))
unequal = differing_texts(ids_of_model(model), repaired_ids)
del model
as_before = {}
if any(unequal.values()):
    # The settings of a model may change its tokenizer, for example to lower case. Such differences
    # existed before the repair.
    original = SentenceTransformer(request["original"], device="cpu")
    original_ids = ids_by_loader(Path(request["original_tokenizer"]))
    before = differing_texts(ids_of_model(original), original_ids)
    as_before = {name: len(indices & before.get(name, set())) for name, indices in unequal.items()}
    unequal = {name: indices - before.get(name, set()) for name, indices in unequal.items()}
answer = {
    "version": sentence_transformers.__version__,
    "vectors": [[float(value) for value in row] for row in vectors],
    "unequal": {name: texts[min(indices)] for name, indices in unequal.items() if indices},
    "as_before": {name: count for name, count in as_before.items() if count},
    "loaders": sorted(["sentence-transformers", *repaired_ids]),
}
print()
print(json.dumps(answer))
"""
