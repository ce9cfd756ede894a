"""New rows of the embedding matrix for tokens that are repaired, from entries with similar spelling."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import RepairError
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.repairs._pipeline import merge_pairs, renamed_model, word_pieces
from stickytoken.repairs.result import Strategy
from stickytoken.validation import visible

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer


Row = NDArray[np.float32]

# Entries that are trained together.
_TRAINED = 32


def new_rows(
    strategy: Strategy,
    ids: Sequence[int],
    model: SentenceTransformer,
    texts: Sequence[str],
    seed: int,
    progress: ProgressCallback,
    avoided: Collection[int] = (),
) -> dict[int, Row]:
    """Make float32 rows, shape (D,), as if for each entry alone; entries in ``avoided`` may be sticky."""
    from tokenizers import Tokenizer

    from stickytoken.inspection.module_embedding import input_embeddings
    from stickytoken.repairs._training import Network, kept_rows

    module: Any = input_embeddings(model)
    if module is None:
        raise RepairError("the embedding matrix of the model cannot be reached: new rows need one")
    tokenizer = model.tokenizer
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    matrix: NDArray[np.float32] = module.weight.detach().float().cpu().numpy()
    for token_id in ids:
        if not 0 <= token_id < len(matrix):
            raise RepairError(f"the model has no token id {token_id}: name an entry of its vocabulary")
    if strategy is Strategy.RELATIVES:
        if not isinstance(backend, Tokenizer):
            raise RepairError(
                f"a {type(tokenizer).__name__} is written in Python, so that the pieces of a token are "
                "unknown: use keep-meaning or nearest"
            )
        return related_rows(matrix, backend, ids, frozenset((*ids, *avoided)), seed)
    network = Network(model)
    rows: dict[int, Row] = {}
    for begin in range(0, len(ids), _TRAINED):
        some = list(ids[begin : begin + _TRAINED])
        made = kept_rows(network, matrix[some], some, texts, seed, progress)
        rows |= dict(zip(some, made, strict=True))
    return rows


# Entries compared at a time: one row of similarities per entry is as long as the vocabulary.
_COMPARED = 64


def related_rows(
    matrix: NDArray[np.float32], backend: Tokenizer, ids: Sequence[int], avoided: Collection[int], seed: int
) -> dict[int, Row]:
    """Make rows from entries of similar spelling and pieces, none ``avoided``; refuse if no entry has any."""
    from scipy.optimize import nnls

    # The spelling of the asked entries and of all others that hold a letter.
    asked, added = set(ids), set(backend.get_added_tokens_decoder())
    plain = [key for key in sorted(backend.get_vocab().values()) if key < len(matrix) and key not in added]
    spelled = {}
    for token_id in [*plain, *added & asked]:
        begins = "" if (backend.id_to_token(token_id) or "").startswith("##") else "<"
        text = backend.decode([token_id], skip_special_tokens=False).removeprefix("##").strip().lower()
        if token_id in asked or any(character.isalpha() for character in text):
            spelled[token_id] = f"{begins}{text}>"
    pool = np.array([token_id for token_id in spelled if token_id not in avoided])
    if not len(pool):
        raise RepairError("no other entry of the vocabulary contains a letter: use keep-meaning")
    mean = matrix[pool].mean(axis=0)
    length = float(np.median(np.linalg.norm(matrix[pool] - mean, axis=1)))
    drawn = np.random.default_rng([seed]).permutation(pool)[:400].tolist()
    pieces = pieces_of(backend, [*drawn, *avoided]) | pieces_of(backend, sorted(avoided))
    relatives, from_pieces = _guesses(matrix, spelled, pool, [*drawn, *ids], pieces, mean)
    # How much relatives and pieces count is fitted on a sample, neither of them negatively.
    near, cut = relatives[: len(drawn)], from_pieces[: len(drawn)]
    both = near.any(axis=1) & cut.any(axis=1)
    relatives_weight = pieces_weight = 1.0
    if both.any():
        sources = np.stack([each[both].ravel() for each in (near, cut)], axis=1).astype(np.float64)
        fitted, _ = nnls(sources, (matrix[drawn] - mean)[both].ravel().astype(np.float64))
        relatives_weight, pieces_weight = fitted.tolist()
    rows = {}
    for row, token_id in enumerate(ids, len(drawn)):
        deviation = relatives_weight * relatives[row] + pieces_weight * from_pieces[row]
        size = float(np.linalg.norm(deviation))
        if size == 0:
            continue
        # A weighted mean is shorter than a row, and so says less.
        rows[token_id] = (mean + deviation * (length / size)).astype(np.float32)
    if ids and not rows:
        raise RepairError(
            f"token {visible(backend.id_to_token(ids[0]) or '')!r} (id {ids[0]}) has no pieces, and no entry "
            "has a similar spelling: use keep-meaning, or leave it out"
        )
    return rows


def _guesses(
    matrix: NDArray[np.float32],
    spelled: dict[int, str],
    pool: NDArray[np.intp],
    ids: Sequence[int],
    pieces: Mapping[int, Sequence[int]],
    mean: Row,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    reader = TfidfVectorizer(analyzer="char", ngram_range=(2, 5), lowercase=False, dtype=np.float32)
    known = reader.fit_transform([spelled[token_id] for token_id in pool.tolist()])
    columns = {token_id: column for column, token_id in enumerate(pool.tolist())}
    from_relatives = np.zeros((len(ids), len(mean)), dtype=np.float32)
    from_pieces = np.zeros_like(from_relatives)
    for begin in range(0, len(ids), _COMPARED):
        some = ids[begin : begin + _COMPARED]
        similarities = (reader.transform([spelled[token_id] for token_id in some]) @ known.T).toarray()
        for row, (token_id, similar) in enumerate(zip(some, similarities, strict=True), begin):
            if token_id in columns:  # no entry is its own relative
                similar[columns[token_id]] = 0
            nearest = np.argsort(-similar, kind="stable")[:10]
            weights = similar[nearest] ** 2
            if total := weights.sum():
                from_relatives[row] = (weights / total) @ (matrix[pool[nearest]] - mean)
            if pieces[token_id]:
                from_pieces[row] = matrix[list(pieces[token_id])].mean(axis=0) - mean
    return from_relatives, from_pieces


# Stands before the number of a removed entry. The names of other entries do not hold it.
_REMOVED = "\U0010fffd\U0010fffd"


def pieces_of(backend: Tokenizer, ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    from tokenizers import Tokenizer

    names = {token_id: name for token_id in ids if (name := backend.id_to_token(token_id)) is not None}
    pipeline = json.loads(backend.to_str())
    added = {token["id"] for token in pipeline["added_tokens"]}
    # With other names, nothing reaches the entries.
    model = renamed_model(pipeline["model"], {token_id: f"{_REMOVED}{token_id}" for token_id in names})
    if (pairs := merge_pairs(model)) is not None:
        gone = set(names.values())
        model["merges"] = [list(pair) for pair in pairs if gone.isdisjoint((*pair, "".join(pair)))]
    if isinstance(model["vocab"], list):
        unknown = model.get("unk_id")
    else:
        unknown = None if model.get("unk_token") is None else backend.token_to_id(model["unk_token"])
    # All steps around the model are empty: names of entries are tokenized as they are.
    steps = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    bare = {"version": pipeline.get("version", "1.0"), "added_tokens": [], **dict.fromkeys(steps)}
    tokenizer = Tokenizer.from_str(json.dumps({**bare, "model": model}))
    prefix = model.get("continuing_subword_prefix") or ""
    found: dict[int, tuple[int, ...]] = dict.fromkeys(ids, ())
    for token_id, name in names.items():
        if token_id in added:
            continue
        if model.get("type") == "WordPiece" and prefix and name.startswith(prefix):
            # The library would read the prefix as the beginning of a word.
            cut = word_pieces(name, model["vocab"], prefix) or ()
            pieces = tuple(model["vocab"][piece] for piece in cut)
        else:
            pieces = tuple(token.id for token in tokenizer.model.tokenize(name))
        found[token_id] = () if unknown in pieces else pieces
    return found
