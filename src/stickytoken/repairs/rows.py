"""Make new rows of the embedding matrix from the rows of entries with similar spelling."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.inputs.tokenizer import find_unknown_id
from stickytoken.errors import RepairError
from stickytoken.repairs._tokenizer_json import cut_like_wordpiece, merge_pairs, rename_entries
from stickytoken.validation import visible

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer


Row = NDArray[np.float32]
Rows = NDArray[np.float32]

# Number of entries whose spelling is compared with the vocabulary at a time. The number is limited to save
# memory, because the comparison of an entry takes one number per entry of the vocabulary.
_COMPARED_TOGETHER = 64
# Number of entries used to fit the weights of relatives and pieces.
_SAMPLE_SIZE = 400
# Number of relatives of an entry: the entries with the most similar spelling, whose rows are averaged.
_RELATIVES = 10


def make_related_rows(
    model: SentenceTransformer, ids: Sequence[int], avoided: Collection[int], seed: int
) -> dict[int, Row]:
    """Predict entries' rows from the rows of their pieces and of their relatives.

    The relatives of an entry are the entries with the most similar spelling. The pieces of an entry are the
    entries into which the tokenizer would split its text if the entry were not in the vocabulary. The
    deviation of the row from the mean row is predicted as a weighted sum of the relatives' mean deviation and
    the pieces' mean deviation. The weight of the relatives and the weight of the pieces are fitted on a
    random sample of entries.

    Args:
        model: the model, which is not changed.
        ids: ids of the entries that need a row.
        avoided: ids of further entries whose rows are not used, because they may be sticky.
        seed: seed for the choice of the sample.

    Returns:
        The new rows, keyed by token id, each of shape (D,). They do not depend on each other. An entry is
        left out if it has no row in the matrix, or neither relatives nor pieces.

    Raises:
        RepairError: no row can be made.
    """
    matrix = _require_matrix(model, ids)
    ids = [token_id for token_id in ids if 0 <= token_id < len(matrix)]
    backend = _require_backend(model.tokenizer)
    not_used = frozenset((*ids, *avoided))
    spellings = _spell_entries(backend, ids, len(matrix))
    known_ids = np.array([token_id for token_id in spellings if token_id not in not_used])
    if not len(known_ids):
        raise RepairError(
            "the vocabulary has no other entry with a letter, so there are no entries with similar spelling: "
            "use the strategy nearest"
        )
    mean_row = matrix[known_ids].mean(axis=0)
    sample_ids = np.random.default_rng([seed]).permutation(known_ids)[:_SAMPLE_SIZE].tolist()
    # `cut_into_pieces` never uses an id of the same call as a piece. So the sample is cut in a call of its
    # own, because its entries may be pieces of ``ids``. The sample and ``ids`` have no entry in common.
    pieces_of_sample = cut_into_pieces(backend, sample_ids, excluded=not_used)
    pieces_of_ids = cut_into_pieces(backend, ids, excluded=not_used)
    # First the entries of the sample, whose rows are known, and then the entries that need a row.
    predicted_from_relatives, predicted_from_pieces = _predict_deviations(
        matrix, mean_row, known_ids, spellings, [*sample_ids, *ids], pieces_of_sample | pieces_of_ids
    )
    sample_size = len(sample_ids)
    weight_of_relatives, weight_of_pieces = _fit_weights(
        predicted_from_relatives[:sample_size],
        predicted_from_pieces[:sample_size],
        matrix[sample_ids] - mean_row,
    )
    deviations = weight_of_relatives * predicted_from_relatives[sample_size:]
    deviations += weight_of_pieces * predicted_from_pieces[sample_size:]
    known_lengths = np.linalg.norm(matrix[known_ids] - mean_row, axis=1)
    rows = _make_rows_of_length(ids, mean_row, deviations, length=float(np.median(known_lengths)))
    if ids and not rows:
        name = visible(backend.id_to_token(ids[0]) or "")
        raise RepairError(
            f"token {name!r} (id {ids[0]}) has no pieces, and no entry has a similar spelling: use the "
            "strategy nearest, or leave the token out"
        )
    return rows


def _require_matrix(model: SentenceTransformer, ids: Sequence[int]) -> Rows:
    """Return the embedding matrix of a model, shape (V, D), after a check that it has a row for some id."""
    from stickytoken.inspection.module_embedding import input_embeddings

    embedding: Any = input_embeddings(model)
    if embedding is None:
        raise RepairError(
            "the model does not expose its embedding matrix, so no new row can be made: use the strategy "
            "unreachable"
        )
    matrix: Rows = embedding.weight.detach().float().cpu().numpy()
    if ids and not any(0 <= token_id < len(matrix) for token_id in ids):
        raise RepairError(f"the model has no row for token id {ids[0]}: leave this token out")
    return matrix


def _require_backend(tokenizer: Any) -> Tokenizer:
    """Return the tokenizer of the library `tokenizers` that a transformers tokenizer wraps.

    The tokenizer of a static model is one already.
    """
    from tokenizers import Tokenizer

    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise RepairError(
            f"the tokenizer, a {type(tokenizer).__name__}, is written in Python, so the pieces of a token "
            "are unknown: use the strategy nearest"
        )
    return backend


def _spell_entries(backend: Tokenizer, ids: Sequence[int], row_count: int) -> dict[int, str]:
    """Return the lower-case spellings of the given entries and of all other entries that contain a letter.

    Apart from the given entries, added tokens and entries without a row are left out.

    Returns:
        The spellings, keyed by token id. Each spelling ends with ``>``, and begins with ``<`` unless the
        entry continues a word: ``river`` becomes ``<river>``, and ``##er`` becomes ``er>``.
    """
    given_ids = set(ids)
    added_ids = set(backend.get_added_tokens_decoder())
    plain_ids = [
        token_id
        for token_id in sorted(backend.get_vocab().values())
        if token_id < row_count and token_id not in added_ids
    ]
    spellings = {}
    for token_id in [*plain_ids, *added_ids & given_ids]:
        continues_word = (backend.id_to_token(token_id) or "").startswith("##")
        decoded = backend.decode([token_id], skip_special_tokens=False)
        text = decoded.removeprefix("##").strip().lower()
        has_letter = any(character.isalpha() for character in text)
        if token_id in given_ids or has_letter:
            spellings[token_id] = f"{text}>" if continues_word else f"<{text}>"
    return spellings


# Prefix of a removed entry's new name. No entry of a real vocabulary contains these characters.
_REMOVED = "\U0010fffd\U0010fffd"


def cut_into_pieces(
    backend: Tokenizer, ids: Collection[int], excluded: Collection[int] = ()
) -> dict[int, tuple[int, ...]]:
    """Cut entries into pieces, as the tokenizer would if its vocabulary did not contain these entries.

    Args:
        backend: the model's tokenizer.
        ids: ids of the entries to cut. None of these entries is used as a piece.
        excluded: ids of further entries that must not be pieces.

    Returns:
        The ids of the pieces, keyed by token id; an empty tuple for an added token, for an id without an
        entry, and for an entry that cannot be cut into known pieces.
    """
    from tokenizers import Tokenizer

    names = _find_names(backend, ids)
    pipeline = json.loads(backend.to_str())
    added_ids = {added["id"] for added in pipeline["added_tokens"]}
    model = _remove_entries(pipeline["model"], names | _find_names(backend, excluded))
    unknown_id = find_unknown_id(pipeline["model"])
    # Entries are not texts: no other step of the tokenizer may change them.
    other_steps = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    only_model: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        **dict.fromkeys(other_steps),
        "model": model,
    }
    tokenizer = Tokenizer.from_str(json.dumps(only_model))
    prefix = model.get("continuing_subword_prefix") or ""
    pieces: dict[int, tuple[int, ...]] = dict.fromkeys(ids, ())
    for token_id, name in names.items():
        if token_id in added_ids:
            continue
        if model.get("type") == "WordPiece" and prefix and name.startswith(prefix):
            # The tokenizers library would read the prefix, such as "##", as the first characters of a word.
            cut = cut_like_wordpiece(name, model["vocab"], prefix) or ()
            piece_ids = tuple(model["vocab"][piece] for piece in cut)
        else:
            piece_ids = tuple(token.id for token in tokenizer.model.tokenize(name))
        if unknown_id not in piece_ids:
            pieces[token_id] = piece_ids
    return pieces


def _remove_entries(model: dict[str, Any], removed_names: Mapping[int, str]) -> dict[str, Any]:
    """Return the ``model`` part of a tokenizer.json that never produces some entries.

    The entries, given by id and name, are renamed rather than deleted, so that all ids stay the same.
    """
    new_names = {token_id: f"{_REMOVED}{token_id}" for token_id in removed_names}
    renamed_model = rename_entries(model, new_names)
    pairs = merge_pairs(renamed_model)
    if pairs is not None:  # a merge names its entries, so each that uses or produces a removed entry must go
        removed = set(removed_names.values())
        remaining = [list(pair) for pair in pairs if removed.isdisjoint((*pair, "".join(pair)))]
        renamed_model["merges"] = remaining
    return renamed_model


def _find_names(backend: Tokenizer, ids: Iterable[int]) -> dict[int, str]:
    names = {}
    for token_id in ids:
        name = backend.id_to_token(token_id)
        if name is not None:  # ids may have gaps
            names[token_id] = name
    return names


def _predict_deviations(
    matrix: Rows,
    mean_row: Row,
    known_ids: NDArray[np.intp],
    spellings: Mapping[int, str],
    ids: Sequence[int],
    pieces: Mapping[int, Sequence[int]],
) -> tuple[Rows, Rows]:
    """Predict how the rows of T entries deviate from the mean row, from their relatives and their pieces.

    The prediction from relatives is the weighted mean deviation of the entries with the most similar
    spelling. The weight of a relative is the square of the cosine between the TF-IDF vectors of character
    n-grams in the two spellings. The prediction from pieces is the mean deviation of the pieces.

    Returns:
        The predictions from relatives and from pieces, in the order of ``ids``, each of shape (T, D). A
        prediction is zero for an entry that has no relatives or no pieces.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(2, 5), lowercase=False, dtype=np.float32)
    # The vectors have the length 1, so their products are cosines.
    known_vectors = vectorizer.fit_transform([spellings[token_id] for token_id in known_ids.tolist()])
    index_of_known = {token_id: index for index, token_id in enumerate(known_ids.tolist())}
    predicted_from_relatives = np.zeros((len(ids), len(mean_row)), dtype=np.float32)
    predicted_from_pieces = np.zeros_like(predicted_from_relatives)
    for start in range(0, len(ids), _COMPARED_TOGETHER):
        chunk = ids[start : start + _COMPARED_TOGETHER]
        vectors = vectorizer.transform([spellings[token_id] for token_id in chunk])
        cosines_of_chunk = (vectors @ known_vectors.T).toarray()  # shape (chunk, known entries)
        for index_in_chunk, token_id in enumerate(chunk):
            index = start + index_in_chunk
            cosines = cosines_of_chunk[index_in_chunk]
            if token_id in index_of_known:  # no entry is its own relative
                cosines[index_of_known[token_id]] = 0
            relatives = np.argsort(-cosines, kind="stable")[:_RELATIVES]  # indices into `known_ids`
            weights = cosines[relatives] ** 2
            total = weights.sum()
            if total:  # zero if no known entry has an n-gram in common
                deviations = matrix[known_ids[relatives]] - mean_row  # shape (relatives, D)
                predicted_from_relatives[index] = (weights / total) @ deviations
            if pieces[token_id]:
                predicted_from_pieces[index] = matrix[list(pieces[token_id])].mean(axis=0) - mean_row
    return predicted_from_relatives, predicted_from_pieces


def _fit_weights(
    predicted_from_relatives: Rows, predicted_from_pieces: Rows, deviations: Rows
) -> tuple[float, float]:
    """Return the weights of the two predictions whose weighted sum is nearest to the true deviations.

    All arrays have the shape (entries, D).
    """
    from scipy.optimize import nnls

    # A prediction is zero for an entry without relatives or pieces.
    has_both = predicted_from_relatives.any(axis=1) & predicted_from_pieces.any(axis=1)
    if not has_both.any():
        return 1.0, 1.0  # there is nothing to fit; the weighted sum is rescaled later, whatever its length
    # Every number of every row is one observation.
    columns = [predicted_from_relatives[has_both].ravel(), predicted_from_pieces[has_both].ravel()]
    regressors = np.stack(columns, axis=1)
    target = deviations[has_both].ravel()
    # Non-negative least squares: no weight is negative.
    weights, _residual = nnls(regressors.astype(np.float64), target.astype(np.float64))
    weight_of_relatives, weight_of_pieces = weights.tolist()
    return weight_of_relatives, weight_of_pieces


def _make_rows_of_length(
    ids: Sequence[int], mean_row: Row, deviations: Rows, length: float
) -> dict[int, Row]:
    """Return rows that deviate from the mean row by ``length``, keyed by token id, each of shape (D,).

    ``deviations`` has the predicted deviation of each id, shape (ids, D). Averages of rows deviate less than
    rows do, so each is rescaled. An entry without relatives and pieces, whose deviation is 0, is left out.
    """
    rows = {}
    for token_id, deviation in zip(ids, deviations, strict=True):
        predicted_length = float(np.linalg.norm(deviation))
        if predicted_length > 0:
            rows[token_id] = (mean_row + deviation * (length / predicted_length)).astype(np.float32)
    return rows
