"""A SentenceTransformer as an encoder: equal-length batches through all its modules."""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.batching import equal_length_batches
from stickytoken.encoders.fingerprint import modules_fingerprint, weights_fingerprint
from stickytoken.encoders.lengths import maximum_length, set_maximum_length
from stickytoken.encoders.packed_linear import PackedLinears
from stickytoken.encoders.prefix_reuse import PrefixReuse
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.encoders.template import read_template
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LOG = logging.getLogger(__name__)

# On all-MiniLM-L6-v2 and 2 cores, throughput is flat from 2048 tokens a batch on.
_TOKEN_BUDGET = {"cpu": 4096}
_ACCELERATOR_TOKEN_BUDGET = 65536
_SHOWN_CHARACTERS = 80
# Difference from the plain path, as a share of a vector's length, up to which reuse counts as equal.
_REUSE_TOLERANCE = 1e-4


class SentenceTransformerEncoder:
    """Encodes through a loaded SentenceTransformer, which is left as it was.

    Args:
        model: the model, on its device.
        name: how messages call it.
        prompt: text put in front of every input; None is the model's default prompt.
        token_budget: tokens of a batch; None chooses by device.
        max_length: the model's longest input from now on; None leaves it as it is.
        reuse: compute common beginnings once where the model allows it.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        *,
        prompt: str | None = None,
        token_budget: int | None = None,
        max_length: int | None = None,
        reuse: bool = True,
    ) -> None:
        if len(model) == 0 or getattr(model, "tokenizer", None) is None:
            raise ModelError(f"{name}: the model has no tokenizer, so it does not read text")
        self.name = name
        self.prompt = _default_prompt(model) if prompt is None else prompt
        self._model = model
        self._wants_reuse = reuse
        try:
            self._tokenizer = HuggingFaceTokenizer(model.tokenizer)
        except ModelError as error:
            raise ModelError(f"{name!r} holds no tokenizer that can be used: {error}") from error
        self._template = read_template(model, self._tokenizer, self.prompt, name)
        if max_length is not None:
            taken = self._template.overhead + len(self._tokenizer.encode_many([self.prompt])[0])
            set_maximum_length(model, max_length, name, taken=taken)
        self._max_length = maximum_length(model)
        self._rows = _embedding_rows(model)
        device = torch.device(model.device)
        self._token_budget = token_budget or _TOKEN_BUDGET.get(device.type, _ACCELERATOR_TOKEN_BUDGET)

    @property
    def device(self) -> str:
        """Where the model computes."""
        return str(self._model.device)

    @property
    def tokenizer(self) -> HuggingFaceTokenizer:
        """The tokenizer, for the vocabulary."""
        return self._tokenizer

    @property
    def sentence_transformer(self) -> SentenceTransformer:
        """The model itself."""
        return self._model

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @cached_property
    def identity(self) -> EncoderIdentity:
        """What can change the vectors."""
        return EncoderIdentity(
            weights=weights_fingerprint(self._model),
            tokenizer=self._tokenizer.fingerprint,
            modules=modules_fingerprint(self._model),
            prompt=self.prompt,
            dtype=str(next(self._model.parameters()).dtype).removeprefix("torch."),
            max_length=self._max_length,
            dimension=self.dimension,
        )

    @cached_property
    def dimension(self) -> int:
        """Components of a vector, read off the vector of one token."""
        entry = next(token_id for token_id in self._tokenizer.entries if token_id < (self._rows or math.inf))
        with _evaluating(self._model), torch.inference_mode():
            return int(self._forward([(entry,)]).shape[1])

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Content ids of each text (prompt in the head), without special tokens."""
        return self._tokenizer.tokenize(texts, self.prompt)

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether the model reads these ids whole, special tokens added, and has rows for all of them."""
        short = self._max_length is None or len(ids) + self._template.overhead <= self._max_length
        return short and (self._rows is None or max(ids, default=0) < self._rows)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts, the prompt put in front; see `Encoder.encode`."""
        if isinstance(texts, str):
            raise InputError(
                f"encode takes a list of texts, got the text {_shown(texts)}: put it into a list"
            )
        ids = self._tokenizer.encode_many([self.prompt + text for text in texts])
        return self._encode(ids, texts, allow_zero=False)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode lists of content ids; see `Encoder.encode_ids`."""
        return self._encode(ids, None, allow_zero=allow_zero)

    def _encode(
        self, ids: Sequence[Sequence[int]], texts: Sequence[str] | None, *, allow_zero: bool
    ) -> NDArray[np.float32]:
        # Equal inputs share one row: less work, and exactly equal vectors.
        rows: dict[tuple[int, ...], int] = {}
        places = [rows.setdefault(tuple(content), len(rows)) for content in ids]
        contents = list(rows)
        first = dict(zip(reversed(places), reversed(range(len(places))), strict=True))

        def label(row: int) -> str:
            return _shown(texts[first[row]] if texts else self._tokenizer.decode_many([contents[row]])[0])

        for row, content in enumerate(contents):
            self._check_input(content, row, label)
        vectors = self._forward_all(contents)
        self._check_vectors(vectors, label, allow_zero=allow_zero)
        return vectors[places]

    @cached_property
    def _reuse(self) -> PrefixReuse | None:
        """Reuse of common beginnings, where the kind of model allows it."""
        applies = self._wants_reuse and PrefixReuse.applies_to(self._model, self._template)
        return PrefixReuse(self._model, self._template, self._token_budget) if applies else None

    @cached_property
    def _reuse_agrees(self) -> bool:
        """Whether reuse gives the vectors of the plain path on a few inputs.

        A model can be of a causal kind and yet look both ways.
        """
        usable = (entry for entry in self._tokenizer.entries if entry < (self._rows or math.inf))
        *carrier, other, token = itertools.islice(usable, 5)
        samples = [
            content
            for count in (1, 2, 3)
            for content in (
                (*carrier, *(token,) * count),
                (*carrier, *(other,) * count),
                (*(token,) * count, *carrier),
            )
        ]
        if self._reuse is None or not all(self.fits(content) for content in samples):
            return False
        roots = self._reuse.trees(samples)
        if roots is None:
            return False
        found, plain = self._reuse.vectors(roots, len(samples)), self._forward_batches(samples)
        precision = torch.finfo(next(self._model.parameters()).dtype).eps
        tolerance = max(_REUSE_TOLERANCE, 4 * precision) * np.linalg.norm(plain, axis=1).max()
        return bool(np.abs(found - plain).max() <= tolerance)

    def _forward_all(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        with _evaluating(self._model), torch.inference_mode(), _bounded_memory(self._model), self._fast():
            if self._reuse is not None and (roots := self._reuse.trees(contents)) and self._reuse_agrees:
                try:
                    return self._reuse.vectors(roots, len(contents))
                except torch.OutOfMemoryError:
                    # Keys and values need memory of their own; the plain path can do with less.
                    self._reuse = None
                    _LOG.warning("%s: out of memory on %s, going on without reuse", self.name, self.device)
            return self._forward_batches(contents)

    @cached_property
    def _packed(self) -> PackedLinears:
        return PackedLinears(self._model)

    def _fast(self) -> AbstractContextManager[None]:
        """Packed linear layers, where the model computes on a CPU."""
        return self._packed.active() if self._model.device.type == "cpu" else nullcontext()

    def _forward_batches(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        lengths = [len(content) + self._template.overhead for content in contents]
        batches = deque(equal_length_batches(lengths, self._token_budget))
        vectors: NDArray[np.float32] | None = None
        while batches:
            batch = batches.popleft()
            try:
                found = self._forward([contents[row] for row in batch])
            except torch.OutOfMemoryError as error:
                if len(batch) == 1:
                    raise EncodingError(
                        f"{self.name}: {self.device} has no memory for a text of {lengths[batch[0]]} tokens: "
                        "use shorter sentences, a lower precision or another device"
                    ) from error
                self._shrink_batches(len(batch) * lengths[batch[0]] // 2)
                batches.extendleft(reversed(np.array_split(batch, 2)))
                continue
            if vectors is None:
                vectors = np.empty((len(contents), found.shape[1]), dtype=np.float32)
            vectors[batch] = found
        return np.empty((0, self.dimension), np.float32) if vectors is None else vectors

    def _shrink_batches(self, token_budget: int) -> None:
        self._token_budget = token_budget
        torch.cuda.empty_cache()
        _LOG.warning(
            "%s: out of memory on %s, going on with batches of at most %d tokens",
            self.name,
            self.device,
            self._token_budget,
        )

    def _forward(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        features = self._features(contents)
        found = self._model(features)["sentence_embedding"].float()
        if self._model.truncate_dim is not None:
            found = found[:, : self._model.truncate_dim]
        array: NDArray[np.float32] = found.cpu().numpy()
        return array

    def _features(self, contents: Sequence[tuple[int, ...]]) -> dict[str, Any]:
        """Model input for contents of one length."""
        template, device = self._template, self._model.device
        rows = [[*template.before, *content, *template.after] for content in contents]
        ids = torch.tensor(rows, dtype=torch.long, device=device)
        features: dict[str, Any] = dict(template.features)
        if template.flat:
            features["input_ids"] = ids.reshape(-1)
            features["offsets"] = torch.arange(0, ids.numel(), ids.shape[1], device=device)
            return features
        features["input_ids"] = ids
        features["attention_mask"] = torch.ones_like(ids)
        if template.token_types is not None:
            before, content, after = template.token_types
            types = [*before, *[content] * len(contents[0]), *after]
            features["token_type_ids"] = torch.tensor(types, device=device).expand_as(ids)
        return features

    def _check_input(self, content: tuple[int, ...], row: int, label: Any) -> None:
        length = len(content) + self._template.overhead
        if length == 0:
            raise EncodingError(f"{self.name}: the text {label(row)} has no tokens")
        if min(content, default=0) < 0:
            raise EncodingError(f"{self.name}: {min(content)} is no token id")
        if self._rows is not None and max(content, default=0) >= self._rows:
            raise EncodingError(
                f"{self.name}: the text {label(row)} has token id {max(content)}, "
                f"but the model embeds only ids below {self._rows}"
            )
        if not self.fits(content):
            raise EncodingError(
                f"{self.name}: the text {label(row)} has {length} tokens, the model reads "
                f"{self._max_length}: use shorter sentences or fewer copies"
            )

    def _check_vectors(self, vectors: NDArray[np.float32], label: Any, *, allow_zero: bool) -> None:
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise EncodingError(
                f"{self.name}: the vector of the text {label(row)} is not finite: "
                "the weights are damaged or the precision is too low"
            )
        if not allow_zero and not (nonzero := vectors.any(axis=1)).all():
            row = int(np.flatnonzero(~nonzero)[0])
            raise EncodingError(
                f"{self.name}: the vector of the text {label(row)} is zero: it has no similarity to anything"
            )


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout off, and back on for the modules that had it on."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _bounded_memory(model: torch.nn.Module) -> Iterator[None]:
    """Keep torch from choosing oneDNN for float32 on a CPU; packed layers call it with few shapes.

    oneDNN keeps a kernel with its buffers for every shape of batch, up to a thousand. Lengths and
    batch sizes vary here, so the process grew to 2.7 GB on all-MiniLM-L6-v2; without it, it stays at
    0.9 GB. For bfloat16, oneDNN has the only fast kernels.
    """
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        yield
        return
    unchanged = {"deterministic": None, "allow_tf32": None, "fp32_precision": None}
    with torch.backends.mkldnn.flags(enabled=False, **unchanged):
        yield


def _default_prompt(model: SentenceTransformer) -> str:
    name = model.default_prompt_name
    return "" if name is None else str(model.prompts.get(name) or "")


def _embedding_rows(model: SentenceTransformer) -> int | None:
    module: Any = model[0]
    if hasattr(module, "num_embeddings"):
        return int(module.num_embeddings)
    backbone = getattr(module, "model", None)
    if backbone is None or not hasattr(backbone, "get_input_embeddings"):
        return None
    return getattr(backbone.get_input_embeddings(), "num_embeddings", None)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
