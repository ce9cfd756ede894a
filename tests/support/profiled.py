"""Models and settings for the profile method: a vocabulary large enough to show what is ordinary."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import planted
import tiny
from stickytoken import load_encoder
from stickytoken.data import Sentences, collect_sentences
from stickytoken.detection import Run, detect
from stickytoken.encoders import Encoder
from stickytoken.settings.profile import ProfileSettings

SYLLABLES = [consonant + vowel for consonant, vowel in itertools.product("bdfgklmnprst", "aeiou")]
WORDS = ["".join(pair) for pair in itertools.product(SYLLABLES, repeat=2)][::15]  # 240 of them
AVAILABLE = 95 + len(WORDS)
SMALL = ProfileSettings(confirming_texts=24)
# Few texts a shard, so that a run has many.
SHARD_PROBES = 96


def sentences(count: int, words: Sequence[str] = WORDS, seed: int = 0) -> list[str]:
    return tiny.sentences(count, seed, words)


def corpus(count: int = 200, topics: int = 0, words: Sequence[str] = WORDS) -> Sentences:
    """Sentences, each on one of so many topics: every topic has words of its own, in equal parts."""
    if not topics:
        return collect_sentences(sentences(count, words), "test")
    about = [f"topic {index % topics}" for index in range(count)]
    texts_of_topic = [
        sentences(count // topics + 1, words[topic::topics], seed=topic) for topic in range(topics)
    ]
    texts = [texts_of_topic[index % topics][index // topics] for index in range(count)]
    return collect_sentences(texts, "test", topics=about)


def save_bert(folder: Path) -> Path:
    backbone = tiny.bert_backbone(folder / "backbone", words=WORDS)
    model = folder / "model"
    tiny.sentence_transformer(backbone, normalize=True).save(str(model))
    return model


def planted_model(
    strength: float,
    common: float = 0.2,
    words: Sequence[str] = WORDS,
    dimension: int = 32,
    token: str = planted.PLANTED,
    added: Sequence[str] = (),
) -> SentenceTransformer:
    """Mean-pooled static embeddings with a token that pulls every text to what all have in common."""
    tokenizer = tiny.wordpiece_tokenizer(words=words)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(tokenizer), dimension, generator=generator)
    rows[:, 0] = 0
    rows = torch.nn.functional.normalize(rows - rows.mean(0))
    rows[:, 0] = common
    rows[tokenizer.convert_tokens_to_ids(".")] *= 0.01
    if strength:
        rows[tokenizer.convert_tokens_to_ids(token)] = strength * torch.eye(dimension)[0]
    return tiny.static_model(tokenizer.backend_tokenizer, rows)


def detect_profile(encoder: Encoder, out: Path, **options: object) -> Run:
    changes = {
        name: options.pop(name) for name in list(options) if name in ProfileSettings.__dataclass_fields__
    }
    arguments = {"sentences": corpus(), "settings": replace(SMALL, **changes)} | options
    return detect(encoder, out=out, **arguments)


def detect_in_documents(encoder: Encoder, out: Path, **options: object) -> Run:
    """Detect with enough sentences for documents, and a push that only the planted token may reach.

    The rows of these models are random, so that some words push documents a little.
    """
    return detect_profile(encoder, out, **({"sentences": corpus(1200), "smallest_push": 5.0} | options))


def hashed_vectors(probes: Sequence[object], dimension: int, shift: float = 0.5) -> np.ndarray:
    seeds = [hashlib.sha256(repr(probe).encode()).digest()[:8] for probe in probes]
    vectors = [np.random.default_rng(int.from_bytes(seed, "big")).normal(size=dimension) for seed in seeds]
    return (np.stack(vectors) + shift).astype(np.float32)


def shard_rows(run: Run, step: str) -> dict[int, dict]:
    paths = sorted((run.path / "shards").glob(f"{step}-*.parquet"))
    return {row["token_id"]: row for row in pl.concat([pl.read_parquet(path) for path in paths]).to_dicts()}


def detect_in_small_shards(model: Path, out: Path) -> None:
    """Detect with the small settings in many shards; runs in a process of its own."""
    detect_profile(load_encoder(model, device="cpu"), out, shard_probes=SHARD_PROBES)


def foreign_model(dimension: int = 32) -> SentenceTransformer:
    """Static embeddings of a tokenizer that knows the words and no other text."""
    entries = ["[UNK]", ".", "!", *WORDS]
    tokenizer = Tokenizer(WordLevel({entry: token_id for token_id, entry in enumerate(entries)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(len(entries), dimension, generator=generator))
    return tiny.static_model(tokenizer, rows)
