"""What happens inside a model between token ids and vector, reduced to arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.attention_capture import AttentionCapture, attention_of, setting_changed
from stickytoken.encoders.batching import equal_length_batches
from stickytoken.encoders.borrowing import bounded_memory, evaluating
from stickytoken.encoders.protocol import Encoder
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.encoders.vector_checks import require_usable, shown
from stickytoken.errors import EncodingError, ModelError

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import Pooling

# Attention weights of one layer, and hidden states of all layers, that a batch may hold.
_WEIGHTS, _STATES = 2**25, 2**26
_HEADS_IF_UNKNOWN = 32
_TOKENS = 2048
# How far the parts of a pooled vector may be from it, as a share of its length.
_PARTS_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class Inside:
    """What was seen of one text of T tokens, special tokens included.

    Attributes:
        labels: part that each position belongs to, shape (T,); special tokens are the last part.
        hidden: hidden states by layer, the embeddings first, float32 of shape (layers + 1, T, D); None
            where the model does not give them.
        attention: mean weight by layer, head, part that attends and part that receives, shape (layers,
            heads, parts, parts); NaN for a part without a position. None where the model does not give it.
        pooled: what the pooling makes of the last hidden states, shape (P,); None without a pooling.
        supplied: of that, what each part supplies, shape (parts, P), summing to ``pooled``; None where the
            pooling is no sum over positions.
        vector: the model's output, shape (d,).
    """

    labels: NDArray[np.intp]
    hidden: NDArray[np.float32] | None
    attention: NDArray[np.float64] | None
    pooled: NDArray[np.float64] | None
    supplied: NDArray[np.float64] | None
    vector: NDArray[np.float32]


class Inspector:
    """Looks into the model of an encoder, and leaves it as it was.

    Args:
        encoder: a loaded model.

    Raises:
        ModelError: the encoder does not let anyone look inside.
    """

    def __init__(self, encoder: Encoder) -> None:
        if not isinstance(encoder, SentenceTransformerEncoder):
            raise ModelError(
                f"{encoder.name} is a {type(encoder).__name__}, which shows vectors only: "
                "pass a model that sentence-transformers loads"
            )
        self.encoder = encoder
        self._model = encoder.model

    @property
    def pooling(self) -> str | None:
        """How the sentence vector is made of hidden states, such as ``mean``; None where nobody can say."""
        if self.encoder.template.flat:
            return "mean"
        module = self._pooling
        if module is None:
            return None
        mode = module.pooling_mode
        return mode if isinstance(mode, str) else "+".join(mode)

    @property
    def has_layers(self) -> bool:
        """Whether there is anything between embeddings and pooling; a static embedding model has nothing."""
        return not self.encoder.template.flat

    def embedding_matrix(self) -> NDArray[np.float32] | None:
        """Rows of the token embeddings, shape (entries, D); None where the model does not show them."""
        module = input_embeddings(self._model)
        if module is None:
            return None
        weight: NDArray[np.float32] = module.weight.detach().float().cpu().numpy()
        return weight

    def look(
        self, contents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        """Send texts through the model and keep what is seen on the way.

        Args:
            contents: content ids of n texts, as for `Encoder.encode_ids`.
            labels: for each id the part that it belongs to, from 0 on.
            parts: number of parts; the special tokens are one more, behind them.

        Raises:
            EncodingError: a text that the model does not read whole, or without a usable vector.
        """
        rows = [tuple(content) for content in contents]
        for row, content in enumerate(rows):
            self.encoder.check_input(content, row, self._label(rows))
        lengths = [len(content) + self.encoder.template.overhead for content in rows]
        found: dict[int, Inside] = {}
        with self._borrowed():
            for same in equal_length_batches(lengths, _TOKENS):
                for batch in np.array_split(same, -(-len(same) // self._batch_size(lengths[same[0]]))):
                    inside = self._look([rows[k] for k in batch], [labels[k] for k in batch], parts)
                    found |= dict(zip(batch.tolist(), inside, strict=True))
        result = [found[row] for row in range(len(rows))]
        if result:
            vectors = np.stack([each.vector for each in result])
            require_usable(vectors, self.encoder.name, self._label(rows), allow_zero=False)
        return result

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        with evaluating(self._model), torch.inference_mode(), bounded_memory(self._model):
            try:
                yield
            except torch.OutOfMemoryError as error:
                raise EncodingError(
                    f"{self.encoder.name}: {self.encoder.device} has no memory to look into one text: "
                    "use shorter texts, a lower precision or another device"
                ) from error

    def _batch_size(self, length: int) -> int:
        """Texts of a batch, so that neither weights nor states outgrow their limits."""
        config = getattr(backbone_of(self._model), "config", None)
        heads = getattr(config, "num_attention_heads", None) or _HEADS_IF_UNKNOWN
        layers = getattr(config, "num_hidden_layers", None) or 1
        width = getattr(config, "hidden_size", None) or 1024
        weights, states = heads * length**2, (layers + 1) * length * width
        return max(1, min(_WEIGHTS // weights, _STATES // states))

    def _label(self, rows: Sequence[tuple[int, ...]]) -> Any:
        return lambda row: shown(self.encoder.tokenizer.decode_many([rows[row]])[0])

    def _look(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        template = self.encoder.template
        places = np.full((len(contents), len(contents[0]) + template.overhead), parts, dtype=np.intp)
        places[:, len(template.before) : len(template.before) + len(contents[0])] = labels
        members = torch.nn.functional.one_hot(torch.from_numpy(places), parts + 1).float()
        if template.flat:
            return self._look_static(contents, places, members)
        capture = AttentionCapture(members)
        features, pool_input = self._forward(contents, capture)
        attention = capture.result()
        hidden = features.get("all_layer_embeddings")
        pooled, supplied = self._supplied(pool_input, members)
        vectors = features["sentence_embedding"].float().cpu().numpy()
        if self._model.truncate_dim is not None:
            vectors = vectors[:, : self._model.truncate_dim]
        states = None if hidden is None else torch.stack([each.float().cpu() for each in hidden], dim=1)
        return [
            Inside(
                labels=places[row],
                hidden=None if states is None else states[row].numpy(),
                attention=None if attention is None else _numbers(attention[row]),
                pooled=None if pooled is None else _numbers(pooled[row]),
                supplied=None if supplied is None else _numbers(supplied[row]),
                vector=vectors[row],
            )
            for row in range(len(contents))
        ]

    def _forward(
        self, contents: Sequence[tuple[int, ...]], capture: AttentionCapture
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """All features at the end, and those that went into the pooling."""
        backbone, pooling = backbone_of(self._model), self._pooling
        seen: list[dict[str, Any]] = []
        with ExitStack() as stack:
            stack.enter_context(attention_of(self._model, backbone, capture))
            if hasattr(getattr(backbone, "config", None), "output_hidden_states"):
                # sentence-transformers hands the states on where the configuration asks for them.
                stack.enter_context(setting_changed(backbone.config, "output_hidden_states", True))
            if pooling is not None:
                handle = pooling.register_forward_pre_hook(lambda _, inputs: seen.append(dict(inputs[0])))
                stack.callback(handle.remove)
            features = self._model(self.encoder.features(contents))
        return features, seen[-1] if seen else None

    def _supplied(
        self, features: dict[str, Any] | None, members: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The pooled vector, and what each part supplies: the pooling of its states, the others zero."""
        pooling = self._pooling
        if features is None or pooling is None:
            return None, None
        states = features["token_embeddings"]

        def pool(kept: torch.Tensor) -> torch.Tensor:
            # A copy, because the pooling writes into what it is given.
            found: torch.Tensor = pooling({**features, "token_embeddings": kept})["sentence_embedding"]
            return found.float()

        pooled = pool(states)
        masks = members.to(states).unbind(dim=-1)
        supplied = torch.stack([pool(states * mask[..., None]) for mask in masks], dim=1)
        error = (supplied.sum(dim=1) - pooled).norm(dim=-1)
        whole = bool((error <= _PARTS_TOLERANCE * pooled.norm(dim=-1)).all())
        return pooled, supplied if whole else None

    def _look_static(
        self, contents: Sequence[tuple[int, ...]], places: NDArray[np.intp], members: torch.Tensor
    ) -> list[Inside]:
        """A static embedding model: the rows are the states, and their mean is the pooled vector."""
        module: Any = input_embeddings(self._model)
        rows = module.weight[torch.tensor(contents, device=module.weight.device)].float()
        supplied = torch.einsum("tqg,tqd->tgd", members.to(rows), rows) / rows.shape[1]
        vectors = self.encoder.encode_ids(contents, allow_zero=True)
        return [
            Inside(
                labels=places[row],
                hidden=rows[row : row + 1].cpu().numpy(),
                attention=None,
                pooled=_numbers(supplied[row].sum(dim=0)),
                supplied=_numbers(supplied[row]),
                vector=vectors[row],
            )
            for row in range(len(contents))
        ]

    @property
    def _pooling(self) -> Pooling | None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        return next((module for module in self._model if isinstance(module, Pooling)), None)


def backbone_of(model: Any) -> Any:
    """The transformers model in the first module; None where there is none."""
    return getattr(model[0], "model", None)


def input_embeddings(model: Any) -> Any:
    """The module that turns token ids into embeddings; None where nobody can say."""
    backbone = backbone_of(model)
    if backbone is None:
        return getattr(model[0], "embedding", None)
    return backbone.get_input_embeddings() if hasattr(backbone, "get_input_embeddings") else None


def _numbers(values: torch.Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = values.double().cpu().numpy()
    return found
