"""Use a decoder-only language model as a sentence encoder, through a prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders._arithmetic import Arithmetic
from stickytoken.encoders._fingerprint import config_of
from stickytoken.encoders._lengths import context_length
from stickytoken.encoders._model_encoder import Content, ModelEncoder
from stickytoken.encoders.checks import shown
from stickytoken.encoders.prefixes.reuse import REUSE, ReuseLimits
from stickytoken.encoders.prompted._decoder import find_decoder
from stickytoken.encoders.prompted._runner import PromptRunner
from stickytoken.encoders.prompted._tokenizers import PromptTokenizers
from stickytoken.encoders.prompted._vocabulary import PromptVocabulary
from stickytoken.encoders.prompted.contrast import AUXILIARY
from stickytoken.encoders.prompted.model import PromptedModel, PromptRow, Reading
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.encoders.tokenizing.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import EncodingError
from stickytoken.insertion import TokenizedText
from stickytoken.precision import Precision
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class CausalPromptEncoder(ModelEncoder):
    """Encode sentences as the state of a prompt's last token. The model is not changed.

    Args:
        model: a decoder-only transformers model, with or without a head.
        tokenizer: its transformers tokenizer.
        name: name of the model in messages.
        reading: prompt, token prepending, contrast, layer to read.
        token_budget: tokens per batch; None chooses by device.
        max_length: longest prompt in tokens, including the sentence; None is the model's own limit.
        reuse: when to compute common beginnings once; None is never.
        normalize: scale vectors to length 1.
        precision: precision of matrix products; None is that of the weights.
        packed_layers: pack linear layers on a CPU; None leaves it to STICKYTOKEN_PACKED_LAYERS or
            a measurement.
        shared: arithmetic of another encoder of the same model, to pack the weights only once.
        tokenizers: copies of the tokenizer that another encoder of the same model made.

    Raises:
        ModelError: The model is not a decoder-only language model.
        InputError: The layer does not exist, the longest prompt is impossible, or the device does not support
            the precision.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, one decision each
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        reading: Reading,
        *,
        token_budget: int | None = None,
        max_length: int | None = None,
        reuse: ReuseLimits | None = REUSE,
        normalize: bool = False,
        precision: Precision | None = None,
        packed_layers: bool | None = None,
        shared: Arithmetic | None = None,
        tokenizers: PromptTokenizers | None = None,
    ) -> None:
        self.normalizes = normalize
        self.reading = reading
        self._model = model
        self._user_tokenizer = tokenizer
        self._token_budget = token_budget
        self._asked_length = max_length
        self._reuse_limits = reuse
        self._decoder = find_decoder(model, name)
        self._tokenizers = tokenizers
        super().__init__(self._decoder.model, name, precision, packed_layers, shared)

    def _read(self) -> None:
        if self._tokenizers is None:
            self._tokenizers = PromptTokenizers(self._user_tokenizer, self.name)
        self._prompted = PromptedModel(
            self._decoder, self._user_tokenizer, self.name, self.reading, self._tokenizers
        )
        self._copied_tokenizer = self._tokenizers.plain.tokenizer
        self._entries = PromptVocabulary(self._copied_tokenizer, quoted=self.reading.prompt.quoted)
        self._max_length = context_length(
            self._network,
            self._user_tokenizer,
            self._asked_length,
            self.name,
            taken=self._prompted.length(0),
        )
        self._runner = self._new_runner()

    def _new_runner(self, *, calibrating: bool = False) -> PromptRunner:
        return PromptRunner(
            self._prompted,
            self.name,
            self._token_budget,
            reuse=None if calibrating else self._reuse_limits,
            rounding=torch.finfo(self.dtype).eps if calibrating else self._rounding,
        )

    def _settings(self) -> tuple[object, ...]:
        return (getattr(self._user_tokenizer, "model_max_length", None), self._prompted.decoder.rows)

    def _read_again(self) -> None:
        self._tokenizers = None  # the user's tokenizer may have changed
        super()._read_again()

    def _forget(self) -> None:
        super()._forget()
        self._prompted.forget()
        self._runner = self._new_runner()

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
        """Device of the model's input."""
        return str(self._prompted.decoder.device)

    @property
    def tokenizer(self) -> PromptVocabulary:
        """The tokenizer for the vocabulary: encodes a token as part of a sentence in the prompt."""
        self._follow()
        return self._entries

    @property
    def user_tokenizer(self) -> Any:
        """The user's tokenizer."""
        return self._user_tokenizer

    @property
    def own_tokenizer(self) -> HuggingFaceTokenizer:
        """The encoder's copy of it."""
        return self._copied_tokenizer

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the token embedding, which is not quantised."""
        return self._prompted.decoder.dtype

    @property
    def max_length(self) -> int | None:
        """Longest prompt in tokens, including the sentence; None is no limit."""
        return self._max_length

    @cached_property
    def dimension(self) -> int:
        """Number of components of a vector, taken from the vector of one token."""
        with self._computing():
            return int(self._runner.forward([PromptRow(0, (0,))], None, [self._prompted.number]).shape[-1])

    def _identity(self, weights: str) -> EncoderIdentity:
        reading, placeholder = self.reading, self._prompted.placeholder
        prepending = reading.prepending
        description: dict[str, Any] = {
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
        if (contrast := reading.contrast) is not None:  # other identities stay as they were
            description["contrast"] = [
                AUXILIARY.templates,
                contrast.layer,
                None if contrast.strength is None else float(contrast.strength),
                contrast.rule,
            ]
        templates = [
            reading.prompt.pieces(each, prepending=prepending is not None)
            for each in reading.prompt.templates
        ]
        return EncoderIdentity(
            weights=weights,
            tokenizer=self._entries.fingerprint,
            modules=hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest(),
            prompt=json.dumps(templates),
            dtype=self._dtype_name,
            max_length=self._max_length,
            dimension=self.dimension,
        )

    def reread(self, reading: Reading) -> CausalPromptEncoder:
        """Return an encoder of the same model with another reading, without copying the tokenizer again."""
        self._follow()
        return self._like(reading, self._precision, self._arithmetic if self._precision is None else None)

    def _built(self, precision: Precision) -> CausalPromptEncoder:
        return self._like(self.reading, precision)

    def _like(
        self, reading: Reading, precision: Precision | None, shared: Arithmetic | None = None
    ) -> CausalPromptEncoder:
        return CausalPromptEncoder(
            self._model,
            self._user_tokenizer,
            self.name,
            reading,
            token_budget=self._runner.token_budget,
            max_length=self._asked_length,
            reuse=self._reuse_limits,
            normalize=self.normalizes,
            precision=precision,
            packed_layers=self._packed_layers,
            shared=shared,
            tokenizers=self._tokenizers,
        )

    def sentence_transformer(self) -> SentenceTransformer:
        """Return the same model, prompt and layers as a SentenceTransformer."""
        from stickytoken.encoders.prompted.module import stacked

        return stacked(self._model, self._user_tokenizer, self.reading, normalize=self.normalizes)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the content ids of each text as they are in the prompt.

        They include nothing of the template except quotation marks that share a token with the sentence.
        """
        self._follow()
        return self._prompted.tokenize(texts)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the content ids of each text, cleaned, as they are in the prompt."""
        return [list(text.ids) for text in self.tokenize(texts)]

    def fits(self, ids: Sequence[int]) -> bool:
        """Check that these ids fit into the prompt and that the model embeds all of them."""
        short = self._max_length is None or self._prompted.length(len(ids)) <= self._max_length
        return short and all(
            self._prompted.knows(token_id) for token_id in (min(ids, default=0), max(ids, default=0))
        )

    def encode_layers(self, texts: Sequence[str], layers: Sequence[int]) -> NDArray[np.float32]:
        """Encode texts with several layers at once, in one pass.

        Args:
            texts: n texts.
            layers: distinct layers, as in `Reading.layer`.

        Returns:
            float32 array of shape (n, layers, d).
        """
        numbers = [self._prompted.decoder.layer_number(layer) for layer in layers]
        contents = [text.ids for text in self.tokenize(texts)]
        for row, content in enumerate(contents):
            self.check_input(content, partial(shown, texts[row]))
        return self._forward_all(contents, numbers)

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        return self._forward_all(contents, [self._prompted.number])[:, 0]

    def _finished(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        return unit_vectors(vectors) if self.normalizes else vectors

    def _forward_all(self, contents: Sequence[Content], numbers: Sequence[int]) -> NDArray[np.float32]:
        if not contents:
            return np.empty((0, len(numbers), self.dimension), np.float32)
        arithmetic = self._arithmetic  # before entering the context: calibration runs the model itself
        with self._computing(), arithmetic():
            return self._runner.vectors(contents, numbers)

    def usable_entries(self) -> list[int]:
        """List the vocabulary entries that the model embeds."""
        return [entry for entry in self._entries.entries if self._prompted.knows(entry)]

    def _centered(self, exact: NDArray[np.float32]) -> NDArray[np.float32]:
        # Vectors of one prompt share a direction, which does not help to tell them apart.
        return exact.mean(axis=0, keepdims=True) if len(exact) else exact

    def _run(self, contents: Sequence[Content]) -> None:
        # Every token passes through every layer, and nothing computed in another precision is reused.
        self._new_runner(calibrating=True).vectors(contents, [self._prompted.number])

    def check_input(self, content: Content, label: Callable[[], str]) -> None:
        """Refuse a text that the model cannot read in full.

        Args:
            content: its content ids.
            label: returns the text as messages show it.

        Raises:
            EncodingError: The text is too long, has no tokens to read, or has an id that the model does not
                embed.
        """
        strange = next((each for each in content if not self._prompted.knows(each)), None)
        if strange is not None:
            raise EncodingError(
                f"{self.name}: a text has token id {strange}, "
                f"but the model embeds only ids from 0 to {self._prompted.decoder.rows - 1}"
            )
        if not content and self.reading.prompt.echoes:
            raise EncodingError(
                f"{self.name}: the text {label()} has no tokens, and an echo prompt reads only those"
            )
        if not self.fits(content):
            raise EncodingError(
                f"{self.name}: the text {label()} makes a prompt of {self._prompted.length(len(content))} "
                f"tokens, the model reads {self._max_length}: use shorter sentences or fewer copies"
            )
