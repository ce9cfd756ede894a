"""A decoder-only language model as a sentence encoder, through a prompt."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.detection.precision import Precision
from stickytoken.encoders.batching import equal_length_batches
from stickytoken.encoders.borrowing import bounded_memory, evaluating
from stickytoken.encoders.fingerprint import config_of, weights_fingerprint
from stickytoken.encoders.fixed_beginning import FixedBeginnings
from stickytoken.encoders.layer_states import pooled_states
from stickytoken.encoders.lengths import context_length
from stickytoken.encoders.packed_linear import PackedLinears
from stickytoken.encoders.prompt_vocabulary import PromptVocabulary
from stickytoken.encoders.prompted_model import PromptedModel, PromptRow, Reading
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.vector_checks import require_usable, shown
from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import TokenizedText

_LOG = logging.getLogger(__name__)
# On a 12-layer, 384-wide Qwen2 and one core, larger batches take up to a quarter longer: no cache holds them.
_TOKEN_BUDGET = {"cpu": 1024}
_ACCELERATOR_TOKEN_BUDGET = 65536
# Reuse pays where the fixed beginnings are at least this share of all tokens, and for so many rows a prompt.
_LEAST_SHARE, _LEAST_ROWS = 0.25, 4
# Difference from the plain path, as a share of a vector's length, up to which reuse counts as equal.
_REUSE_TOLERANCE = 1e-4

# A model has one state, whoever encodes with it: one call at a time.
_LOCKS: weakref.WeakKeyDictionary[torch.nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()


class CausalPromptEncoder:
    """Encodes sentences by the state of a prompt's last token. The model is left as it was.

    Args:
        model: a decoder-only transformers model, with or without a head.
        tokenizer: its transformers tokenizer.
        name: how messages call it.
        reading: prompt, layers to overwrite, layer to read.
        token_budget: tokens of a batch; None chooses by device.
        max_length: longest prompt in tokens, sentence included; None is the model's own.
        reuse: compute what prompts begin with once.
        normalize: give vectors of length 1.

    Raises:
        ModelError: a model of another kind.
        InputError: a layer that does not exist, or a longest prompt that cannot be.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        reading: Reading,
        *,
        token_budget: int | None = None,
        max_length: int | None = None,
        reuse: bool = True,
        normalize: bool = False,
    ) -> None:
        self.name = name
        self._normalize = normalize
        self._prompted = PromptedModel(model, tokenizer, name, reading)
        self._model = model
        self._user_tokenizer = tokenizer
        self._entries = PromptVocabulary(HuggingFaceTokenizer(tokenizer), quoted=reading.prompt.quoted)
        self._max_length = context_length(
            self._prompted.decoder.model, tokenizer, max_length, name, taken=self._prompted.length(0)
        )
        self._asked_length = max_length
        budget = token_budget or _TOKEN_BUDGET.get(
            self._prompted.decoder.device.type, _ACCELERATOR_TOKEN_BUDGET
        )
        self._token_budget = budget
        self._wants_reuse = reuse

    @property
    def reading(self) -> Reading:
        """Prompt, layers to overwrite, layer to read."""
        return self._prompted.reading

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return len(self._prompted.decoder.layers)

    @property
    def device(self) -> str:
        """Where the model reads its input."""
        return str(self._prompted.decoder.device)

    @property
    def tokenizer(self) -> PromptVocabulary:
        """The tokenizer, for the vocabulary: what a token becomes inside a sentence of the prompt."""
        return self._entries

    @property
    def parameters(self) -> int:
        """Number of parameters of the model, without its head."""
        return sum(parameter.numel() for parameter in self._prompted.decoder.model.parameters())

    @cached_property
    def dimension(self) -> int:
        """Components of a vector, read off the vector of one token."""
        with self._borrowed():
            return int(self._forward([PromptRow(0, (0,))], None, [self._prompted.number]).shape[-1])

    @cached_property
    def identity(self) -> EncoderIdentity:
        """What can change the vectors."""
        reading, placeholder = self.reading, self._prompted.placeholder
        prepending = reading.prepending
        description = {
            "model": type(self._prompted.decoder.model).__name__,
            "config": config_of(self._prompted.decoder.model),
            "layer": self._prompted.number,
            "normalize": self._normalize,
            "prepending": None
            if prepending is None
            else [prepending.start, min(prepending.exit, self.layers)],
            "placeholder": None
            if placeholder is None
            else hashlib.sha256(placeholder.numpy().tobytes()).hexdigest(),
        }
        templates = [
            reading.prompt.pieces(each, prepending=prepending is not None)
            for each in reading.prompt.templates
        ]
        return EncoderIdentity(
            weights=weights_fingerprint(self._prompted.decoder.model),
            tokenizer=self._entries.fingerprint,
            modules=hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest(),
            prompt=json.dumps(templates),
            dtype=str(self._prompted.decoder.dtype).removeprefix("torch."),
            max_length=self._max_length,
            dimension=self.dimension,
        )

    def reread(self, reading: Reading) -> CausalPromptEncoder:
        """The same model, read in another way."""
        found = CausalPromptEncoder(
            self._model,
            self._user_tokenizer,
            self.name,
            reading,
            token_budget=self._token_budget,
            max_length=self._asked_length,
            reuse=self._wants_reuse,
            normalize=self._normalize,
        )
        if self._prompted.decoder.device.type == "cpu":
            vars(found)["_packed"] = self._packed  # weights are packed once
        return found

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Content ids of each text, as they stand in the prompt.

        Nothing of the template is among them but quotation marks that share a token with the sentence.
        """
        found: list[TokenizedText] = self._prompted.tokenize(texts)
        return found

    def at(self, precision: Precision | None) -> CausalPromptEncoder:
        """Itself: a prompted language model has no lower precision; see `Encoder.at`."""
        if precision is not None:
            raise InputError(
                f"{self.name} is read through a prompt and computes in its own precision alone: "
                f"leave the precision {precision} out"
            )
        return self

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Content ids of each text, cleaned, as they stand in the prompt."""
        return [list(text.ids) for text in self.tokenize(texts)]

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether the model reads these ids whole, the prompt around them, and embeds all of them."""
        short = self._max_length is None or self._prompted.length(len(ids)) <= self._max_length
        return short and all(
            self._prompted.knows(token_id) for token_id in (min(ids, default=0), max(ids, default=0))
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts, cleaned and put into the prompt; see `Encoder.encode`."""
        if isinstance(texts, str):
            raise InputError(f"encode takes a list of texts, got the text {shown(texts)}: put it into a list")
        return self._encode(self.content_ids(texts), texts, allow_zero=False)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode lists of content ids, put into the prompt; see `Encoder.encode_ids`."""
        return self._encode(ids, None, allow_zero=allow_zero)

    def encode_layers(self, texts: Sequence[str], layers: Sequence[int]) -> NDArray[np.float32]:
        """Vectors from several layers at once, for the price of one pass.

        Args:
            texts: n texts.
            layers: distinct layers, as `Reading.layer`.

        Returns:
            float32 array of shape (n, layers, d).
        """
        numbers = [self._prompted.decoder.layer_number(layer) for layer in layers]
        contents = [text.ids for text in self.tokenize(texts)]
        for row, content in enumerate(contents):
            self._check_input(content, partial(shown, texts[row]))
        return self._forward_all(contents, numbers)

    def _encode(
        self, ids: Sequence[Sequence[int]], texts: Sequence[str] | None, *, allow_zero: bool
    ) -> NDArray[np.float32]:
        # Equal inputs share one row: less work, and exactly equal vectors.
        rows: dict[tuple[int, ...], int] = {}
        places = [rows.setdefault(tuple(content), len(rows)) for content in ids]
        contents = list(rows)
        first = dict(zip(reversed(places), reversed(range(len(places))), strict=True))

        def label(row: int) -> str:
            return shown(texts[first[row]] if texts else self._entries.decode_many([contents[row]])[0])

        for row, content in enumerate(contents):
            self._check_input(content, partial(label, row))
        vectors = self._forward_all(contents, [self._prompted.number])[:, 0]
        require_usable(vectors, self.name, label, allow_zero=allow_zero)
        if self._normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
        return vectors[places]

    def _forward_all(
        self, contents: Sequence[tuple[int, ...]], numbers: Sequence[int]
    ) -> NDArray[np.float32]:
        if not contents:
            return np.empty((0, len(numbers), self.dimension), np.float32)
        rows = self._prompted.rows(contents)
        with self._borrowed():
            beginnings = FixedBeginnings(self._prompted, numbers) if self._reuses(rows) else None
            found = self._forward_batches(rows, beginnings, numbers)
        # MetaEOL: the plain mean over its prompts.
        means: NDArray[np.float32] = found.reshape(len(contents), -1, *found.shape[1:]).mean(axis=1)
        return means

    def _reuses(self, rows: Sequence[PromptRow]) -> bool:
        prompts = self._prompted.prompts
        if not self._wants_reuse or len(rows) < _LEAST_ROWS * len(prompts):
            return False
        fixed = sum(prompts[row.prompt].fixed for row in rows)
        whole = sum(prompts[row.prompt].length(len(row.content)) for row in rows)
        return fixed >= _LEAST_SHARE * whole and self._reuse_agrees

    @cached_property
    def _reuse_agrees(self) -> bool:
        """Whether reuse gives the vectors of the plain path: a model may keep more than keys and values."""
        rows = self._prompted.rows([text.ids for text in self.tokenize(["a", "one two three"])])
        numbers = [self._prompted.number]
        plain = self._forward_batches(rows, None, numbers)
        try:
            found = self._forward_batches(rows, FixedBeginnings(self._prompted, numbers), numbers)
        except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
            _LOG.warning("%s: no reuse of what prompts begin with (%s)", self.name, error)
            return False
        precision = torch.finfo(self._prompted.decoder.dtype).eps
        tolerance = max(_REUSE_TOLERANCE, 4 * precision) * np.linalg.norm(plain, axis=-1).max()
        return bool(np.abs(found - plain).max() <= tolerance)

    def _forward_batches(
        self, rows: Sequence[PromptRow], beginnings: FixedBeginnings | None, numbers: Sequence[int]
    ) -> NDArray[np.float32]:
        prompts, known = self._prompted.prompts, beginnings is not None
        lengths = [
            prompts[row.prompt].length(len(row.content)) - (prompts[row.prompt].fixed if known else 0)
            for row in rows
        ]
        batches = equal_length_batches(lengths, self._token_budget)[::-1]
        vectors: NDArray[np.float32] | None = None
        while batches:
            batch = batches.pop()
            try:
                found = self._forward([rows[place] for place in batch], beginnings, numbers)
            except torch.OutOfMemoryError as error:
                if len(batch) == 1:
                    raise EncodingError(
                        f"{self.name}: {self.device} has no memory for a prompt of {lengths[batch[0]]} "
                        f"tokens: use shorter sentences, a lower precision or another device"
                    ) from error
                self._token_budget = max(1, len(batch) * lengths[batch[0]] // 2)
                torch.cuda.empty_cache()
                _LOG.warning("%s: out of memory on %s, going on with smaller batches", self.name, self.device)
                batches.extend(np.array_split(batch, 2)[::-1])
                continue
            if vectors is None:
                vectors = np.empty((len(rows), *found.shape[1:]), dtype=np.float32)
            vectors[batch] = found
        return np.empty((0, len(numbers), 0), np.float32) if vectors is None else vectors

    def _forward(
        self, rows: Sequence[PromptRow], beginnings: FixedBeginnings | None, numbers: Sequence[int]
    ) -> NDArray[np.float32]:
        past = cache = None
        if beginnings is not None:
            prompts = torch.tensor([row.prompt for row in rows], device=beginnings.mask.device)
            past, cache = beginnings.mask[prompts], beginnings.cache(prompts)
        batch = self._prompted.batch(self._prompted.layout(rows, skipping=beginnings is not None), past)
        states = pooled_states(self._prompted.decoder, batch, numbers, self.reading.prepending, cache)
        array: NDArray[np.float32] = states.float().cpu().numpy()
        return array

    @cached_property
    def _packed(self) -> PackedLinears:
        return PackedLinears(self._prompted.decoder.model)

    def _borrowed(self) -> ExitStack:
        """The model for one call: alone, in evaluation mode, with packed linear layers on a CPU."""
        model = self._prompted.decoder.model
        with _LOCKS_GUARD:
            lock = _LOCKS.setdefault(model, threading.RLock())
        with ExitStack() as stack:
            stack.enter_context(lock)
            stack.enter_context(evaluating(model))
            stack.enter_context(torch.inference_mode())
            stack.enter_context(bounded_memory(model))
            if self._prompted.decoder.device.type == "cpu":
                stack.enter_context(self._packed.active())
            return stack.pop_all()

    def _check_input(self, content: tuple[int, ...], label: Callable[[], str]) -> None:
        strange = next((each for each in content if not self._prompted.knows(each)), None)
        if strange is not None:
            raise EncodingError(
                f"{self.name}: a text has token id {strange}, "
                f"but the model embeds only ids from 0 to {self._prompted.decoder.rows - 1}"
            )
        if not content and self.reading.prompt.echoes:
            raise EncodingError(
                f"{self.name}: the text {label()} has no tokens, and an echo reads nothing else"
            )
        if not self.fits(content):
            raise EncodingError(
                f"{self.name}: the text {label()} makes a prompt of {self._prompted.length(len(content))} "
                f"tokens, the model reads {self._max_length}: use shorter sentences or fewer copies"
            )
