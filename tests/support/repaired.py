"""A model with a sticky word, its run, and records of repairs as they are written."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

import profiled
import tiny
from stickytoken import load_encoder
from stickytoken.data import Sentences, collect_sentences
from stickytoken.detection import Run
from stickytoken.repairs.records import RepairRecord

WORD = profiled.WORDS[7]
OTHER = profiled.WORDS[19]
"""Words that fall into two syllables."""
LETTER = "!"
"""An entry that does not fall into anything."""


def planted_words(*names: str, dimension: int = 32) -> SentenceTransformer:
    """Mean-pooled static embeddings in which some entries pull every text to what all have in common."""
    syllables = [piece for word in (WORD, OTHER) for piece in (word[:2], f"##{word[2:]}")]
    model = profiled.planted_model(0, words=[*profiled.WORDS, *syllables], dimension=dimension)
    tokenizer = model.tokenizer
    rows = model[0].embedding.weight.detach().clone()
    for name in names:
        rows[tokenizer.token_to_id(name)] = 2 * torch.eye(dimension)[0]
    return tiny.static_model(tokenizer, rows)


def saved_run(root: Path, *names: str) -> Run:
    planted_words(*names).save(str(root / "model"))
    return profiled.detect_profile(load_encoder(root / "model", device="cpu"), root / "run")


def unused_corpus() -> Sentences:
    return collect_sentences(profiled.sentences(260, seed=5), "other texts")


def task_file(folder: Path) -> Path:
    words = [word for word in profiled.WORDS if word not in (WORD, OTHER)]
    texts = tiny.sentences(24, seed=3, words=words)
    rows = "\n".join(f"{a},{b},{k % 5}" for k, (a, b) in enumerate(zip(texts[::2], texts[1::2], strict=True)))
    path = folder / "pairs.csv"
    path.write_text(f"sentence1,sentence2,score\n{rows}\n", encoding="utf-8")
    return path


def repair_record(*names: str, passed: bool | None = True) -> RepairRecord:
    """A record with tokens of these names; their verification failed if not passed, None without one."""
    measured = {
        "before": {"push": 1.9, "erased": 0.45, "found": 0.6, "verdict": "sticky"},
        "after": {"push": 0.7, "erased": 0.02, "found": 0.9, "verdict": "benign"},
    }
    record = {} if passed is None else measured
    why = {"strategy": "unreachable", "reason": "the text is split into pieces"}
    near = {"token_id": 99, "token": names[0], "near": names[0], "in_run": "benign", **measured}
    score = {"task": "kinds of text", "metric": "accuracy", "texts": 800, "before": 0.65, "after": 0.64}
    verification = {
        "ordinary_push": 0.7,
        "found_without": 0.93,
        "ordinary_contraction": 0.3,
        "smallest_push": 1.5,
        "smallest_erased": 0.4,
        "vectors_compared": True,
        "carriers": 24,
        "source": "the bundled corpus",
        "neighbours": [near],
        "scores": [score],
        "checks": [{"name": "repaired tokens", "passed": bool(passed), "finding": f"{names[0]} was seen"}],
    }
    return RepairRecord(
        identity="0123456789abcdef",
        identity_parts={"version": 1},
        model="model",
        run="fedcba",
        strategy="auto",
        settings={"seed": 1},
        tokens=[
            {"token_id": index, "token": name, "text": name, "pieces": [name[:1], name[1:]], **why, **record}
            for index, name in enumerate(names)
        ],
        verification=None if passed is None else verification,
        notes=[],
        versions={},
        hardware={},
        started="2026-01-01T00:00:00+00:00",
        seconds=1.0,
    )
