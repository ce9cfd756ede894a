"""Does whitening of stored vectors keep copies of sticky tokens from hiding documents or pushing them?

Whoever cannot change a model can still change the vectors of an index. The vectors of Cranfield are searched
as they are, after their mean is subtracted, and after whitening (Su et al. 2021, arXiv 2103.15316). Mean and
whitening are fitted on documents without copies. Copies of the sticky tokens of a run, and of as many random
tokens, are then put in front of one document at a time, whose vector is transformed in the same way.

    python benchmarks/whitening.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from bench import ROOT, SHARED, Results, commands
from stickytoken.data.tasks import read_retrieval
from stickytoken.detection import open_run
from stickytoken.detection.run import encoder_for
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import require_ids
from stickytoken.insertion import Insertion, Placement, Token, copies_as_ids
from stickytoken.search import COPIES, TOP, ExactSearch
from stickytoken.unit_vectors import Similarity, exact_unit_vectors
from stickytoken.vocabulary import categorize

EXAMPLE = ROOT / "src/stickytoken/demo/example/all-MiniLM-L6-v2"
# The one token of the run that pushes documents.
PUSHING = "[CLS]"


def in_the_top(
    search: ExactSearch, vectors: NDArray[np.float64], places: list[int], is_answer: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return the share of the queries that find a document that answers them, and wrong results per document.

    Args:
        search: the index.
        vectors: prepared vectors of n documents, shape (n, d).
        places: their places in the index.
        is_answer: whether each document answers each query, shape (Q, n).
    """
    is_result = search.similarity.of_all(search.queries, vectors) > search.limits(places, TOP)
    wrong_results = (is_result & ~is_answer).sum() / len(places)
    return float(is_result[is_answer].mean()), float(wrong_results)


def main(run: Path = EXAMPLE, documents: int = 64, seed: int = 0) -> None:
    """Compare searches in vectors as they are, centred and whitened, with and without copies of tokens."""
    opened = open_run(run)
    encoder = require_ids(encoder_for(None, opened, "the benchmark"), "this benchmark")
    files = read_retrieval(SHARED / "data" / "cranfield")
    ids = list(files.documents)
    fitted = fit_texts(encoder, list(files.documents.values()), COPIES, Insertion.IDS, "Cranfield")
    vectors = exact_unit_vectors(encoder.encode_ids([document.content.ids for document in fitted]))
    queries = exact_unit_vectors(encoder.encode(list(files.queries.values())))
    generator = np.random.default_rng(seed)
    judged_ids = {document for score_of in files.relevant.values() for document in score_of}
    answering = sorted(ids.index(document) for document in judged_ids.intersection(ids))
    places = sorted(generator.choice(answering, documents, replace=False).tolist())
    chosen_ids = [ids[place] for place in places]

    def are_answers(score_of: Mapping[str, int]) -> list[bool]:
        return [score_of.get(document, 0) > 0 for document in chosen_ids]

    is_answer = np.array(list(map(are_answers, files.relevant.values())))

    available = categorize(encoder.tokenizer).available
    sticky_ids = set(opened.sticky["token_id"])
    sticky = [token for token in available if token.id in sticky_ids]
    others = [token for token in available if token.id not in sticky_ids]
    drawn = generator.choice(len(others), len(sticky), replace=False)
    groups = {
        "hiding tokens": [token for token in sticky if token.text != PUSHING],
        PUSHING: [token for token in sticky if token.text == PUSHING],
        "random tokens": [others[index] for index in drawn.tolist()],
    }

    def encode_copies(token: Token) -> NDArray[np.float64]:
        texts = [
            copies_as_ids(token, fitted[place].content, Placement.PREFIX, COPIES, ()) for place in places
        ]
        return exact_unit_vectors(encoder.encode_ids(texts))

    with_copies = {name: [encode_copies(token) for token in tokens] for name, tokens in groups.items()}
    results = Results("whitening", encoder.device, model=opened.model_name, documents=documents, seed=seed)
    transformations = {
        "as stored": lambda rows: rows,
        "centred": lambda rows: rows - vectors.mean(axis=0),
        "whitened": PCA(whiten=True).fit(vectors).transform,
    }
    for name, transform in transformations.items():
        search = ExactSearch(
            exact_unit_vectors(transform(queries)), exact_unit_vectors(transform(vectors)), Similarity.COSINE
        )
        found_share, wrong = in_the_top(search, search.documents[places], places, is_answer)
        phrases = [f"without copies: {found_share:.1%} found, {wrong:.2f} wrong results"]
        detail = {"without": (found_share, wrong)}
        for group, rows_of_tokens in with_copies.items():
            pairs = [
                in_the_top(search, exact_unit_vectors(transform(rows)), places, is_answer)
                for rows in rows_of_tokens
            ]
            found_share, wrong = np.mean(pairs, axis=0).tolist()
            phrases.append(f"{group}: {found_share:.1%}, {wrong:.2f}")
            detail[group] = (found_share, wrong)
        results.check(f"Cranfield, vectors {name}", "shown", "; ".join(phrases), True, **detail)
    results.finish()


if __name__ == "__main__":
    commands(__doc__, main)
