"""The class that a user would write to embed texts, without anything of this package."""

import hashlib

import numpy as np

DIMENSION = 16


class WordBag:
    """The mean of random word vectors."""

    name = "bag"

    def __init__(self, tokenizer=None, seed=0):
        self.seed = seed
        self.scale = 1.0
        self.calls = []
        if tokenizer is not None:
            self.tokenizer = tokenizer

    def encode(self, texts):
        self.calls.append(list(texts))
        return [self.scale * self.vector(text) for text in texts]

    def vector(self, text):
        words = text.lower().replace(".", " .").split() or ["nothing"]
        return np.mean([self._word(word) for word in words], axis=0)

    def _word(self, word):
        digest = hashlib.sha256(f"{self.seed} {word}".encode()).digest()
        vector = np.random.default_rng(list(digest)).normal(size=DIMENSION) + 0.5
        return 4 * vector if word == "stone" else vector
