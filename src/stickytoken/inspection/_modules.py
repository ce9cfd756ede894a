"""Look inside a SentenceTransformer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.inspection._attention import (
    AttentionCapture,
    Sources,
    attention_of,
    attention_sources,
    switched_on,
)
from stickytoken.inspection._batches import BatchInspector
from stickytoken.inspection._embedded_text import EmbeddedText
from stickytoken.inspection.module_embedding import backbone_of, embedded_text, input_embeddings
from stickytoken.inspection.protocol import Inside, as_numbers

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import Pooling

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
