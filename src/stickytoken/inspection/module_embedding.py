"""Look into models: their token embeddings, hidden states, attention and pooling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import computing, switched_on
from stickytoken.encoders.equal_lengths import equal_length_batches
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.model import PromptedModel, PromptRow
from stickytoken.encoders.prompted.steering import pooled_states, prompt_states
from stickytoken.encoders.protocol import require_usable, shown
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.encoders.token_table import token_table
from stickytoken.errors import EncodingError, ModelError
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import Pooling


@dataclass(frozen=True)
class EmbeddedText:
    rows: torch.Tensor  # embeddings of T tokens, with those that the model puts around a text, shape (T, D)
    filler: torch.Tensor  # embedding of the padding token, or zeros, shape (D,)
    # Index of the content id at each position, which may be at several; -1 around the text. Shape (T,).
    content: torch.Tensor
    # Maps embeddings of shape (n, T, D) to vectors before any final normalisation, shape (n, d).
    vectors: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Inside:  # of one text of T tokens, in all its prompts, with those that the model puts around it
    labels: NDArray[np.intp]  # part of each position, shape (T,); that around the text is the last
    hidden: NDArray[np.float32] | None  # states by layer, embeddings first, shape (layers + 1, T, D)
    # Mean weight, shape (layers, heads, attending parts, attended parts); NaN for a part without positions.
    attention: NDArray[np.float64] | None
    pooled: NDArray[np.float64] | None  # pooled last hidden states, shape (P,)
    # Share of each part in the pooled states, shape (parts, P); None if the pooling is not a sum.
    supplied: NDArray[np.float64] | None
    vector: NDArray[np.float32]  # output of the model, shape (d,)


def as_numbers(values: torch.Tensor, dtype: torch.dtype = torch.float64) -> Any:
    return values.detach().to(dtype).cpu().numpy()


def backbone_of(model: Any) -> Any:
    return getattr(model[0], "model", None)


def input_embeddings(model: Any) -> Any:
    """Return the table of token vectors, or None if it is missing or not a matrix (a quantized one)."""
    table: Any = token_table(model)
    weight = getattr(table, "weight", None)
    return table if isinstance(weight, torch.Tensor) and weight.ndim == 2 else None


def sharing_weights(model: Any, embeddings: Any) -> list[Any]:
    """Find all modules with the weights of one: T5 has several, and calls another than it declares."""
    tables = (
        each for each in model.modules() if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag)
    )
    return [table for table in tables if table.weight is embeddings.weight]


class Inspector(ABC):
    # What a batch may hold.
    most_weights = 2**25  # attention weights in one layer
    most_states = 2**26  # components in the hidden states of all layers
    most_tokens = 2048

    encoder: SentenceTransformerEncoder | CausalPromptEncoder
    _network: torch.nn.Module
    _backbone: Any
    pooling: str | None
    has_layers = True
    _embeddings: Any
    _length: Callable[[int], int]  # of an input, from that of its content

    def embedding_matrix(self) -> NDArray[np.float32] | None:
        return None if self._embeddings is None else as_numbers(self._embeddings.weight, torch.float32)

    @abstractmethod
    def embedded(self, content: Sequence[int]) -> EmbeddedText: ...

    @abstractmethod
    def _look(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]: ...

    def look(
        self, contents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        rows = [tuple(content) for content in contents]

        def label(row: int) -> str:
            return shown(self.encoder.tokenizer.decode_many([rows[row]])[0])

        for row, content in enumerate(rows):
            self.encoder.check_input(content, partial(label, row))
        lengths = [self._length(len(content)) for content in rows]
        config = getattr(self._backbone, "config", None)
        heads = getattr(config, "num_attention_heads", None) or 32
        layers = getattr(config, "num_hidden_layers", None) or 1
        width = getattr(config, "hidden_size", None) or 1024
        found: dict[int, Inside] = {}
        with self._computing("look into"):
            for same in equal_length_batches(lengths, self.most_tokens):
                length = max(1, lengths[same[0]])
                by_weights = self.most_weights // (heads * length**2)
                by_states = self.most_states // ((layers + 1) * length * width)
                for batch in np.array_split(same, -(-len(same) // max(1, min(by_weights, by_states)))):
                    looked = self._look([rows[k] for k in batch], [labels[k] for k in batch], parts)
                    found |= dict(zip(batch.tolist(), looked, strict=True))
        result = [found[row] for row in range(len(rows))]
        if result:
            vectors = np.stack([each.vector for each in result])
            require_usable(vectors, self.encoder.name, label, allow_zero=False)
        return result

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        # The model is locked, and computes without gradients and dropout.
        with self._computing("attribute", gradients=True), plain_attention(self._backbone):
            yield

    @contextmanager
    def _computing(self, what: str, *, gradients: bool = False) -> Iterator[None]:
        try:
            with computing(self._network, gradients=gradients):
                yield
        except torch.OutOfMemoryError as error:
            raise EncodingError(
                f"{self.encoder.name}: {self.encoder.device} does not have enough memory to {what} one text: "
                "use shorter texts, a lower precision or another device"
            ) from error


def _insides(
    labels: NDArray[np.intp],
    hidden: torch.Tensor | None,
    layers: Sequence[torch.Tensor],
    pooled: torch.Tensor | None,
    supplied: torch.Tensor | None,
    vectors: NDArray[np.float32],
) -> list[Inside]:
    # Without weights there are no heads; in unusual models their number differs between layers.
    weights = torch.stack(list(layers), dim=1) if len({layer.shape[1] for layer in layers}) == 1 else None
    insides = []
    for row, vector in enumerate(vectors):
        states = None if hidden is None else hidden[row].numpy()
        attended, whole, shares = (
            None if each is None else as_numbers(each[row]) for each in (weights, pooled, supplied)
        )
        insides.append(Inside(labels[row], states, attended, whole, shares, vector))
    return insides


def _expanded(values: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {
        name: value.expand(count, *value.shape[1:]) if torch.is_tensor(value) else value
        for name, value in values.items()
    }


class ModuleInspector(Inspector):
    encoder: SentenceTransformerEncoder

    def __init__(self, encoder: SentenceTransformerEncoder) -> None:
        self.encoder, self._model = encoder, encoder.model
        self._network, self._backbone = encoder.model, backbone_of(encoder.model)
        self._embeddings = input_embeddings(encoder.model)
        self._length = lambda content: content + encoder.template.overhead
        self.has_layers = not encoder.template.flat
        mode = getattr(self._pooling, "pooling_mode", None) if self.has_layers else "mean"
        self.pooling = mode if mode is None or isinstance(mode, str) else "+".join(mode)

    def embedded(self, content: Sequence[int]) -> EmbeddedText:
        from sentence_transformers.sentence_transformer.modules import Normalize

        model, embeddings, ids = self._model, self._embeddings, tuple(content)
        if embeddings is None:
            raise ModelError(f"{self.encoder.name}: its token embeddings cannot be reached")
        template, features = self.encoder.template, self.encoder.features([ids])
        flat = template.flat

        def embed(ids: torch.Tensor) -> Any:
            # Not always equal to the weights: some models scale them here.
            return embeddings.weight.detach()[ids] if flat else embeddings(ids[None])[0]

        rows = embed(features["input_ids"].reshape(-1))
        padding, filler = getattr(model.tokenizer, "pad_token_id", None), torch.zeros_like(rows[0])
        if padding is not None and 0 <= padding < len(embeddings.weight):
            filler = embed(torch.tensor([padding], device=rows.device))[0]
        places = torch.full((len(rows),), -1, device=rows.device)
        before = 0 if flat else len(template.before)
        places[before : before + len(ids)] = torch.arange(len(ids), device=rows.device)

        def vectors(changed: torch.Tensor) -> Any:
            before: list[torch.Tensor] = []
            called: list[Any] = []

            def replace(module: Any, inputs: Any, output: Any) -> torch.Tensor:
                del inputs, output
                called.append(module)
                return changed.mean(dim=1) if flat else changed

            handles = [module.register_forward_hook(replace) for module in sharing_weights(model, embeddings)]
            modules, normalize = list(model), None  # the first of the normalisations at the end of the model
            while modules and isinstance(modules[-1], Normalize):
                normalize = modules.pop()
            if normalize is not None:
                handles.append(
                    normalize.register_forward_pre_hook(
                        lambda _, inputs: before.append(inputs[0]["sentence_embedding"])
                    )
                )
            try:
                output = model(features if flat else _expanded(features, len(changed)))["sentence_embedding"]
            finally:
                for handle in handles:
                    handle.remove()
            if not called:
                raise ModelError(
                    f"{self.encoder.name}: it does not use the token embeddings that it declares"
                )
            return (before[-1] if before else output)[:, : model.truncate_dim]

        return EmbeddedText(rows, filler, places, vectors)

    def _look(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        template, backbone, pooling = self.encoder.template, self._backbone, self._pooling
        places = np.full((len(contents), len(contents[0]) + template.overhead), parts, dtype=np.intp)
        places[:, len(template.before) : len(template.before) + len(contents[0])] = labels
        members = torch.nn.functional.one_hot(torch.from_numpy(places), parts + 1).float()
        if template.flat:
            # The rows of a static embedding model are its states, and their mean is pooled.
            weight = self._embeddings.weight
            rows = weight[torch.tensor(contents, device=weight.device)].float()
            supplied = torch.einsum("tqg,tqd->tgd", members.to(rows), rows) / rows.shape[1]
            vectors = self.encoder.encode_ids(contents, allow_zero=True)
            return _insides(places, rows[:, None].cpu(), (), supplied.sum(dim=1), supplied, vectors)
        seen: list[dict[str, Any]] = []
        with ExitStack() as stack:
            capture = attention_of(backbone, self._attention_sources, members)
            layers = stack.enter_context(capture)
            if hasattr(getattr(backbone, "config", None), "output_hidden_states"):
                # sentence-transformers returns the states if the configuration asks for them.
                stack.enter_context(switched_on(backbone.config, "output_hidden_states"))
            if pooling is not None:
                handle = pooling.register_forward_pre_hook(lambda _, inputs: seen.append(dict(inputs[0])))
                stack.callback(handle.remove)
            features = self._model(self.encoder.features(contents))
        hidden = features.get("all_layer_embeddings")
        states = None if hidden is None else torch.stack([each.float().cpu() for each in hidden], dim=1)
        pooled = supplied = None
        if pooling is not None and seen:
            # The share of each part is the pooling with all other states zero.
            last = seen[-1]["token_embeddings"]

            def pool(states: torch.Tensor) -> Any:
                return pooling({**seen[-1], "token_embeddings": states})["sentence_embedding"].float()

            pooled = pool(last.clone())  # the pooling may change its input
            shares = [pool(last * mask[..., None]) for mask in members.to(last).unbind(dim=-1)]
            supplied = torch.stack(shares, dim=1)
            error = (supplied.sum(dim=1) - pooled).norm(dim=-1)
            if not bool((error <= 0.01 * pooled.norm(dim=-1)).all()):
                supplied = None  # the pooling is no sum
        vectors = features["sentence_embedding"].float().cpu().numpy()
        return _insides(places, states, layers, pooled, supplied, vectors[:, : self._model.truncate_dim])

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


class PromptInspector(Inspector):
    # The template, with the placeholder, is what the model puts around a text. Layers after the one that is
    # read are not recorded, and neither is the auxiliary prompt of contrast, which attributions include.
    encoder: CausalPromptEncoder

    def __init__(self, encoder: CausalPromptEncoder) -> None:
        self.encoder, self._prompted = encoder, encoder.prompted
        self._decoder, self._embeddings = encoder.prompted.decoder, encoder.prompted.decoder.embedding
        self._network = self._backbone = self._decoder.model
        self._length = encoder.prompted.length
        one = "lasttoken" if len(encoder.prompted.prompts) == 1 else "lasttoken of several prompts"
        self.pooling = "mean" if encoder.prompted.reading.prompt.echoes else one

    def embedded(self, content: Sequence[int]) -> EmbeddedText:
        ids = tuple(content)
        prompted, auxiliary = self._prompted, self._prompted.auxiliary
        models = [prompted] if auxiliary is None else [prompted, auxiliary]
        rows = [(model, row) for model in models for row in model.rows([ids])]
        batches = [model.batch(model.layout([row])) for model, row in rows]
        sizes = [batch.embeddings.shape[1] for batch in batches]
        embedded = torch.cat([batch.embeddings[0] for batch in batches])
        places = torch.cat([_places(model, row, range(len(ids)), -1) for model, row in rows])

        def vectors(changed: torch.Tensor) -> torch.Tensor:
            parts = torch.split(changed, sizes, dim=1)
            filled = []
            for batch, embeddings in zip(batches, parts, strict=True):
                names = ("mask", "positions", "first", "last", "placeholders")
                own = _expanded({name: getattr(batch, name) for name in names}, len(changed))
                by_layer = _expanded(batch.by_layer, len(changed))
                filled.append(replace(batch, embeddings=embeddings, by_layer=by_layer, **own))
            if auxiliary is not None:
                values = auxiliary.attended(filled.pop())
                filled = [replace(batch, auxiliary=values) for batch in filled]
            found = [pooled_states(self._decoder, batch, [prompted.number])[:, 0] for batch in filled]
            # Where a model is spread over devices, its last layer computes elsewhere.
            return torch.stack(found).mean(dim=0).to(changed.device)

        padding, filler = prompted.padding_id, torch.zeros_like(embedded[0])
        if padding is not None and 0 <= padding < self._decoder.rows:
            filler = self._embeddings(torch.tensor([[padding]], device=embedded.device))[0, 0]
        return EmbeddedText(embedded, filler, places.to(embedded.device), vectors)

    @cached_property
    def _attention_sources(self) -> Sources:
        ids = torch.tensor([self.encoder.usable_entries()[:3]], device=self._decoder.device)
        model = self._decoder.model
        return attention_sources(
            model, model, lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        )

    def _look(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        prompted, decoder, values = self._prompted, self._decoder, None
        if (auxiliary := prompted.auxiliary) is not None:
            values = auxiliary.attended(auxiliary.batch(auxiliary.layout(auxiliary.rows(contents))))
        by_prompt = []
        for prompt in range(len(prompted.prompts)):
            rows = [PromptRow(prompt, content) for content in contents]
            places = torch.stack([_places(prompted, *each, parts) for each in zip(rows, labels, strict=True)])
            members = torch.nn.functional.one_hot(places, parts + 1).float()
            batch = prompted.batch(prompted.layout(rows), auxiliary=values)
            numbers = range(prompted.number + 1)
            with attention_of(decoder.model, self._attention_sources, members) as layers:
                states = prompt_states(decoder, batch, numbers)
            last = states[prompted.number]
            masks = members.to(last).unbind(dim=-1)
            supplied = torch.stack([batch.pool(last * mask[..., None]).float() for mask in masks], dim=1)
            pooled = batch.pool(last).float()
            by_layer = [states[each].float().cpu() for each in sorted(states)]
            # Layers that differ in width cannot be stacked.
            alike = len({each.shape for each in by_layer}) == 1
            hidden = torch.stack(by_layer, dim=1) if alike else None
            by_prompt.append(_insides(places.numpy(), hidden, layers, pooled, supplied, pooled.cpu().numpy()))
        return [self._joined(prompts) for prompts in zip(*by_prompt, strict=True)]

    def _joined(self, prompts: Sequence[Inside]) -> Inside:
        vector = np.stack([each.vector for each in prompts]).mean(axis=0)
        states = [each.hidden for each in prompts if each.hidden is not None]
        weights = [each.attention for each in prompts if each.attention is not None]
        mean_weights = None
        if len(weights) == len(prompts):
            size = weights[0].shape[-1]
            counts = np.array([np.bincount(each.labels, minlength=size) for each in prompts])
            # A part that is missing in one prompt has NaN and no positions there.
            sums = sum(np.nan_to_num(own) * n[:, None] for own, n in zip(weights, counts, strict=True))
            with np.errstate(invalid="ignore"):
                mean_weights = sums / counts.sum(axis=0)[:, None]
        return Inside(
            labels=np.concatenate([each.labels for each in prompts]),
            hidden=np.concatenate(states, axis=1) if len(states) == len(prompts) else None,
            attention=mean_weights,
            pooled=np.stack([each.pooled for each in prompts if each.pooled is not None]).mean(axis=0),
            supplied=np.stack([each.supplied for each in prompts if each.supplied is not None]).mean(axis=0),
            vector=unit_vectors(vector) if self.encoder.normalizes else vector,
        )


def _places(model: PromptedModel, row: PromptRow, values: Sequence[int], other: int) -> torch.Tensor:
    # A value per position of a prompt: that of its content id, or `other` for the template.
    prompt = model.prompts[row.prompt]
    found = torch.full((prompt.length(len(row.content)),), other)
    for span in prompt.content_ranges(len(row.content)):
        found[span.start : span.stop] = torch.tensor(values, dtype=torch.long)
    return found


# The attention weights of a model, layer by layer, which are reduced immediately.

Sources = dict[torch.nn.Module, int]
"""Modules that return attention weights, and their index in the returned tuple."""


def attention_sources(model: torch.nn.Module, backbone: Any, run: Callable[[], object]) -> Sources:
    config = getattr(backbone, "config", None)
    if config is None:
        return {}
    seen: list[tuple[torch.nn.Module, int, torch.Tensor]] = []
    reports: list[list[torch.Tensor]] = []

    def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        if found := _reported(output):
            reports.append(found)
        elif type(output) is tuple:
            seen.extend((module, place, each) for place, each in enumerate(output) if _are_weights(each))

    # sentence-transformers bypasses forward hooks of the backbone.
    forward, own = backbone.forward, vars(backbone).get("forward")

    @wraps(forward)  # keeps the signature visible, since callers choose arguments by it
    def watched(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        reports.append(_reported(output))
        return output

    handles = [module.register_forward_hook(record) for module in model.modules()]
    try:
        with plain_attention(backbone), switched_on(config, "output_attentions"):
            vars(backbone)["forward"] = watched
            run()
    except ValueError:  # raised by a model that cannot switch from fused kernels
        return {}
    finally:
        vars(backbone).pop("forward", None)
        if own is not None:
            vars(backbone)["forward"] = own
        for handle in handles:
            handle.remove()
    sources: Sources = {}
    # The last report is that of the outermost module.
    for weights in next((each for each in reversed(reports) if each), []):
        for module, place, each in seen:  # an outer module may return the same weights again
            if each is weights or (
                each.shape == weights.shape and torch.equal(each, weights.to(each.device))
            ):
                sources[module] = place
                break
        else:
            return {}
    return sources


def _reported(output: Any) -> list[torch.Tensor]:
    # With two stacks, those of the decoder if it has any.
    found = getattr(output, "attentions", None) or getattr(output, "encoder_attentions", None) or ()
    return [each for each in found if isinstance(each, torch.Tensor)]


def _are_weights(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.ndim != 4 or value.shape[-1] != value.shape[-2]:
        return False
    rows = value.float().sum(dim=-1)  # in half precision 1 only up to an error
    return bool((value >= 0).all() and ((rows - 1).abs() <= 0.02).all())


@contextmanager
def attention_of(backbone: Any, sources: Sources, members: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    layers: list[torch.Tensor] = []

    def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        weights = output[sources[module]]
        own = members.to(weights.device)
        sums = torch.einsum("tqg,thqk,tkj->thgj", own, weights.float(), own)
        layers.append(sums / own.sum(dim=1)[:, None, :, None])

    config = getattr(backbone, "config", None)
    handles = [module.register_forward_hook(record) for module in sources]
    try:
        with plain_attention(backbone), ExitStack() as stack:
            plain = getattr(config, "_attn_implementation", None) in (None, "eager")
            if config is not None and plain and not getattr(backbone, "_can_record_outputs", None):
                # The layers of such a model return weights only if they are asked to.
                stack.enter_context(switched_on(config, "output_attentions"))
            yield layers
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def plain_attention(backbone: Any) -> Iterator[None]:
    config = getattr(backbone, "config", None)
    before = getattr(config, "_attn_implementation", None)
    settable = getattr(backbone, "set_attn_implementation", None)
    can_set = getattr(backbone, "_can_set_attn_implementation", lambda: True)
    if settable is None or before in (None, "eager") or not can_set():
        yield
        return
    parts = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    own = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    settable("eager")
    try:
        yield
    finally:
        settable({"": before, **own} if own else before)
