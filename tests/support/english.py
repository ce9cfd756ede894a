"""A model that reads the bundled kinds of text word by word, with a sticky and a topical token planted."""

import re
from collections import Counter

import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

import tiny
from stickytoken.data import bundled_sentences, text_kinds

STICKY, TOPICAL, KIND = "zzsticky", "zzlegal", "law"
_WORD = re.compile(r"\w+|[^\w\s]+")


def model(sticky: float = 0.0, topical: float = 0.0, dimension: int = 96) -> SentenceTransformer:
    """Mean-pooled static embeddings of all words of the bundled texts; frequent words are short vectors."""
    texts = dict.fromkeys(bundled_sentences().texts, "everyday") | _kinds()
    kinds: dict[str, Counter[str]] = {}
    for text, kind in texts.items():
        for word in _WORD.findall(text.lower()):
            kinds.setdefault(word, Counter())[kind] += 1
    entries = ["[UNK]", STICKY, TOPICAL, *sorted(kinds)]
    places = {entry: place for place, entry in enumerate(entries)}
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(len(entries), dimension, generator=generator))
    rows -= rows.mean(0)
    rows[:, 0], rows[:, 1] = 0.1, 0.0
    for word, found in kinds.items():
        rows[places[word]] /= found.total() ** 0.5
        if set(found) == {KIND}:
            rows[places[word], 1] = 0.5
    if sticky:
        rows[places[STICKY]] = sticky * torch.eye(dimension)[0]
    if topical:
        rows[places[TOPICAL]] = topical * torch.eye(dimension)[1]
    tokenizer = Tokenizer(WordLevel(places, "[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    return tiny.static_model(tokenizer, rows)


def _kinds() -> dict[str, str]:
    kinds = text_kinds()
    return dict(zip(kinds.texts, kinds.topics or (), strict=True))
