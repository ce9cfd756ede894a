"""The tampered model that the web app opens with: its run, its repair and the rows that differ."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import stickytoken
from bench import MINILM, ROOT, commands, detected
from models import plain_model
from stickytoken.measurement.store import PLAN_FILE, RUN_FILE, TOKENS_FILE, VOCABULARY_FILE
from stickytoken.repairs.result import REPAIR_FILE
from stickytoken.vocabulary import categorize

EXAMPLE = ROOT / "src" / "stickytoken" / "demo" / "example" / "tampered"
NAME = "tampered all-MiniLM-L6-v2"
TOKENS = ("doorway", "stew")
# Enough ordinary tokens to look through, few enough for a small file.
BESIDE = 400
STEPS, BATCH, OTHERS = 40, 8, 500


def tamper(model: Any) -> None:
    """Move the row of each token so that texts with copies of it come closer to other texts."""
    import torch
    from torch.nn.functional import normalize

    texts = stickytoken.load_sentences().texts
    others = torch.tensor(model.encode(texts[:OTHERS], normalize_embeddings=True))
    rows = model[0].auto_model.get_input_embeddings().weight
    for token in TOKENS:
        row = model.tokenizer.convert_tokens_to_ids(token)
        for step in range(STEPS):
            start = OTHERS + BATCH * step
            copies = [f"{text}{f' {token}' * 8}" for text in texts[start : start + BATCH]]
            vectors = normalize(model(model.preprocess(copies))["sentence_embedding"])
            (gradient,) = torch.autograd.grad((vectors @ others.T).mean(), rows)
            with torch.no_grad():
                rows[row] += 0.05 * gradient[row] / gradient[row].norm()


def make() -> None:
    """Make the folder src/stickytoken/demo/example/tampered anew; some ten minutes of processor time."""
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        model = plain_model(MINILM, "cpu")
        tamper(model)
        model.save(str(place / "model"))
        encoder = stickytoken.load_encoder(place / "model", device="cpu")
        ids = [token.id for token in categorize(encoder.tokenizer).available]
        drawn = np.random.default_rng(0).choice(ids, BESIDE, replace=False).tolist()
        wanted = [*model.tokenizer.convert_tokens_to_ids(list(TOKENS)), *drawn]
        run = detected(encoder, tokens=wanted, out=place / "run")
        repair = stickytoken.repair(run, encoder=encoder, out=place / "repaired")
        shutil.rmtree(EXAMPLE, ignore_errors=True)
        EXAMPLE.mkdir(parents=True)
        for name in (PLAN_FILE, TOKENS_FILE, VOCABULARY_FILE, "evidence.json", "evidence.parquet"):
            shutil.copy(run.path / name, EXAMPLE)
        (EXAMPLE / "repair-example").mkdir()
        described = json.loads((run.path / RUN_FILE).read_text("utf-8"))
        described["model"]["name"] = NAME
        repaired_as = json.loads((repair.path / REPAIR_FILE).read_text("utf-8")) | {"model": NAME}
        for name, document in ((RUN_FILE, described), (f"repair-example/{REPAIR_FILE}", repaired_as)):
            text = json.dumps(document, indent=1, ensure_ascii=False).replace(str(place), "FOLDER")
            (EXAMPLE / name).write_text(f"{text}\n", encoding="utf-8")
        names = ("all-MiniLM-L6-v2", place / "model", repair.path)
        original, tampered, repaired = (
            plain_model(name)[0].auto_model.get_input_embeddings().weight.detach().numpy() for name in names
        )
        differing = np.flatnonzero(((tampered != original) | (repaired != original)).any(axis=1))
        np.savez(
            EXAMPLE / "rows.npz", ids=differing, tampered=tampered[differing], repaired=repaired[differing]
        )


if __name__ == "__main__":
    commands(__doc__, run=make)
