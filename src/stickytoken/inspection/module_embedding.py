"""Find, read and replace the token embeddings of a SentenceTransformer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.model_state import computing
from stickytoken.encoders.protocol import IdEncoder, equal_length_batches, require_usable, shown
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection._attention import (
    AttentionCapture,
    Sources,
    attention_of,
    attention_sources,
    plain_attention,
    switched_on,
)
from stickytoken.inspection.protocol import EmbeddedText, Inside, as_numbers

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import Pooling

    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder


def backbone_of(model: Any) -> Any:
    """Return the transformers model in the first module; None without one."""
    return getattr(model[0], "model", None)


def input_embeddings(model: Any) -> Any:
    """Return the module that embeds token ids; None if it is unknown."""
    backbone = backbone_of(model)
    if backbone is None:
        return getattr(model[0], "embedding", None)
    return backbone.get_input_embeddings() if hasattr(backbone, "get_input_embeddings") else None


def embedded_text(encoder: SentenceTransformerEncoder, content: Sequence[int]) -> EmbeddedText:
    """Return a text as embeddings."""
    model, ids, template = encoder.model, tuple(content), encoder.template
    embeddings = input_embeddings(model)
    if embeddings is None:
        raise ModelError(f"{encoder.name}: its token embeddings cannot be reached")
    features = encoder.features([ids])
    flat = template.flat
    rows = _rows(embeddings, features["input_ids"].reshape(-1), flat=flat)
    places = torch.full((len(rows),), -1, device=rows.device)
    before = 0 if flat else len(template.before)
    places[before : before + len(ids)] = torch.arange(len(ids), device=rows.device)

    def vectors(changed: torch.Tensor) -> torch.Tensor:
        if flat:
            return _vectors(encoder, embeddings, features, changed.mean(dim=1))
        repeated = {
            key: value.expand(len(changed), *value.shape[1:]) if torch.is_tensor(value) else value
            for key, value in features.items()
        }
        return _vectors(encoder, embeddings, repeated, changed)

    return EmbeddedText(rows, _filler(model, embeddings, rows, flat=flat), places, vectors)


def _vectors(
    encoder: SentenceTransformerEncoder, embeddings: Any, features: dict[str, Any], embedded: torch.Tensor
) -> torch.Tensor:
    """Compute vectors before any final normalisation, with the given output of the embeddings."""
    model = encoder.model
    before: list[torch.Tensor] = []
    called: list[Any] = []

    def replace(module: Any, inputs: Any, output: Any) -> torch.Tensor:
        del inputs, output
        called.append(module)
        return embedded

    handles = [module.register_forward_hook(replace) for module in sharing_weights(model, embeddings)]
    if (last := _last_normalize(model)) is not None:
        handles.append(
            last.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]["sentence_embedding"]))
        )
    try:
        found = model(features)["sentence_embedding"]
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise ModelError(f"{encoder.name}: it does not use the token embeddings that it declares")
    found = before[-1] if before else found
    truncated: torch.Tensor = found[:, : model.truncate_dim]
    return truncated


def sharing_weights(model: Any, embeddings: Any) -> list[Any]:
    """Find all modules with the weights of one: T5 has several, and calls another than it declares."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return [
        module
        for module in model.modules()
        if isinstance(module, kinds) and module.weight is embeddings.weight
    ]


def _last_normalize(model: Any) -> Any:
    """Return the first of the normalisations at the end of the model."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    modules: list[Any] = list(model)
    first = None
    while modules and isinstance(modules[-1], Normalize):
        first = modules.pop()
    return first


def _rows(embeddings: Any, ids: torch.Tensor, *, flat: bool) -> torch.Tensor:
    """Embed token ids, shape (T, D)."""
    # Not always equal to the weights: some models scale them here.
    found: torch.Tensor = embeddings.weight.detach()[ids] if flat else embeddings(ids[None])[0]
    return found


def _filler(model: Any, embeddings: Any, rows: torch.Tensor, *, flat: bool) -> torch.Tensor:
    token_id = getattr(model.tokenizer, "pad_token_id", None)
    if token_id is None or not 0 <= token_id < len(embeddings.weight):
        return torch.zeros_like(rows[0])
    return _rows(embeddings, torch.tensor([token_id], device=rows.device), flat=flat)[0]


_HEADS_IF_UNKNOWN = 32


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one batch.

    Attributes:
        weights: number of attention weights in one layer.
        states: number of components in the hidden states of all layers.
        tokens: number of tokens.
    """

    weights: int = 2**25
    states: int = 2**26
    tokens: int = 2048


class BatchInspector(ABC):
    """Look at texts of equal length together."""

    limits = BatchLimits()

    def __init__(
        self,
        encoder: SentenceTransformerEncoder | CausalPromptEncoder,
        network: torch.nn.Module,
        backbone: Any,
    ) -> None:
        self.encoder = encoder
        self._network = network
        self._backbone = backbone

    @abstractmethod
    def _length(self, content: int) -> int:
        """Return the length of an input with ``content`` content ids."""

    @abstractmethod
    def _look(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        """Look at texts of one length."""

    def look(
        self, contents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        """Run texts through the model and record its inside; see `Inspector.look`."""
        rows = [tuple(content) for content in contents]
        label = _label(self.encoder, rows)
        for row, content in enumerate(rows):
            self.encoder.check_input(content, partial(label, row))
        found: dict[int, Inside] = {}
        with computing(self._network), _memory_told(self.encoder, "look into"):
            for batch in self._batches([self._length(len(content)) for content in rows]):
                looked = self._look([rows[k] for k in batch], [labels[k] for k in batch], parts)
                found |= dict(zip(batch.tolist(), looked, strict=True))
        result = [found[row] for row in range(len(rows))]
        if result:
            vectors = np.stack([each.vector for each in result])
            require_usable(vectors, self.encoder.name, label, allow_zero=False)
        return result

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        """Prepare the model for `embedded` and its vectors; see `Inspector.differentiating`."""
        with (
            computing(self._network, gradients=True),
            plain_attention(self._backbone),
            _memory_told(self.encoder, "attribute"),
        ):
            yield

    def _batches(self, lengths: Sequence[int]) -> list[NDArray[np.intp]]:
        """Group texts of equal length into batches within the limits."""
        config = getattr(self._backbone, "config", None)
        heads = getattr(config, "num_attention_heads", None) or _HEADS_IF_UNKNOWN
        layers = getattr(config, "num_hidden_layers", None) or 1
        width = getattr(config, "hidden_size", None) or 1024
        batches = []
        for same in equal_length_batches(lengths, self.limits.tokens):
            length = max(1, lengths[same[0]])
            by_weights = self.limits.weights // (heads * length**2)
            by_states = self.limits.states // ((layers + 1) * length * width)
            batches += np.array_split(same, -(-len(same) // max(1, min(by_weights, by_states))))
        return batches


def _label(encoder: IdEncoder, contents: Sequence[Sequence[int]]) -> Callable[[int], str]:
    """Return a function from row to the text that messages show, decoded from its ids."""
    return lambda row: shown(encoder.tokenizer.decode_many([contents[row]])[0])


@contextmanager
def _memory_told(encoder: IdEncoder, what: str) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the model."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EncodingError(
            f"{encoder.name}: {encoder.device} does not have enough memory to {what} one text: "
            "use shorter texts, a lower precision or another device"
        ) from error


# Largest difference between a pooled vector and the sum of its parts, as a share of its norm.
_PARTS_TOLERANCE = 1e-2


class ModuleInspector(BatchInspector):
    """Look into the modules of a SentenceTransformer; see `Inspector`."""

    encoder: SentenceTransformerEncoder

    def __init__(self, encoder: SentenceTransformerEncoder) -> None:
        super().__init__(encoder, encoder.model, backbone_of(encoder.model))
        self._model = encoder.model

    @property
    def pooling(self) -> str | None:
        """How hidden states are pooled, such as ``mean``; None if unknown."""
        if self.encoder.template.flat:
            return "mean"
        module = self._pooling
        if module is None:
            return None
        mode = module.pooling_mode
        return mode if isinstance(mode, str) else "+".join(mode)

    @property
    def has_layers(self) -> bool:
        """Whether there are layers between embeddings and pooling; a static embedding model has none."""
        return not self.encoder.template.flat

    def embedding_matrix(self) -> NDArray[np.float32] | None:
        """Return the token embeddings, shape (entries, D); None if they cannot be reached."""
        module = input_embeddings(self._model)
        if module is None:
            return None
        weight: NDArray[np.float32] = module.weight.detach().float().cpu().numpy()
        return weight

    def embedded(self, content: Sequence[int]) -> EmbeddedText:
        """Return a text as embeddings; see `Inspector.embedded`."""
        return embedded_text(self.encoder, content)

    def _length(self, content: int) -> int:
        return content + self.encoder.template.overhead

    def _look(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        template = self.encoder.template
        places = np.full((len(contents), len(contents[0]) + template.overhead), parts, dtype=np.intp)
        places[:, len(template.before) : len(template.before) + len(contents[0])] = labels
        members = torch.nn.functional.one_hot(torch.from_numpy(places), parts + 1).float()
        if template.flat:
            return self._look_static(contents, places, members)
        capture = AttentionCapture(members, self._attention_sources)
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
                attention=None if attention is None else as_numbers(attention[row]),
                pooled=None if pooled is None else as_numbers(pooled[row]),
                supplied=None if supplied is None else as_numbers(supplied[row]),
                vector=vectors[row],
            )
            for row in range(len(contents))
        ]

    def _forward(
        self, contents: Sequence[tuple[int, ...]], capture: AttentionCapture
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the final features, and those that went into the pooling."""
        backbone, pooling = self._backbone, self._pooling
        seen: list[dict[str, Any]] = []
        with ExitStack() as stack:
            stack.enter_context(attention_of(backbone, capture))
            if hasattr(getattr(backbone, "config", None), "output_hidden_states"):
                # sentence-transformers returns the states if the configuration asks for them.
                stack.enter_context(switched_on(backbone.config, "output_hidden_states"))
            if pooling is not None:
                handle = pooling.register_forward_pre_hook(lambda _, inputs: seen.append(dict(inputs[0])))
                stack.callback(handle.remove)
            features = self._model(self.encoder.features(contents))
        return features, seen[-1] if seen else None

    def _supplied(
        self, features: dict[str, Any] | None, members: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the pooled vector and the share of each part: the pooling with all other states zero."""
        pooling = self._pooling
        if features is None or pooling is None:
            return None, None
        states = features["token_embeddings"]

        def pool(kept: torch.Tensor) -> torch.Tensor:
            # A copy, because the pooling modifies its input.
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
        """Look into a static embedding model: its rows are the states, and their mean is pooled."""
        module: Any = input_embeddings(self._model)
        rows = module.weight[torch.tensor(contents, device=module.weight.device)].float()
        supplied = torch.einsum("tqg,tqd->tgd", members.to(rows), rows) / rows.shape[1]
        vectors = self.encoder.encode_ids(contents, allow_zero=True)
        return [
            Inside(
                labels=places[row],
                hidden=rows[row : row + 1].cpu().numpy(),
                attention=None,
                pooled=as_numbers(supplied[row].sum(dim=0)),
                supplied=as_numbers(supplied[row]),
                vector=vectors[row],
            )
            for row in range(len(contents))
        ]

    @cached_property
    def _attention_sources(self) -> Sources:
        sample = [tuple(self.encoder.usable_entries()[:2])]
        return attention_sources(
            self._model, self._backbone, lambda: self._model(self.encoder.features(sample))
        )

    @property
    def _pooling(self) -> Pooling | None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        return next((module for module in self._model if isinstance(module, Pooling)), None)
