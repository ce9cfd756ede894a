"""The published method once more, slowly, for the tests to compare with."""

import itertools
import random
import statistics

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sklearn.metrics.pairwise import (
    cosine_similarity,
    paired_cosine_distances,
    paired_euclidean_distances,
    paired_manhattan_distances,
)

PLACEMENTS = ("prefix", "suffix", "random")
METRICS = {
    "": paired_cosine_distances,
    "_euclidean": paired_euclidean_distances,
    "_manhattan": paired_manhattan_distances,
}
CONSTANTS = {"": (0.1, 0.05, 0.01), "_euclidean": (0.1, 0.05, 0.01), "_manhattan": (1.0, 0.5, 0.1)}
SCORING_WEIGHTS = {"prefix": 0.35, "suffix": 0.35, "random": 0.3}
VALIDATION_WEIGHTS = {"prefix": 4 / 11, "suffix": 4 / 11, "random": 3 / 11}


class PlainMethod:
    """The published method with plain loops, scikit-learn's distances and the model's own code."""

    def __init__(self, model: SentenceTransformer, insertion: str, copies: int, seed: int):
        self.model = model
        self.tokenizer = model.tokenizer
        self.insertion = insertion
        self.copies = copies
        self.seed = seed
        self.vectors = {}

    def available(self):
        found = []
        for token_id in range(len(self.tokenizer)):
            text = self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
            if self.tokenizer.encode(text, add_special_tokens=False) == [token_id]:
                found.append((token_id, text))
        return found

    def mean_similarity(self):
        vectors = self.encoded(self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer))))
        return cosine_similarity(vectors).mean()

    def chosen(self, pairs, mean, count):
        below = sorted((pair for pair in pairs if pair[2] < mean), key=lambda pair: pair[2])
        low, size = below[0][2], min(count, len(below))
        high = low + 0.8 * (mean - low)
        found = []
        for step in range(size):
            target = low + (high - low) * step / (size - 1)
            found.append(min(below, key=lambda pair: abs(pair[2] - target)))
        return found

    def probes(self, token, carrier, draw):
        """By placement, the inputs with 1, 2, ... copies."""
        token_id, text = token
        counts = range(1, self.copies + 1)
        found = {placement: [] for placement in PLACEMENTS}
        if self.insertion == "text":
            found["prefix"] = [text * count + carrier for count in counts]
            found["suffix"] = [carrier + text * count for count in counts]
            current = carrier
            for _ in counts:
                words = current.split()
                words.insert(draw(len(words)), text)
                current = " ".join(words)
                found["random"].append(current)
            return found
        words = [tuple(self.tokenizer.encode(word, add_special_tokens=False)) for word in carrier.split()]
        found["prefix"] = [(token_id,) * count + sum(words, ()) for count in counts]
        found["suffix"] = [sum(words, ()) + (token_id,) * count for count in counts]
        for _ in counts:
            words.insert(draw(len(words)), (token_id,))
            found["random"].append(sum(words, ()))
        return found

    def alone(self, token):
        return token[1] if self.insertion == "text" else (token[0],)

    def encoded(self, inputs):
        """The vectors of texts or id lists, as the float32 that a run works on."""
        first, last = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        missing = [each for each in dict.fromkeys(inputs) if each not in self.vectors]
        for start in range(0, len(missing), 256):
            batch = missing[start : start + 256]
            features = self.tokenizer.pad(
                {
                    "input_ids": [
                        self.tokenizer.encode(each) if isinstance(each, str) else [first, *each, last]
                        for each in batch
                    ]
                },
                return_tensors="pt",
            )
            with torch.inference_mode():
                rows = self.model(dict(features))["sentence_embedding"]
            self.vectors |= dict(zip(batch, rows.float().double().numpy(), strict=True))
        return np.array([self.vectors[each] for each in inputs])

    def distances(self, anchor, inputs, metric):
        vectors = self.encoded(inputs)
        return METRICS[metric](np.repeat(self.encoded([anchor]), len(vectors), axis=0), vectors).tolist()

    def scores(self, pairs):
        stream = random.Random(self.seed)
        probes = {
            token: [
                self.probes(token, carrier, lambda words: stream.randint(0, words)) for _, carrier, _ in pairs
            ]
            for token in self.available()
        }
        self.encoded(
            [probe for rows in probes.values() for row in rows for inputs in row.values() for probe in inputs]
        )
        return {
            token: {metric: self.score(token, pairs, rows, metric) for metric in METRICS}
            for token, rows in probes.items()
        }

    def score(self, token, pairs, rows, metric):
        alpha, beta, gamma = CONSTANTS[metric]
        by_placement = {placement: [] for placement in PLACEMENTS}
        for (anchor, carrier, _), row in zip(pairs, rows, strict=True):
            (alone,) = self.distances(anchor, [self.alone(token)], metric)
            for placement, inputs in row.items():
                reward, penalty = 0.1 * alone, gamma
                for before, after in itertools.pairwise(self.distances(anchor, [carrier, *inputs], metric)):
                    if after < before:
                        reward += before - after + alpha
                    elif after > before:
                        penalty += after - before + beta
                by_placement[placement].append(reward / penalty)
        return sum(SCORING_WEIGHTS[place] * statistics.fmean(found) for place, found in by_placement.items())

    def validation(self, token, pairs):
        """Rates by metric, and the lift."""
        rates = dict.fromkeys(METRICS, 0.0)
        rises = []
        for place, (anchor, carrier, _) in enumerate(pairs):
            generator = np.random.default_rng([self.seed, 1, token[0], place])
            row = self.probes(token, carrier, lambda words, own=generator: int(own.integers(0, words + 1)))
            for placement, inputs in row.items():
                for metric in METRICS:
                    clean, *probed = self.distances(anchor, [carrier, *inputs], metric)
                    if statistics.fmean(probed) < clean:
                        rates[metric] += VALIDATION_WEIGHTS[placement] / len(pairs)
                    if metric == "":
                        rises += [clean - each for each in probed]
        return rates, statistics.fmean(rises)
