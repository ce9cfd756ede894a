"""A decoder-only language model as a sentence encoder, through a prompt."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.arithmetic import ROUNDING, Arithmetic, arithmetic, require_precision
from stickytoken.encoders.checks import require_list, require_usable, shown
from stickytoken.encoders.cpu.calibration import calibration_inputs, require_agreement
from stickytoken.encoders.fingerprint import config_of, weights_fingerprint
from stickytoken.encoders.lengths import context_length
from stickytoken.encoders.model_state import alone, bounded_memory, evaluating
from stickytoken.encoders.prompted.model import PromptedModel, PromptRow, Reading
from stickytoken.encoders.prompted.runner import PromptRunner
from stickytoken.encoders.prompted.vocabulary import PromptVocabulary
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.encoders.tokenizing.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import EncodingError
from stickytoken.insertion import TokenizedText
from stickytoken.precision import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.loading.spec import EncoderSpec


class CausalPromptEncoder:
    """Encodes sentences by the state of a prompt's last token. The model is left as it was.

    Args:
        model: a decoder-only transformers model, with or without a head.
        tokenizer: its transformers tokenizer.
        name: how messages call it.
        reading: prompt, layers to overwrite, layer to read.
        token_budget: tokens of a batch; None chooses by device.
        max_length: longest prompt in tokens, sentence included; None is the model's own.
        reuse: compute what prompts and sentences begin with once.
        normalize: give vectors of length 1.
        precision: of matrix products; None is that of the weights.

    Raises:
        ModelError: a model of another kind.
        InputError: a layer that does not exist, a longest prompt that cannot be, or a precision that the
            device lacks.
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
        precision: Precision | None = None,
    ) -> None:
        self.name = name
        self.spec: EncoderSpec | None = None  # of a model that was loaded by name
        self.normalizes = normalize
        self._prompted = PromptedModel(model, tokenizer, name, reading)
        self._model = model
        self._user_tokenizer = tokenizer
        self._entries = PromptVocabulary(HuggingFaceTokenizer(tokenizer), quoted=reading.prompt.quoted)
        self._max_length = context_length(
            self._prompted.decoder.model, tokenizer, max_length, name, taken=self._prompted.length(0)
        )
        self._asked_length = max_length
        if precision is not None:
            require_precision(self._prompted.decoder.model, precision, name)
        self._precision = precision
        self._runner = PromptRunner(
            self._prompted, name, token_budget, reuse=reuse, rounding=self._rounding(precision)
        )
        self._lower: dict[Precision, CausalPromptEncoder] = {}

    @property
    def reading(self) -> Reading:
        """Prompt, layers to overwrite, layer to read."""
        return self._prompted.reading

    @property
    def prompted(self) -> PromptedModel:
        """The model and its prompts."""
        return self._prompted

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
    def max_length(self) -> int | None:
        """Longest prompt in tokens, sentence included; None is no limit."""
        return self._max_length

    @property
    def parameters(self) -> int:
        """Number of parameters of the model, without its head."""
        return sum(parameter.numel() for parameter in self._prompted.decoder.model.parameters())

    @cached_property
    def dimension(self) -> int:
        """Components of a vector, read off the vector of one token."""
        with self._borrowed():
            return int(self._runner.forward([PromptRow(0, (0,))], None, [self._prompted.number]).shape[-1])

    @cached_property
    def identity(self) -> EncoderIdentity:
        """What can change the vectors."""
        reading, placeholder = self.reading, self._prompted.placeholder
        prepending = reading.prepending
        description = {
            "model": type(self._prompted.decoder.model).__name__,
            "config": config_of(self._prompted.decoder.model),
            "layer": self._prompted.number,
            "normalize": self.normalizes,
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
            dtype=self._precision or str(self._prompted.decoder.dtype).removeprefix("torch."),
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
            token_budget=self._runner.token_budget,
            max_length=self._asked_length,
            reuse=self._runner.reuse,
            normalize=self.normalizes,
            precision=self._precision,
        )
        if self._precision is None:
            vars(found)["_arithmetic"] = self._arithmetic  # weights are packed once
        return found

    def at(self, precision: Precision | None) -> CausalPromptEncoder:
        """The same encoder in a lower precision; see `Encoder.at`."""
        if precision is None or precision is self._precision:
            return self
        if precision not in self._lower:
            self._lower[precision] = self._lowered(precision)
        return self._lower[precision]

    def sentence_transformer(self) -> SentenceTransformer:
        """The same model, prompt and layers as a SentenceTransformer, for what takes nothing else."""
        from stickytoken.encoders.prompted.module import stacked

        return stacked(self._model, self._user_tokenizer, self.reading, normalize=self.normalizes)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Content ids of each text, as they stand in the prompt.

        Nothing of the template is among them but quotation marks that share a token with the sentence.
        """
        found: list[TokenizedText] = self._prompted.tokenize(texts)
        return found

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Content ids of each text, cleaned, as they stand in the prompt."""
        return [list(text.ids) for text in self.tokenize(texts)]

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether the model reads these ids whole, the prompt around them, and embeds all of them."""
        short = self._max_length is None or self._prompted.length(len(ids)) <= self._max_length
        return short and all(
            self._prompted.knows(token_id) for token_id in (min(ids, default=0), max(ids, default=0))
        )

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode texts, cleaned and put into the prompt; see `Encoder.encode`."""
        require_list(texts)
        return self._encode(self.content_ids(texts), texts, allow_zero=allow_zero)

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
            self.check_input(content, partial(shown, texts[row]))
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
            self.check_input(content, partial(label, row))
        vectors = self._forward_all(contents, [self._prompted.number])[:, 0]
        require_usable(vectors, self.name, label, allow_zero=allow_zero)
        if self.normalizes:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
        return vectors[places]

    def _forward_all(
        self, contents: Sequence[tuple[int, ...]], numbers: Sequence[int]
    ) -> NDArray[np.float32]:
        if not contents:
            return np.empty((0, len(numbers), self.dimension), np.float32)
        # Outside of the context: calibration runs the model itself.
        context = self._arithmetic
        with self._borrowed(), context():
            return self._runner.vectors(contents, numbers)

    def _rounding(self, precision: Precision | None) -> float:
        own = torch.finfo(self._prompted.decoder.dtype).eps
        return own if precision is None else ROUNDING[precision]

    def _lowered(self, precision: Precision) -> CausalPromptEncoder:
        require_precision(self._prompted.decoder.model, precision, self.name)
        lower = copy.copy(self)
        vars(lower).pop("_arithmetic", None)
        lower._precision = precision
        runner = self._runner
        lower._runner = PromptRunner(
            self._prompted,
            self.name,
            runner.token_budget,
            reuse=runner.reuse,
            rounding=self._rounding(precision),
        )
        exact, found = (
            each._forward_all(self._calibration, [self._prompted.number])[:, 0] for each in (self, lower)
        )
        # Vectors of one prompt share a direction, which says nothing of whether they can be told apart.
        center = exact.mean(axis=0, keepdims=True) if len(exact) else 0
        require_agreement(exact - center, found - center, precision, self.name)
        return lower

    @cached_property
    def _arithmetic(self) -> Arithmetic:
        return arithmetic(self._prompted.decoder.model, self._precision, self._calibrate)

    def _calibrate(self) -> None:
        # Every token passes every layer, and nothing is kept that was computed in another arithmetic.
        budget = self._runner.token_budget
        runner = PromptRunner(self._prompted, self.name, budget, reuse=False, rounding=self._rounding(None))
        with self._borrowed():
            runner.vectors(self._calibration, [self._prompted.number])

    @cached_property
    def _calibration(self) -> list[tuple[int, ...]]:
        entries = [entry for entry in self._entries.entries if self._prompted.knows(entry)]
        inputs = calibration_inputs(entries, sorted(self._entries.special_ids))
        return [content for content in inputs if self.fits(content)]

    def _borrowed(self) -> ExitStack:
        """The model for one call: alone, in evaluation mode."""
        model = self._prompted.decoder.model
        with ExitStack() as stack:
            stack.enter_context(alone(model))
            stack.enter_context(evaluating(model))
            stack.enter_context(torch.inference_mode())
            stack.enter_context(bounded_memory(model))
            return stack.pop_all()

    def check_input(self, content: tuple[int, ...], label: Callable[[], str]) -> None:
        """Refuse a text that the model does not read whole.

        Args:
            content: its content ids.
            label: how messages call it.

        Raises:
            EncodingError: it is too long, has nothing that is read, or an id that the model does not embed.
        """
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
