"""A decoder, its tokenizer and a prompt: from sentences to the input, and to the states after its layers."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from stickytoken.encoders import prompted as prompts
from stickytoken.encoders.compute import evaluating
from stickytoken.encoders.prompted import Contrast, ContrastRule, Ids
from stickytoken.errors import InputError, ModelError
from stickytoken.insertion import TokenizedText

# Recurrent layers that ignore the attention mask.
_READS_PADDING = ("recurrent_gemma",)
# Largest relative change of an earlier state by a later token in a causal model, beyond rounding.
_LOOK_AHEAD = 1e-4


@dataclass(frozen=True)
class Decoder:
    model: Any
    layers: tuple[torch.nn.Module, ...]
    name: str

    @property
    def embedding(self) -> Any:
        return self.model.get_input_embeddings()

    @property
    def rows(self) -> int:
        return int(self.embedding.weight.shape[0])

    @property
    def device(self) -> torch.device:  # of the token embedding, where inputs go
        device: torch.device = self.embedding.weight.device
        return device

    @cached_property
    def takes_positions(self) -> bool:  # models with linear biases do not
        return "position_ids" in inspect.signature(self.model.forward).parameters

    def beside(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return further inputs computed from the token ids: Gemma 4 has an embedding per layer."""
        if not getattr(self.model.config, "hidden_size_per_layer_input", None):
            return {}
        by_layer = self.model.get_per_layer_inputs
        # Earlier releases of transformers require this argument too, and ignore it if ids are given.
        more = {"inputs_embeds": None} if "inputs_embeds" in inspect.signature(by_layer).parameters else {}
        return {"per_layer_inputs": by_layer(ids, **more)}

    def layer_number(self, layer: int) -> int:
        count = len(self.layers)
        number = layer + count + 1 if layer < 0 else layer
        if number == 0:
            raise InputError(
                f"layer {layer} of {self.name} is the embedding of the prompt's last token, the same for "
                f"every sentence: use 1 to {count}, or -1 to {-count}"
            )
        if not 0 < number <= count:
            raise InputError(f"{self.name} has no layer {layer}: use 1 to {count}, or -1 to {-count}")
        return number


def find_decoder(model: Any, name: str) -> Decoder:
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_input_embeddings"):
        raise ModelError(f"{name} is a {type(model).__name__}, not a transformers language model")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder ({config.model_type}): prompts need a decoder-only model"
        )
    found = model.get_decoder()
    layers = next(
        (part for key in ("layers", "h", "blocks") if (part := getattr(found, key, None)) is not None), None
    )
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers):
        raise ModelError(
            f"{name} is a {config.model_type} without a list of decoder layers: prompts need a "
            f"decoder-only model"
        )
    # Mamba and RWKV have no attention; others read padding as text.
    attends = getattr(found.config, "num_attention_heads", None) is not None
    if (getattr(found, "_is_stateful", False) and not attends) or found.config.model_type in _READS_PADDING:
        raise ModelError(
            f"{name} is a {config.model_type}, a recurrent model: prompts need a decoder-only model "
            "whose tokens attend to earlier ones"
        )
    decoder = Decoder(found, tuple(layers), name)
    if decoder.device.type == "meta":
        raise ModelError(f"{name} is on the meta device, which holds no values: load it onto a real device")
    # Changing the last token must leave all earlier states as they are.
    *shared, one, other = (token % decoder.rows for token in range(5, 11))
    ids = torch.tensor([[*shared, one], [*shared, other]], device=decoder.device)
    with evaluating(decoder.model), torch.inference_mode():
        states = decoder.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    before = states[:, :-1].float()
    moved = (before[0] - before[1]).norm()
    allowed = (_LOOK_AHEAD + 4 * torch.finfo(states.dtype).eps) * before[0].norm()
    if bool(moved > allowed):  # false for NaN from damaged weights, reported later with the text
        raise ModelError(
            f"{name} is a {config.model_type} whose tokens attend to later ones (an encoder): "
            "prompts need a decoder-only model"
        )
    return decoder


Hook = tuple[Callable[..., Any], Callable[..., Any]]  # the method that registers it, and what it calls


@contextmanager
def _hooked(hooks: Iterable[Hook]) -> Iterator[None]:
    """Hook modules during calls from this thread; others may run the model with other settings or none."""
    owner = threading.get_ident()

    # torch may call a hook without its last argument if another thread removes it at the same moment.
    def call(hook: Callable[..., Any], *args: Any) -> Any:
        return hook(*args) if threading.get_ident() == owner else None

    with ExitStack() as stack:
        for register, hook in hooks:
            stack.callback(register(partial(call, hook)).remove)
        yield


def _states(found: Any) -> torch.Tensor:
    states: torch.Tensor = found[0] if isinstance(found, (tuple, list)) else found
    if states.ndim != 3:
        raise ModelError(
            f"the layers of this model return states of shape {tuple(states.shape)}: prompts need a model "
            "with one state per token, of shape (rows, tokens, d)"
        )
    return states


def _layer_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return _states(args[0] if args else kwargs["hidden_states"])


@dataclass(frozen=True, slots=True)
class TokenPrepending:
    start: int  # from 0
    exit: int  # first later layer that is not one of them; a value beyond the last layer includes all

    def __post_init__(self) -> None:
        if self.start < 0:
            raise InputError(f"start is {self.start}: layers are counted from 0")
        if self.start >= self.exit:
            raise InputError(
                f"start is {self.start} and exit is {self.exit}, so nothing would be overwritten: pass a "
                "larger exit"
            )


# Names of the projection in transformers: o_proj (Llama and most others), out_proj (OPT, GPT-J), c_proj
# (GPT-2), dense (Bloom, Falcon, GPT-NeoX). Feed-forward and convolution blocks use some of them too, so the
# name of the block counts.
_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense")
_ATTENTION = ("attn", "attention")
# A difference below this many machine epsilons of A, and below this share of it, is rounding.
_ROUNDING, _LARGEST_ROUNDING = 64, 0.01


def contrasted(own: torch.Tensor, other: torch.Tensor, settings: Contrast, heads: int) -> torch.Tensor:
    # Where both are equal up to rounding, as behind a sliding window that hides the beginnings of the
    # prompts, nothing remains: rules that keep a norm would enlarge the rounding, which depends on the batch.
    shape = own.shape
    if settings.rule is ContrastRule.SUB_HEAD_NORM:
        own, other = (values.reshape(*shape[:-1], heads, -1) for values in (own, other))
    found = own - other
    norm, wanted = (torch.linalg.vector_norm(each, dim=-1, keepdim=True) for each in (found, own))
    share = min(_ROUNDING * torch.finfo(own.dtype).eps, _LARGEST_ROUNDING)
    found = found.masked_fill(norm <= share * wanted, 0)
    if settings.rule is not ContrastRule.SCALED:
        found = found * (wanted / (norm + 1e-7))
    return (found if settings.strength is None else settings.strength * found).reshape(shape)


def _projection_of(layer: torch.nn.Module) -> torch.nn.Module | None:
    # The module that mixes the outputs of the attention heads.
    def attends(block: str) -> bool:
        return any(word in block for word in _ATTENTION) and "linear" not in block

    paths = ((path.split("."), module) for path, module in layer.named_modules())
    found = [
        module for (*blocks, name), module in paths if name in _PROJECTIONS and any(map(attends, blocks))
    ]
    return found[0] if len(found) == 1 else None


def layers_with_projection(decoder: Decoder) -> list[int]:
    return [number for number, layer in enumerate(decoder.layers) if _projection_of(layer) is not None]


def output_projection(decoder: Decoder, layer: int) -> torch.nn.Module:
    if (found := _projection_of(decoder.layers[layer])) is not None:
        return found
    others = layers_with_projection(decoder)
    where = f"layers {', '.join(map(str, others))} have one" if others else "no other layer has one either"
    raise ModelError(
        f"layer {layer} of {decoder.name} (a {decoder.model.config.model_type}) has no output projection of "
        f"an attention ({', '.join(_PROJECTIONS)}), which contrast needs: {where}"
    )


def _projection_hook(
    decoder: Decoder,
    layer: int,
    last: torch.Tensor,
    change: Callable[[torch.Tensor, tuple[torch.Tensor, torch.Tensor]], torch.Tensor],
) -> Hook:
    """Change the input of a layer's output projection, given it and the index of the last tokens in it."""

    def hook(_: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        values = args[0]
        if values.ndim != 3 or len(values) != len(last):
            raise ModelError(
                f"an attention of this model projects values of shape {tuple(values.shape)}: contrast needs "
                "the shape (rows, tokens, heads * size)"
            )
        # A model may be spread over devices, so values are on the device of their layer.
        rows = torch.arange(len(values), device=values.device)
        return (change(values, (rows, last.to(values.device))), *args[1:])

    return output_projection(decoder, layer).register_forward_pre_hook, hook


@dataclass(frozen=True)
class PromptBatch:
    embeddings: torch.Tensor  # input of the first layer, shape (rows, tokens, d)
    mask: torch.Tensor  # 1 for a token, 0 for padding, shape (rows, past + tokens)
    positions: torch.Tensor  # not counting padding, shape (rows, tokens)
    first: torch.Tensor  # index of the first pooled token, shape (rows,)
    last: torch.Tensor  # index of the last pooled token, which is the last one of the prompt, shape (rows,)
    places: torch.Tensor  # index of the placeholder, shape (rows,)
    echoes: bool  # pool all tokens from first to last, rather than only the last
    prepending: TokenPrepending | None
    beside: dict[str, torch.Tensor] = field(default_factory=dict)  # see `Decoder.beside`
    contrast: Contrast | None = None
    # What the last tokens of the auxiliary prompts have attended to, shape (rows, heads * size).
    auxiliary: torch.Tensor | None = None

    def pool(self, states: torch.Tensor) -> torch.Tensor:
        first, last = self.first.to(states.device), self.last.to(states.device)
        if not self.echoes:
            return states[torch.arange(states.shape[0], device=states.device), last]
        slots = torch.arange(states.shape[1], device=states.device)[None]
        inside = ((slots >= first[:, None]) & (slots <= last[:, None]))[..., None]
        return torch.where(inside, states, 0).sum(1) / inside.sum(1)

    def inputs(self, decoder: Decoder, cache: Any) -> dict[str, Any]:
        inputs: dict[str, Any] = {"inputs_embeds": self.embeddings, "attention_mask": self.mask}
        inputs |= {"use_cache": cache is not None, **self.beside}
        if decoder.takes_positions:
            inputs["position_ids"] = self.positions
        return inputs if cache is None else inputs | {"past_key_values": cache}


class _ReachedError(Exception):
    """Stops a forward pass after the last requested layer."""


def pooled_states(
    decoder: Decoder, batch: PromptBatch, numbers: Sequence[int], cache: Any = None
) -> torch.Tensor:
    found = prompt_states(decoder, batch, numbers, batch.pool, cache)
    device = found[max(numbers)].device
    return torch.stack([found[number].to(device) for number in numbers], dim=1)


def prompt_states(
    decoder: Decoder,
    batch: PromptBatch,
    numbers: Sequence[int],
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    cache: Any = None,
) -> dict[int, torch.Tensor]:
    hooks: list[Hook] = []
    span, settings, auxiliary, heads = batch.prepending, batch.contrast, batch.auxiliary, 1

    def overwrite(
        _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        states = _layer_input(args, kwargs)
        # A model may be spread over devices, so states are on the device of their layer.
        rows, device = torch.arange(states.shape[0], device=states.device), states.device
        # Copy, so that states recorded elsewhere do not change.
        changed = states.clone()
        changed[rows, batch.places.to(device)] = states[rows, batch.last.to(device)]
        if args:
            return (changed, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": changed}

    if span is not None:
        layers = decoder.layers[span.start : span.exit]
        hooks += [(partial(each.register_forward_pre_hook, with_kwargs=True), overwrite) for each in layers]
    if settings is not None and auxiliary is not None:
        if settings.rule is ContrastRule.SUB_HEAD_NORM:
            heads, width = getattr(decoder.model.config, "num_attention_heads", 0), auxiliary.shape[-1]
            if not isinstance(heads, int) or heads < 1 or width % heads:
                raise ModelError(
                    f"{decoder.name} has {heads} attention heads for values of width {width}: the contrast "
                    f"rule {ContrastRule.SUB_HEAD_NORM} needs heads of equal size, so use another rule"
                )

        def replace(values: torch.Tensor, ends: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            changed = values.clone()
            changed[ends] = contrasted(values[ends], auxiliary.to(values), settings, heads)
            return changed

        hooks.append(_projection_hook(decoder, settings.layer, batch.last, replace))
    return states_after(decoder, numbers, batch.inputs(decoder, cache), keep, hooks)


def attended_values(decoder: Decoder, batch: PromptBatch, layer: int, cache: Any = None) -> torch.Tensor:
    found: list[torch.Tensor] = []

    def keep(values: torch.Tensor, ends: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        found.append(values[ends])
        raise _ReachedError

    with _hooked([_projection_hook(decoder, layer, batch.last, keep)]), suppress(_ReachedError):
        decoder.model(**batch.inputs(decoder, cache))
    if not found:
        raise ModelError(
            f"{decoder.name} does not call the output projection of layer {layer} as a module, so contrast "
            "cannot change its input: leave out contrast"
        )
    return found[0]


def states_after(
    decoder: Decoder,
    numbers: Sequence[int],
    inputs: dict[str, Any],
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    hooks: Iterable[Hook] = (),
) -> dict[int, torch.Tensor]:
    # Those after all layers include the final norm; others are the raw residual stream.
    found: dict[int, torch.Tensor] = {}
    top, layers = max(numbers), decoder.layers

    def record(number: int, _: torch.nn.Module, __: tuple[Any, ...], output: Any) -> None:
        found[number] = keep(_states(output))
        if number == top:
            raise _ReachedError

    def record_input(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found[0] = keep(_layer_input(args, kwargs))

    inner = [number for number in numbers if 0 < number < len(layers)]
    recorded: list[Hook] = [(layers[k - 1].register_forward_hook, partial(record, k)) for k in inner]
    if 0 in numbers:
        recorded.append((partial(layers[0].register_forward_pre_hook, with_kwargs=True), record_input))
    with _hooked([*hooks, *recorded]), suppress(_ReachedError):
        found[len(layers)] = keep(decoder.model(**inputs).last_hidden_state)
    return found


# Rows of the embedding sampled for the norm of the placeholder's vector.
_SAMPLED_ROWS = 1024
# Sentences that both prompts of contrast must split alike; some may merge with quotation marks.
_ALIKE = ("a", "The dog's bird", "7 I?", "'we'", "")


class PromptRow(NamedTuple):
    prompt: int  # its index
    content: Ids  # of a sentence in it


@dataclass(frozen=True)
class Reading:
    prompt: prompts.Prompt
    prepending: TokenPrepending | None
    layer: int  # an index into the embedding and the outputs of all layers; -1 is after the final norm
    contrast: Contrast | None = None

    def __post_init__(self) -> None:
        if self.prompt.echoes and self.prepending is not None:
            raise InputError(
                "an echo prompt already shows the whole sentence to every token: leave out token prepending"
            )
        if self.prompt.echoes and self.contrast is not None:
            raise InputError(
                "an echo prompt reads every token of the sentence, and contrast changes only the last token "
                "of a prompt: leave out contrast"
            )
        if self.contrast is not None and not self.prompt.quoted:
            raise InputError(
                f"contrast needs a prompt that quotes the sentence as its auxiliary prompt does: write "
                f'"{prompts.SENTENCE}" with the quotation marks'
            )

    @property
    def options(self) -> dict[str, Any]:
        prompt, span, contrast = self.prompt, self.prepending, self.contrast
        found: dict[str, Any] = {
            "prompt": prompt.name if prompt.name in prompts.PROMPTS else prompt.templates[0],
            "token_prepending": span is not None,
            **{name: getattr(span, name, None) for name in ("start", "exit")},
            "layer": self.layer,
        }
        if contrast is None:
            return found  # as earlier releases saved it, and can load it
        return found | {
            "contrast": True,
            "contrast_layer": contrast.layer,
            "contrast_strength": contrast.strength,
            "contrast_rule": str(contrast.rule),
        }


Features = dict[str, Any]
# Index tensors of filled prompts, by their names in sentence-transformers.
_LAYOUT = ("input_ids", "attention_mask", "position_ids", "prompt_slots")


class PromptedModel:
    def __init__(
        self, decoder: Decoder, reading: Reading, own: prompts.OwnTokenizer, *, attends: bool = False
    ) -> None:
        # An auxiliary model is read where the last layer that runs projects its attention.
        self.attends = attends
        self.decoder, self.reading, name = decoder, reading, decoder.name
        self.number = decoder.layer_number(reading.layer)  # how many layers run
        prepending, contrast, count = reading.prepending, reading.contrast, len(decoder.layers)
        if prepending is not None and prepending.start >= count:
            raise InputError(
                f"start is {prepending.start}, but {name} has {count} layers: pass 0 to {count - 1}"
            )
        self.padding_id, self.placeholder_id = own.padding_id, own.placeholder_id
        self._texts = prompts.PromptTokenizer(
            own.tokenizer, own.special, reading.prompt, prepending=prepending is not None
        )
        self.prompts = self._texts.prompts
        self.auxiliary: PromptedModel | None = None
        if contrast is None:
            return
        wanted = f"the contrast layer is {contrast.layer}"
        if contrast.layer >= count:
            raise InputError(f"{wanted}, but {name} has {count} layers: pass 0 to {count - 1}")
        if contrast.layer >= self.number:
            raise InputError(
                f"{wanted}, counted from 0, but vectors of {name} are read after {self.number} layers, so "
                f"nothing would change: pass 0 to {self.number - 1}, or read a later layer"
            )
        output_projection(decoder, contrast.layer)
        auxiliary = Reading(prompts.AUXILIARY, None, contrast.layer + 1)
        self.auxiliary = PromptedModel(decoder, auxiliary, own, attends=True)
        if [text.ids for text in self.tokenize(_ALIKE)] != [
            text.ids for text in self.auxiliary.tokenize(_ALIKE)
        ]:
            raise InputError(
                f"the tokenizer of {name} splits a sentence in this prompt in another way than in the "
                f'auxiliary prompt of contrast: write "{prompts.SENTENCE}" with a space on both sides'
            )

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        sentences = [" ".join(text.split()) for text in texts]
        if self.reading.prompt.quoted:
            sentences = [prompts.clean_sentence(sentence) for sentence in sentences]
        return self._texts.tokenize(sentences)

    def rows(self, contents: Sequence[Ids]) -> list[PromptRow]:
        return [PromptRow(prompt, content) for content in contents for prompt in range(len(self.prompts))]

    def length(self, content: int) -> int:
        longest = max(prompt.length(content) for prompt in self.prompts)
        return longest if self.auxiliary is None else max(longest, self.auxiliary.length(content))

    def knows(self, token_id: int) -> bool:
        return 0 <= token_id < self.decoder.rows or token_id == self.placeholder_id

    @cached_property
    def placeholder(self) -> torch.Tensor | None:
        """The placeholder's vector if the embedding has no row for it."""
        rows, device = self.decoder.rows, self.decoder.device
        if self.placeholder_id is None or self.placeholder_id < rows:
            return None  # a row that the matrix has is its vector, as in the published code
        sampled = torch.arange(0, rows, max(1, rows // _SAMPLED_ROWS), device=device)
        with torch.inference_mode():
            scale = self.decoder.embedding(sampled).float().square().mean().sqrt().item()
            size = self.decoder.embedding(sampled[:1]).shape[-1]
        # Of the mean norm of embedded tokens; any other will do (Fu et al., table 4).
        drawn = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
        return torch.from_numpy(drawn * np.float32(scale))

    def forget(self) -> None:
        vars(self).pop("placeholder", None)
        if self.auxiliary is not None:
            self.auxiliary.forget()

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        vector = self.placeholder
        if vector is None:
            embedded: torch.Tensor = self.decoder.embedding(ids)
            return embedded
        placed = torch.eq(ids, self.placeholder_id or 0)
        embedded = self.decoder.embedding(ids.masked_fill(placed, 0))
        return torch.where(placed[..., None], vector.to(embedded), embedded)

    def layout(self, rows: Sequence[PromptRow], *, skipping: bool = False) -> Features:
        filled, past, slots = [], [], []
        for number, content in rows:
            prompt = self.prompts[number]
            length, skipped = prompt.length(len(content)), prompt.fixed if skipping else 0
            filled.append(prompt.fill(content)[skipped:])
            past.append(skipped)
            place = 0 if prompt.place is None else prompt.place % length
            # Counted from the end, where padding and skipped tokens do not matter.
            slots.append([each - length for each in (*prompt.pooled(len(content)), place)])
        return _padded(filled, past, slots)

    def batch(
        self, layout: Features, past: torch.Tensor | None = None, auxiliary: torch.Tensor | None = None
    ) -> PromptBatch:
        device = self.decoder.device
        ids, mask, positions, slots = (layout[key].to(device) for key in _LAYOUT)
        first, last, places = slots.unbind(dim=1)
        return PromptBatch(
            embeddings=self.embed(ids),
            mask=mask if past is None else torch.cat([past.to(device), mask], dim=1),
            positions=positions,
            first=first,
            last=last,
            places=places,
            echoes=self.reading.prompt.echoes,
            prepending=self.reading.prepending,
            # A placeholder without a row gets the further inputs of token 0.
            beside=self.decoder.beside(ids.masked_fill(ids >= self.decoder.rows, 0)),
            contrast=self.reading.contrast,
            auxiliary=auxiliary,
        )

    def attended(self, batch: PromptBatch, cache: Any = None) -> torch.Tensor:
        return attended_values(self.decoder, batch, self.number - 1, cache)


def _padded(filled: Sequence[Ids], past: Sequence[int], slots: Sequence[Sequence[int]]) -> Features:
    width = max(map(len, filled))
    ids = torch.tensor([(0,) * (width - len(row)) + tuple(row) for row in filled], dtype=torch.long)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in filled], dtype=torch.long)
    positions = (mask.cumsum(1) - 1).clamp(min=0) + torch.tensor(past)[:, None]
    return dict(zip(_LAYOUT, (ids, mask, positions, torch.tensor(slots) + width), strict=True))


class FixedBeginnings:
    """The tokens of each prompt before the placeholder or the sentence, whose states nothing changes."""

    def __init__(self, model: PromptedModel, numbers: Sequence[int]) -> None:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        # Kinds whose only per-row contents are keys and values.
        self._plain = (DynamicLayer, DynamicSlidingWindowLayer)
        rows = [prompt.before[: prompt.fixed] for prompt in model.prompts]
        batch = model.batch(_padded(rows, [0] * len(rows), [[-1, -1, -1]] * len(rows)))
        batch = replace(batch, prepending=None)
        self.mask = batch.mask
        self._cache: Any = DynamicCache(config=model.decoder.model.config)
        pooled_states(model.decoder, batch, numbers, self._cache)

    def cache(self, rows: torch.Tensor) -> Any:
        found = copy.copy(self._cache)
        # A cache grows by allocating new tensors; it never writes to those of the beginning.
        found.layers = [copy.copy(layer) for layer in self._cache.layers]
        if len(self.mask) > 1 or any(type(layer) not in self._plain for layer in found.layers):
            found.batch_select_indices(rows.to(self.mask.device))
            return found
        for layer in found.layers:
            if layer.get_seq_length():
                layer.keys = layer.keys.expand(len(rows), -1, -1, -1)
                layer.values = layer.values.expand(len(rows), -1, -1, -1)
        return found
