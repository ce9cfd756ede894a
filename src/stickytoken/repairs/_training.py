"""The embedding matrix and the tokenizer of a model, as strategies for rows read them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.model_state import exclusive
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import RepairError
from stickytoken.insertion import TokenizedText
from stickytoken.inspection.module_embedding import input_embeddings, sharing_weights
from stickytoken.measurement.stage import Progress, ProgressCallback
from stickytoken.methods.probes import Vector
from stickytoken.methods.statistics import Pull, fit_pull
from stickytoken.repairs.plan import RowContext, pieces_of
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import visible

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class EmbeddingTable:
    """Rows, names and pieces of entries.

    Attributes:
        rows: the embedding matrix in single precision, shape (entries, D).
        backend: the pipeline of the tokenizer.
        pieces: pieces of the entries that are repaired, by id; empty where there are none.
        avoided: entries that are neither pieces nor relatives of others.
    """

    rows: NDArray[np.float32]
    backend: Tokenizer
    pieces: dict[int, tuple[int, ...]]
    avoided: frozenset[int]

    def shown(self, token_id: int) -> str:
        """Name an entry in a message."""
        return f"token {visible(self.backend.id_to_token(token_id) or '')!r} (id {token_id})"

    def of(self, ids: Sequence[int]) -> EmbeddingTable:
        """Return the same table for some of the entries."""
        return replace(self, pieces={token_id: self.pieces[token_id] for token_id in ids})

    def mean_of_pieces(self, pieces: Sequence[int]) -> NDArray[np.float32]:
        """Return the mean row of some entries, shape (D,)."""
        mean: NDArray[np.float32] = self.rows[list(pieces)].mean(axis=0)
        return mean

    def require_pieces(self) -> None:
        """Refuse entries without pieces."""
        for token_id, pieces in self.pieces.items():
            if not pieces:
                raise RepairError(
                    f"{self.shown(token_id)} has no pieces: it is a single character, an added token, or its "
                    "text cannot be written with other entries; use relatives or keep-meaning"
                )


def embedding_table(model: Any, ids: Sequence[int], avoided: Collection[int] = ()) -> EmbeddingTable:
    """Read the embedding matrix of a SentenceTransformer, and the pieces of entries."""
    from tokenizers import Tokenizer

    module = input_embeddings(model)
    if module is None:
        raise RepairError("the embedding matrix of the model cannot be reached: new rows need one")
    tokenizer = model.tokenizer
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise RepairError(
            f"a {type(tokenizer).__name__} is written in Python: new rows need a fast tokenizer"
        )
    rows: NDArray[np.float32] = module.weight.detach().float().cpu().numpy()
    for token_id in ids:
        if not 0 <= token_id < len(rows) or backend.id_to_token(token_id) is None:
            raise RepairError(f"the model has no token id {token_id}: name an entry of its vocabulary")
    every = frozenset((*ids, *avoided))
    table = EmbeddingTable(rows, backend, pieces_of(backend, sorted(every)), every)
    return table.of(ids)


_RELATIVES = 10
_SAMPLE = 400
_GRAMS = (2, 5)
# Entries compared at a time: one row of similarities per entry is as long as the vocabulary.
_AT_ONCE = 64
_BEGINS, _ENDS = "<", ">"


class _Guess(NamedTuple):
    """What two sources say about entries, as deviations from the mean row."""

    relatives: NDArray[np.float32]
    pieces: NDArray[np.float32]


def related_rows(table: EmbeddingTable, seed: int) -> dict[int, NDArray[np.float32]]:
    """Estimate the rows of repaired entries from their relatives and pieces."""
    asked = list(table.pieces)
    spelled = _spelled(table, asked)
    pool = np.array([token_id for token_id in spelled if token_id not in table.avoided])
    if not len(pool):
        raise RepairError("no other entry of the vocabulary contains a letter: use pieces or keep-meaning")
    mean = table.rows[pool].mean(axis=0)
    length = float(np.median(np.linalg.norm(table.rows[pool] - mean, axis=1)))
    drawn = np.random.default_rng([seed]).permutation(pool)[:_SAMPLE].tolist()
    sampled, wanted = (
        _guesses(table, spelled, pool, ids, pieces, mean)
        for ids, pieces in (
            (drawn, pieces_of(table.backend, [*drawn, *table.avoided])),
            (asked, table.pieces),
        )
    )
    weights = _weights(sampled, table.rows[drawn] - mean)
    found = {}
    for token_id, relatives, pieces in zip(asked, wanted.relatives, wanted.pieces, strict=True):
        deviation = weights[0] * relatives + weights[1] * pieces
        size = float(np.linalg.norm(deviation))
        if size == 0:
            raise RepairError(
                f"{table.shown(token_id)} has no pieces, and no entry has a similar spelling: use "
                "keep-meaning, or leave it out"
            )
        # A weighted mean is shorter than a row, and so says less.
        found[token_id] = (mean + deviation * (length / size)).astype(np.float32)
    return found


def _spelled(table: EmbeddingTable, asked: Sequence[int]) -> dict[int, str]:
    """Return the spelling of the asked entries and of all others that hold a letter, by id."""
    added = set(table.backend.get_added_tokens_decoder())
    ids = [
        token_id
        for token_id in sorted(table.backend.get_vocab().values())
        if token_id < len(table.rows) and token_id not in added
    ]
    found = {}
    wanted = set(asked)
    for token_id in [*ids, *(wanted & added)]:
        name = table.backend.id_to_token(token_id) or ""
        text = table.backend.decode([token_id], skip_special_tokens=False).removeprefix("##").strip().lower()
        if token_id in wanted or any(character.isalpha() for character in text):
            found[token_id] = f"{'' if name.startswith('##') else _BEGINS}{text}{_ENDS}"
    return found


def _guesses(
    table: EmbeddingTable,
    spelled: dict[int, str],
    pool: NDArray[np.intp],
    ids: Sequence[int],
    pieces: dict[int, tuple[int, ...]],
    mean: NDArray[np.float32],
) -> _Guess:
    from_relatives = np.zeros((len(ids), len(mean)), dtype=np.float32)
    from_pieces = np.zeros_like(from_relatives)
    for row, (others, weights) in enumerate(_relatives(spelled, pool, ids)):
        if len(others):
            from_relatives[row] = weights @ (table.rows[others] - mean)
    for row, token_id in enumerate(ids):
        if pieces[token_id]:
            from_pieces[row] = table.mean_of_pieces(pieces[token_id]) - mean
    return _Guess(from_relatives, from_pieces)


def _relatives(
    spelled: dict[int, str], pool: NDArray[np.intp], ids: Sequence[int]
) -> list[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """Find the entries of the pool that are spelled most like each id, with weights that sum to 1."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    reader = TfidfVectorizer(analyzer="char", ngram_range=_GRAMS, lowercase=False, dtype=np.float32)
    known = reader.fit_transform([spelled[token_id] for token_id in pool.tolist()])
    places = {token_id: place for place, token_id in enumerate(pool.tolist())}
    found = []
    for begin in range(0, len(ids), _AT_ONCE):
        some = ids[begin : begin + _AT_ONCE]
        alike = (reader.transform([spelled[token_id] for token_id in some]) @ known.T).toarray()
        for token_id, row in zip(some, alike, strict=True):
            if token_id in places:
                row[places[token_id]] = 0
            nearest = np.argsort(-row, kind="stable")[:_RELATIVES]
            weights = row[nearest] ** 2
            total = weights.sum()
            found.append((pool[nearest], weights / total) if total else (pool[:0], weights[:0]))
    return found


def _weights(guess: _Guess, truth: NDArray[np.float32]) -> tuple[float, float]:
    """Fit how much relatives and pieces count, neither of them negatively."""
    from scipy.optimize import nnls

    both = guess.relatives.any(axis=1) & guess.pieces.any(axis=1)
    if not both.any():
        return 1.0, 1.0
    sources = np.stack([each[both].ravel() for each in guess], axis=1).astype(np.float64)
    fitted = nnls(sources, truth[both].ravel().astype(np.float64))[0]
    return float(fitted[0]), float(fitted[1])


MANY = 8
"""Copies that show what many do."""
# A row shows most in a short text, which is also the cheapest.
_LEAST, _MOST = 4, 9
# Texts of equal length are read together.
_TOGETHER, _LENGTHS = 4, 4
_DRAWN = 4000


@dataclass(frozen=True)
class Context:
    """A text with a place for copies."""

    text: TokenizedText
    gap: int
    copies: int

    def filled(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the content ids with copies of an entry, or of the pieces in its place."""
        words = self.text.words
        copies = tuple(ids) * self.copies
        return replace(self.text, words=(*words[: self.gap], copies, *words[self.gap :])).ids

    def places(self, row: int) -> torch.Tensor:
        """Return the row at each position if one stands in the context, -1 elsewhere; shape (length,)."""
        return torch.tensor([row if token_id < 0 else -1 for token_id in self.filled((-1,))])


def contexts_among(
    encoder: SentenceTransformerEncoder, texts: Sequence[str], avoided: Sequence[int], longest: int, seed: int
) -> list[Context]:
    """Draw contexts: in each text one copy at a random place, and many behind it."""
    generator = np.random.default_rng([seed])
    distinct = list(dict.fromkeys(texts))
    drawn = [distinct[k] for k in generator.permutation(len(distinct))[:_DRAWN]]
    fitting = [text for text in encoder.tokenize(drawn) if text.words and set(avoided).isdisjoint(text.ids)]
    fitting = [text for text in fitting if encoder.fits((*text.ids, *text.ids[:1] * longest * MANY))]
    if not fitting:
        raise RepairError(
            f"none of the {len(distinct)} texts to train rows in fits the model with {MANY} copies: pass "
            "short sentences"
        )
    found = []
    for text in _of_few_lengths(fitting):
        found.append(Context(text, int(generator.integers(len(text.words) + 1)), 1))
        found.append(Context(text, len(text.words), MANY))
    return found


def _of_few_lengths(texts: Sequence[TokenizedText]) -> list[TokenizedText]:
    """Choose short texts, several of each of a few lengths; the shortest texts if none is short."""
    by_length: dict[int, list[TokenizedText]] = {}
    for text in texts:
        by_length.setdefault(len(text.ids) - len(text.head), []).append(text)
    short = [length for length in by_length if _LEAST <= length <= _MOST] or sorted(by_length)[:_LENGTHS]
    most = sorted(short, key=lambda length: (-len(by_length[length]), length))[:_LENGTHS]
    return [text for length in sorted(most) for text in by_length[length][:_TOGETHER]]


# Largest relative difference between a scaled row and the output of the embedding.
_ROUNDING = 1e-3


class Network:
    """A frozen copy of a model in single precision; weights in single precision are shared, not copied."""

    def __init__(self, model: SentenceTransformer) -> None:
        with exclusive(model):
            self._model = _frozen(model)
        self.encoder = SentenceTransformerEncoder(self._model, "the model", packed_layers=False)
        if self.encoder.template.flat:
            raise RepairError(
                "a static embedding model has no contexts to train a row in: use pieces or relatives"
            )
        embedding: Any = input_embeddings(self._model)
        self._embeddings = sharing_weights(self._model, embedding)
        self.table: torch.Tensor = embedding.weight.detach()
        self._scale = _scale_of(embedding)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.table.device

    def vectors(
        self, contents: Sequence[tuple[int, ...]], rows: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Compute unit vectors, differentiable in the rows."""
        template = self.encoder.template
        around = (len(template.before), len(template.after))
        whole = torch.nn.functional.pad(places.to(self.device), around, value=-1)
        with self._put_in(rows * self._scale, whole):
            found: torch.Tensor = self._model(self.encoder.features(contents))["sentence_embedding"]
        return torch.nn.functional.normalize(found[:, : self._model.truncate_dim], dim=1)

    @contextmanager
    def _put_in(self, embedded: torch.Tensor, places: torch.Tensor) -> Iterator[None]:
        """Replace the output of the embedding at some positions."""
        called: list[Any] = []
        own = (places >= 0)[..., None]
        chosen = embedded[places.clamp(min=0)]

        def put_in(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            del inputs
            called.append(module)
            return torch.where(own, chosen.to(output.dtype), output)

        handles = [module.register_forward_hook(put_in) for module in self._embeddings]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if not called:
            raise RepairError(
                "the model does not use the token embeddings that it declares: no row can be trained"
            )


def _frozen(model: SentenceTransformer) -> SentenceTransformer:
    """Copy a model without its weights, which are shared if they are in single precision."""
    shared = {
        id(parameter): torch.nn.Parameter(parameter.detach().float(), requires_grad=False)
        for parameter in model.parameters()
    }
    found = copy.deepcopy(model, shared)
    return found.float().eval()


def _scale_of(embedding: Any) -> float:
    """Return what the embedding multiplies rows by."""
    sample = torch.arange(min(64, len(embedding.weight)), device=embedding.weight.device)
    rows, output = embedding.weight.detach()[sample], embedding(sample[None])[0].detach()
    scale = float((rows * output).sum() / (rows * rows).sum())
    if float((output - scale * rows).norm()) > _ROUNDING * float(output.norm()):
        raise RepairError(
            "the token embeddings of the model are not its rows times a number: use pieces or relatives"
        )
    return scale


# Each context is read so often.
_EPOCHS = 5
# The first step, in standard deviations of the components of the matrix.
_FIRST_STEP = 0.15
_DECAYS = (0.9, 0.99)


@dataclass(frozen=True)
class Lesson:
    """A context, and what its vector should be with each row.

    Attributes:
        context: where the rows stand.
        targets: unit vectors, shape (T, d).
    """

    context: Context
    targets: torch.Tensor


def train(
    network: Network,
    start: torch.Tensor,
    lessons: Sequence[Lesson],
    seed: int,
    progress: ProgressCallback,
) -> torch.Tensor:
    """Move rows by Adam so that the squared distances between vectors and targets shrink."""
    generator = np.random.default_rng([seed])
    batches = _batches(lessons)
    steps = _EPOCHS * len(batches)
    order = [int(place) for _ in range(_EPOCHS) for place in generator.permutation(len(batches))]
    rows = start.detach().clone().requires_grad_(True)
    optimizer = torch.optim.Adam([rows], lr=_FIRST_STEP * float(network.table.std()), betas=_DECAYS)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for step, place in enumerate(order, 1):
            distance: Any = _distance(network, rows, batches[place])
            optimizer.zero_grad()
            distance.backward()
            optimizer.step()
            schedule.step()
            progress(Progress("rows", step, steps, step))
    return rows.detach()


def _batches(lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """Group lessons whose inputs are equally long and hold as many copies."""
    found: dict[tuple[int, int], list[Lesson]] = {}
    for lesson in lessons:
        key = (lesson.context.copies, len(lesson.context.filled((0,))))
        found.setdefault(key, []).append(lesson)
    return list(found.values())


def _distance(network: Network, rows: torch.Tensor, lessons: Sequence[Lesson]) -> torch.Tensor:
    """Mean over lessons, sum over rows: so each row moves as if it were trained alone."""
    contents = [lesson.context.filled((0,)) for lesson in lessons for _ in rows]
    places = torch.stack([lesson.context.places(row) for lesson in lessons for row in range(len(rows))])
    targets = torch.cat([lesson.targets for lesson in lessons])
    found = network.vectors(contents, rows, places)
    return ((found - targets) ** 2).sum() / len(lessons)


_ORDINARY = 24
# Texts that show what texts share.
_TEXTS = 256


class _Now(NamedTuple):
    """What entries do with their present rows."""

    before: NDArray[np.float32]
    single: NDArray[np.float32]
    pull: Pull


def kept_rows(table: EmbeddingTable, network: Network, context: RowContext) -> np.ndarray:
    """Train the rows of the entries that are repaired, shape (T, D), in the order of the table's pieces."""
    asked = list(table.pieces)
    contexts = contexts_among(network.encoder, context.texts, asked, 1, context.seed)
    now = _measure(network, contexts, asked)
    ordinary = _measure(network, contexts, _ordinary(network, asked, context.seed))
    common = _common(network, context, contexts)
    aim = _aim(now.pull, ordinary.pull, common)
    many = (1 - aim.contraction)[None, :, None] * now.before[:, None, :] + aim.pull[None, :, :]
    wanted = np.stack([now.single, unit_vectors(many)], axis=1).reshape(len(contexts), len(asked), -1)
    lessons = [
        Lesson(each, torch.from_numpy(target.astype(np.float32)).to(network.device))
        for each, target in zip(contexts, wanted, strict=True)
    ]
    start = torch.from_numpy(table.rows[asked]).to(network.device)
    found: np.ndarray = train(network, start, lessons, context.seed, context.progress).cpu().numpy()
    return found


def _ordinary(network: Network, asked: Sequence[int], seed: int) -> list[int]:
    usable = [token_id for token_id in network.encoder.usable_entries() if token_id not in set(asked)]
    drawn: list[int] = np.random.default_rng([seed, 1]).permutation(usable)[:_ORDINARY].tolist()
    return drawn


def _common(network: Network, context: RowContext, contexts: Sequence[Context]) -> Vector:
    """Return the direction that texts share, shape (d,); the contexts alone are too few to show it."""
    encoder = network.encoder
    distinct = list(dict.fromkeys(context.texts))
    order = np.random.default_rng([context.seed, 2]).permutation(len(distinct))
    drawn = encoder.content_ids([distinct[k] for k in order[: 2 * _TEXTS]])
    read = sorted((tuple(ids) for ids in drawn if ids and encoder.fits(ids)), key=len)[:_TEXTS]
    vectors = unit_vectors(encoder.encode_ids([*read, *(each.text.ids for each in contexts[::2])]))
    mean = vectors.mean(axis=0, dtype=np.float64)
    direction: Vector = mean / np.linalg.norm(mean)
    return direction


def _measure(network: Network, contexts: Sequence[Context], ids: Sequence[int]) -> _Now:
    """Encode every context with copies of every entry; contexts come in pairs of one copy and many."""
    encoder = network.encoder
    before = unit_vectors(encoder.encode_ids([each.text.ids for each in contexts[::2]]))
    filled = [each.filled((token_id,)) for each in contexts for token_id in ids]
    after = unit_vectors(encoder.encode_ids(filled)).reshape(len(contexts), len(ids), -1)
    return _Now(before, after[::2], fit_pull(before, after[1::2].transpose(1, 0, 2)))


def _aim(now: Pull, ordinary: Pull, common: Vector) -> Pull:
    """Return what many copies should do."""
    contraction = np.full(len(now.contraction), np.median(ordinary.contraction))
    share = float(np.median(ordinary.pull @ common))
    return Pull(contraction, now.pull + (share - now.pull @ common)[:, None] * common)


def distilled_rows(table: EmbeddingTable, network: Network, context: RowContext) -> np.ndarray:
    """Train the rows of the entries that are repaired, shape (T, D), in the order of the table's pieces."""
    table.require_pieces()
    pieces = list(table.pieces.values())
    contexts = contexts_among(
        network.encoder, context.texts, list(table.pieces), max(map(len, pieces)), context.seed
    )
    filled = [each.filled(own) for each in contexts for own in pieces]
    taught = unit_vectors(network.encoder.encode_ids(filled)).reshape(len(contexts), len(pieces), -1)
    lessons = [
        Lesson(each, torch.from_numpy(targets).to(network.device))
        for each, targets in zip(contexts, taught, strict=True)
    ]
    start = np.stack([table.mean_of_pieces(own) for own in pieces])
    rows = train(network, torch.from_numpy(start).to(network.device), lessons, context.seed, context.progress)
    found: np.ndarray = rows.cpu().numpy()
    return found
