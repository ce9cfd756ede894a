"""Small task files, and an encoder that records what it encodes."""

import gzip
import json
from pathlib import Path

import numpy as np

import tiny
from stickytoken.encoders import Encoder

TOPICS = (("river", "stone", "bird"), ("market", "song", "letter"), ("engine", "glass", "copper"))


def lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def topical_texts(count: int, seed: int = 0) -> list[tuple[str, str]]:
    generator = np.random.default_rng(seed)
    topic_of: dict[str, str] = {}
    while len(topic_of) < count:
        topic = len(topic_of) % len(TOPICS)
        words = [*generator.choice(TOPICS[topic], 2), *generator.choice(tiny.WORDS, 3)]
        topic_of.setdefault(" ".join(generator.permutation(words)), f"topic{topic}")
    return list(topic_of.items())


def sts(folder: Path, count: int = 60) -> Path:
    generator = np.random.default_rng(1)
    rows: list[dict[str, object]] = []
    for first in tiny.sentences(count):
        words = first.rstrip(".").split()
        position = int(generator.integers(len(words) + 1))
        second = words[:position] + generator.choice(tiny.WORDS, len(words) - position).tolist()
        score = 5 * position / len(words) + generator.normal(0, 0.2)
        rows.append({"sentence1": first, "sentence2": " ".join(second), "score": score})
    return lines(folder / "sts.jsonl", rows)


def classification(folder: Path) -> Path:
    rows = [
        {"text": text, "label": topic, "split": "train" if index < 45 else "test"}
        for index, (text, topic) in enumerate(topical_texts(75))
    ]
    return lines(folder / "topics.jsonl", rows)


def compress(path: Path) -> Path:
    """Replace a file by a gzipped one."""
    compressed = path.with_name(f"{path.name}.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return compressed


def beir(folder: Path, documents: int = 60, queries: int = 20) -> Path:
    """A retrieval task: queries share words with their two relevant documents."""
    texts = tiny.sentences(documents)
    corpus = [{"_id": f"d{number}", "title": "", "text": text} for number, text in enumerate(texts)]
    lines(folder / "corpus.jsonl", corpus)
    rows = []
    judged = ["query-id\tcorpus-id\tscore"]
    for number, text in enumerate(texts[:queries]):
        words = text.rstrip(".").split()
        rows.append({"_id": f"q{number}", "text": " ".join(words[: max(2, len(words) // 2)])})
        judged += [f"q{number}\td{number}\t2", f"q{number}\td{number + queries}\t1"]
    lines(folder / "queries.jsonl", rows)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged) + "\n", encoding="utf-8")
    return folder


class Counting:
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.seen: list[object] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoder, name)

    def at(self, precision):
        return self if precision is None else self._encoder.at(precision)

    def encode(self, texts):
        self.seen += texts
        return self._encoder.encode(texts)

    def encode_ids(self, ids, *, allow_zero=False):
        self.seen += [tuple(row) for row in ids]
        return self._encoder.encode_ids(ids, allow_zero=allow_zero)
