"""Documents optimised by gradient search (HotFlip): what share of them does the search for copies find?

python benchmarks/adversarial_documents.py RUN --cranfield FOLDER

It makes documents that are pulled toward groups of queries: a document of the collection, followed by tokens
that are replaced one at a time by the one whose gradient promises the most (Ebrahimi et al., ACL 2018; for
retrieval, Zhong et al., EMNLP 2023). Nothing in them is repeated on purpose.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from sklearn.cluster import KMeans

from checks import RESULTS
from stickytoken.cleaning.rules import CleaningRules, rules_of_run
from stickytoken.cleaning.spans import find_spans
from stickytoken.detection import open_run
from stickytoken.encoders import load_encoder
from stickytoken.measurement.resume import hardware, now, package_versions

TOP = 10


@dataclass(frozen=True)
class Adversarial:
    """A document and what became of it.

    Attributes:
        text: document and optimised tokens.
        queries: queries that it was optimised for.
        before: mean similarity of the document alone to them.
        after: mean similarity with the optimised tokens.
        top_before: share of the queries that have the document among the first ten.
        top_after: the same with the optimised tokens.
        found: kinds of spans that are found in it.
    """

    text: str
    queries: int
    before: float
    after: float
    top_before: float
    top_after: float
    found: list[str]


class Attack:
    """HotFlip on a SentenceTransformer with mean pooling.

    Args:
        model: the model.
        steps: tokens replaced one after the other.
        candidates: replacements tried in a step.
        length: number of free tokens.
        seed: of all random choices.
    """

    def __init__(self, model: Any, steps: int, candidates: int, length: int, seed: int) -> None:
        self._tokenizer = model.tokenizer
        self._backbone = next(module for module in model.modules() if hasattr(module, "get_input_embeddings"))
        self._rows = self._backbone.get_input_embeddings().weight.detach()
        self._steps, self._candidates, self._length = steps, candidates, length
        self._random = np.random.default_rng(seed)
        entries = self._tokenizer.convert_ids_to_tokens(range(len(self._tokenizer)))
        self._usable = torch.tensor([entry.isascii() and entry.isalpha() for entry in entries])

    def optimise(self, text: str, target: torch.Tensor) -> str:
        """Append free tokens to a text, each at last the best one found for the target vector, shape (d,)."""
        content = self._tokenizer(text, add_special_tokens=False, truncation=True, max_length=60)["input_ids"]
        usable = self._usable.nonzero().flatten().numpy()
        free = self._random.choice(usable, self._length).tolist()
        best = self._similarity([content + free], target)[0]
        for _ in range(self._steps):
            place = int(self._random.integers(self._length))
            gradient = self._gradient(content, free, target)[place]
            scores = (self._rows @ gradient).masked_fill(~self._usable, -torch.inf)
            tried = [
                [*free[:place], int(token), *free[place + 1 :]]
                for token in scores.topk(self._candidates).indices
            ]
            found = self._similarity([content + each for each in tried], target)
            if found.max() > best:
                best, free = found.max(), tried[int(found.argmax())]
        return f"{text} {self._tokenizer.decode(free)}"

    def _ids(self, contents: list[list[int]]) -> torch.Tensor:
        first, last = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        return torch.tensor([[first, *content, last] for content in contents])

    def _vectors(self, embedded: torch.Tensor) -> torch.Tensor:
        states = self._backbone(inputs_embeds=embedded).last_hidden_state.mean(1)
        return torch.nn.functional.normalize(states, dim=1)

    def _similarity(self, contents: list[list[int]], target: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = self._vectors(self._rows[self._ids(contents)]) @ target
        return found

    def _gradient(self, content: list[int], free: list[int], target: torch.Tensor) -> torch.Tensor:
        embedded = self._rows[self._ids([content + free])].clone().requires_grad_()
        (gradient,) = torch.autograd.grad((self._vectors(embedded) @ target).sum(), embedded)
        free_part: torch.Tensor = gradient[0, -1 - self._length : -1]
        return free_part


def kinds(text: str, rules: CleaningRules) -> list[str]:
    """Name what is found in a text."""
    return sorted({span.kind.value for span in find_spans(text, rules)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="finished run of the model")
    parser.add_argument("--cranfield", type=Path, required=True, help="folder in BEIR layout")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--length", type=int, default=12, help="free tokens in a document")
    parser.add_argument("--seed", type=int, default=42)
    asked = parser.parse_args()

    encoder = load_encoder(asked.model, device="cpu")
    rules = rules_of_run(open_run(asked.run))
    corpus = pl.read_ndjson(asked.cranfield / "corpus.jsonl")["text"].to_list()
    queries = encoder.encode(pl.read_ndjson(asked.cranfield / "queries.jsonl")["text"].to_list())
    shortened = [" ".join(text.split()[:60]) for text in corpus if text.strip()]
    vectors = encoder.encode(shortened)
    groups = KMeans(asked.documents, random_state=asked.seed, n_init=4).fit_predict(queries)
    tenth = np.sort(queries @ vectors.T, axis=1)[:, -TOP]
    chosen = np.random.default_rng(asked.seed).choice(len(shortened), asked.documents, replace=False)
    attack = Attack(encoder.model, asked.steps, asked.candidates, asked.length, asked.seed)  # type: ignore[attr-defined]

    made = []
    for group, place in enumerate(chosen):
        own = queries[groups == group]
        document = " ".join(shortened[place].split()[:25])
        text = attack.optimise(document, torch.from_numpy(own.mean(0)))
        before, after = (own @ encoder.encode([document, text]).T).T
        limits = tenth[groups == group]
        made.append(
            Adversarial(
                text,
                len(own),
                float(before.mean()),
                float(after.mean()),
                float((before > limits).mean()),
                float((after > limits).mean()),
                kinds(text, rules),
            )
        )
        print(f"{group + 1}: {made[-1].before:.3f} -> {made[-1].after:.3f}, {made[-1].found}", flush=True)

    found = sum(bool(each.found) for each in made)
    result = {
        "date": now(),
        "hardware": hardware("cpu"),
        "versions": package_versions(),
        "settings": {
            name: str(value) for name, value in vars(asked).items() if name not in {"run", "cranfield"}
        },
        "documents": len(made),
        "found": found,
        "similarity_before": float(np.mean([each.before for each in made])),
        "similarity_after": float(np.mean([each.after for each in made])),
        "top_before": float(
            np.average([each.top_before for each in made], weights=[each.queries for each in made])
        ),
        "top_after": float(
            np.average([each.top_after for each in made], weights=[each.queries for each in made])
        ),
        "made": [asdict(each) for each in made],
    }
    path = RESULTS / "adversarial_documents.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shares = f"{result['top_before']:.0%} of their queries before, {result['top_after']:.0%} after"
    print(f"{found} of {len(made)} found; among the first {TOP} for {shares}")


if __name__ == "__main__":
    main()
