"""Inspect the token embeddings, hidden states, attention and pooling of models."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import computing, switch_on
from stickytoken.encoders.compute.batches import equal_length_batches
from stickytoken.encoders.inputs.token_table import token_table
from stickytoken.encoders.model_encoder import ModelEncoder
from stickytoken.encoders.protocol import quote_text, require_usable
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import EncodingError
from stickytoken.inspection.attention import Sources, collecting_attention, find_attention_sources

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import Pooling


# Maximum error of a sum over parts, as a fraction of the pooled vector's length. If the error is larger,
# the pooling does not count as a sum over parts.
_MAX_POOLING_ERROR = 0.01


@dataclass(frozen=True, slots=True)
class Inside:
    """The internal states of a model while it encodes one text.

    T is the total number of tokens in all prompts with the text, including the tokens that the model adds
    around the text. States that the model does not expose are None.

    Attributes:
        part_of_token: For each token, the index of the part of the text that the token belongs to, shape
            (T,). The last part consists of the tokens that the model adds around the text.
        hidden: The embeddings, followed by the states of each layer, shape (layers + 1, T, D).
        attention: Mean attention weights, shape (layers, heads, attending parts, attended parts); NaN if the
            attending part has no tokens.
        pooled: Pooled last hidden states, shape (P,).
        pooled_by_part: Contribution of each part to the pooled states, shape (parts, P); None if the pooled
            states are not exposed, or are not a sum over parts.
        vector: Output of the model, shape (d,).
    """

    part_of_token: NDArray[np.intp]
    hidden: NDArray[np.float32] | None
    attention: NDArray[np.float64] | None
    pooled: NDArray[np.float64] | None
    pooled_by_part: NDArray[np.float64] | None
    vector: NDArray[np.float32]


def _to_numpy(values: torch.Tensor, dtype: torch.dtype = torch.float64) -> Any:
    return values.detach().to(dtype).cpu().numpy()


def input_embeddings(model: Any) -> Any:
    """Return the module with the token embeddings.

    Return None if the model has no module with token embeddings, or if the weights of the module are not a
    matrix, for example because they are quantized.
    """
    table: Any = token_table(model)
    weight = getattr(table, "weight", None)
    return table if isinstance(weight, torch.Tensor) and weight.ndim == 2 else None


class Inspector(ABC):
    """Gives access to the internal states of an encoder's model.

    Attributes:
        encoder: The encoder.
        pooling: Name of the pooling method; None if unknown.
        has_layers: Whether the model has layers. A static embedding model has no layers.
    """

    # Maximum number of attention weights in one layer of a batch, so that they fit into memory.
    most_weights = 2**25
    # Maximum number of values in the hidden states of all layers of a batch, so that they fit into memory.
    most_states = 2**26
    # Maximum number of tokens in a batch.
    most_tokens = 2048

    encoder: ModelEncoder
    _network: torch.nn.Module
    _backbone: Any
    pooling: str | None
    has_layers = True
    _embeddings: Any
    _length: Callable[[int], int]  # maps the number of content ids to the number of tokens in the input

    def embedding_matrix(self) -> NDArray[np.float32] | None:
        """Return the token embeddings, shape (entries, D), or None if they are not accessible."""
        return None if self._embeddings is None else _to_numpy(self._embeddings.weight, torch.float32)

    @abstractmethod
    def look_at_batch(
        self, contents: Sequence[tuple[int, ...]], part_of_id: Sequence[Sequence[int]], around_part: int
    ) -> list[Inside]:
        """Run `look` on one batch of texts that have the same number of content ids."""

    def look(
        self, contents: Sequence[Sequence[int]], part_of_id: Sequence[Sequence[int]], around_part: int
    ) -> list[Inside]:
        """Encode texts, and return the internal states of the model for each text.

        Args:
            contents: Content ids of each text, which are the text's token ids without the tokens that the
                model adds around the text.
            part_of_id: For each text, the index of the part that each of its content ids belongs to. Parts
                are numbered from 0.
            around_part: Index of the part that consists of the tokens around a text. No part has a larger
                index.

        Raises:
            EncodingError: A text has no usable vector, or the device does not have enough memory.
        """
        texts = [tuple(content) for content in contents]

        def quote(index: int) -> str:
            return quote_text(self.encoder.tokenizer.decode_many([texts[index]])[0])

        for index, content in enumerate(texts):
            self.encoder.check_input(content, partial(quote, index))
        insides: dict[int, Inside] = {}  # keyed by the index of the text
        lengths = [self._length(len(content)) for content in texts]
        try:
            with computing(self._network):
                for batch in self._divide_to_fit_memory(lengths):
                    batch_contents = [texts[index] for index in batch]
                    batch_parts = [part_of_id[index] for index in batch]
                    batch_insides = self.look_at_batch(batch_contents, batch_parts, around_part)
                    insides |= dict(zip(batch.tolist(), batch_insides, strict=True))
        except torch.OutOfMemoryError as error:
            raise EncodingError(
                f"{self.encoder.name}: {self.encoder.device} does not have enough memory to inspect one "
                "text: use shorter texts, a lower precision or another device"
            ) from error
        in_order = [insides[index] for index in range(len(texts))]
        if in_order:
            vectors = np.stack([inside.vector for inside in in_order])
            require_usable(vectors, self.encoder.name, quote, allow_zero=False)
        return in_order

    def _divide_to_fit_memory(self, lengths: Sequence[int]) -> Iterator[NDArray[np.intp]]:
        # If the model does not declare its numbers of heads and layers or its width, guesses are used.
        config = getattr(self._backbone, "config", None)
        heads = getattr(config, "num_attention_heads", None) or 32
        layers = getattr(config, "num_hidden_layers", None) or 1
        width = getattr(config, "hidden_size", None) or 1024
        for group in equal_length_batches(lengths, self.most_tokens):
            length = max(1, lengths[group[0]])
            weights_per_text = heads * length**2  # in one layer
            states_per_text = (layers + 1) * length * width  # after the embedding and after each layer
            most_texts = min(self.most_weights // weights_per_text, self.most_states // states_per_text)
            batch_size = max(1, most_texts)
            yield from np.array_split(group, math.ceil(len(group) / batch_size))


def split_batch_states(
    *,
    part_of_token: NDArray[np.intp],
    hidden: torch.Tensor | None,
    attention_by_layer: Sequence[torch.Tensor],
    pooled: torch.Tensor | None,
    pooled_by_part: torch.Tensor | None,
    vectors: NDArray[np.float32],
) -> list[Inside]:
    """Return the internal states of each text of a batch, from the internal states of the whole batch.

    The arguments have the meaning and shape of the attributes of `Inside` (``vectors``: of `Inside.vector`),
    with texts as an additional first axis. ``attention_by_layer`` has one tensor for each layer, shape
    (texts, heads, attending parts, attended parts), or none if the model does not expose attention.
    """
    # The weights of layers with different numbers of heads cannot be stacked, so they are left out. In nearly
    # all models, every layer has the same number of heads.
    head_counts = {layer.shape[1] for layer in attention_by_layer}
    weights = torch.stack(list(attention_by_layer), dim=1) if len(head_counts) == 1 else None
    return [
        Inside(
            part_of_token=part_of_token[row],
            # Not converted to float64, because the states of all layers take much memory.
            hidden=None if hidden is None else hidden[row].numpy(),
            attention=None if weights is None else _to_numpy(weights[row]),
            pooled=None if pooled is None else _to_numpy(pooled[row]),
            pooled_by_part=None if pooled_by_part is None else _to_numpy(pooled_by_part[row]),
            vector=vector,
        )
        for row, vector in enumerate(vectors)
    ]


class ModuleInspector(Inspector):
    """Gives access to the internal states of a SentenceTransformer."""

    encoder: SentenceTransformerEncoder

    def __init__(self, encoder: SentenceTransformerEncoder) -> None:
        self.encoder = encoder
        self._model = encoder.model
        self._network = encoder.model
        first_module: Any = encoder.model[0]
        self._backbone = getattr(first_module, "model", None)  # the transformer, if there is one
        self._embeddings = input_embeddings(encoder.model)
        self._length = lambda content_length: content_length + encoder.template.overhead
        self.has_layers = not encoder.template.flat  # only static models, without layers, read flat inputs
        # A static model has no pooling module: its vector is the mean of its token embeddings.
        mode = getattr(self._pooling, "pooling_mode", None) if self.has_layers else "mean"
        # A pooling module may join the results of several modes.
        self.pooling = mode if mode is None or isinstance(mode, str) else "+".join(mode)

    def look_at_batch(
        self, contents: Sequence[tuple[int, ...]], part_of_id: Sequence[Sequence[int]], around_part: int
    ) -> list[Inside]:
        """Return the internal states of the model for each text.

        All texts have the same number of content ids. The arguments are those of `look`. Attention weights
        are summed over the tokens of the attended part, and averaged over the tokens of the attending part.
        The states are pooled over the whole text, and also over each part, with the states of all other parts
        set to zero.
        """
        template = self.encoder.template
        length = len(contents[0])
        start = len(template.before)
        part_count = around_part + 1  # the last part consists of the tokens around the text
        part_of_token = np.full((len(contents), length + template.overhead), around_part, dtype=np.intp)
        part_of_token[:, start : start + length] = part_of_id
        # 1 if the token belongs to the part, else 0, shape (texts, T, parts)
        is_in_part = torch.nn.functional.one_hot(torch.from_numpy(part_of_token), part_count).float()
        if template.flat:  # a static model
            return self._look_at_static_batch(contents, part_of_token, is_in_part)
        pooling = self._pooling
        pooling_inputs: list[dict[str, Any]] = []  # arguments of each call of the pooling module
        with ExitStack() as stack:
            attention_by_layer = stack.enter_context(
                collecting_attention(self._backbone, self._attention_sources, is_in_part)
            )
            if hasattr(getattr(self._backbone, "config", None), "output_hidden_states"):
                # This setting makes sentence-transformers return the hidden states too.
                stack.enter_context(switch_on(self._backbone.config, "output_hidden_states"))
            if pooling is not None:
                # A copy, because the pooling module adds its output to the dict of its inputs.
                handle = pooling.register_forward_pre_hook(
                    lambda _, inputs: pooling_inputs.append(dict(inputs[0]))
                )
                stack.callback(handle.remove)
            features = self._model(self.encoder.features(contents))
        states_by_layer = features.get("all_layer_embeddings")
        hidden = None
        if states_by_layer is not None:
            hidden = torch.stack([states.float().cpu() for states in states_by_layer], dim=1)
        pooled = None
        pooled_by_part = None
        if pooling is not None and pooling_inputs:
            pooled, pooled_by_part = _pool_by_part(pooling, pooling_inputs[-1], is_in_part)
        output = features["sentence_embedding"].float().cpu().numpy()
        return split_batch_states(
            part_of_token=part_of_token,
            hidden=hidden,
            attention_by_layer=attention_by_layer,
            pooled=pooled,
            pooled_by_part=pooled_by_part,
            vectors=output[:, : self._model.truncate_dim],
        )

    def _look_at_static_batch(
        self, contents: Sequence[tuple[int, ...]], part_of_token: NDArray[np.intp], is_in_part: torch.Tensor
    ) -> list[Inside]:
        # `part_of_token` (texts, T) and `is_in_part` (texts, T, parts) both say which part a token is in.
        weight = self._embeddings.weight
        embeddings = weight[torch.tensor(contents, device=weight.device)].float()  # shape (texts, T, D)
        # The mean over all T tokens, as a sum over parts. t: text, q: token, g: part, d: component
        pooled_by_part = torch.einsum("tqg,tqd->tgd", is_in_part.to(embeddings), embeddings)
        pooled_by_part /= embeddings.shape[1]
        return split_batch_states(
            part_of_token=part_of_token,
            hidden=embeddings[:, None].cpu(),  # no layers: shape (texts, 1, T, D)
            attention_by_layer=(),
            pooled=pooled_by_part.sum(dim=1),
            pooled_by_part=pooled_by_part,
            # A vector may differ from the pooled states, because the model may truncate and normalise it.
            vectors=self.encoder.encode_ids(contents, allow_zero=True),
        )

    @cached_property
    def _attention_sources(self) -> Sources:
        sample = [tuple(self.encoder.usable_entries()[:2])]  # any short input will do

        def run_model() -> object:
            return self._model(self.encoder.features(sample))

        return find_attention_sources(self._model, self._backbone, run_model)

    @property
    def _pooling(self) -> Pooling | None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        return next((module for module in self._model if isinstance(module, Pooling)), None)


def _pool_by_part(
    pooling: Any, inputs: dict[str, Any], is_in_part: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the pooled states of each text, and the contribution of each part to them.

    The shapes are (texts, P) and (texts, parts, P). The contributions are None if they don't add up to the
    pooled states. ``is_in_part`` is 1 if a token belongs to a part, else 0, shape (texts, T, parts).
    """
    states = inputs["token_embeddings"]  # the last hidden states of all tokens, shape (texts, T, D)

    def pool(states: torch.Tensor) -> Any:
        return pooling({**inputs, "token_embeddings": states})["sentence_embedding"].float()

    pooled = pool(states.clone())  # a copy, because the pooling may change its input
    pooled_parts = []
    for is_in_this_part in is_in_part.to(states).unbind(dim=-1):  # shape (texts, T)
        states_of_part = states * is_in_this_part[..., None]  # zero for tokens of other parts
        pooled_parts.append(pool(states_of_part))
    pooled_by_part = torch.stack(pooled_parts, dim=1)
    error = (pooled_by_part.sum(dim=1) - pooled).norm(dim=-1)
    is_sum = bool((error <= _MAX_POOLING_ERROR * pooled.norm(dim=-1)).all())
    return pooled, pooled_by_part if is_sum else None
