"""Use a decoder-only language model as a sentence encoder, through a prompt."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders._batch_runner import Arithmetic
from stickytoken.encoders._model_encoder import Content, ModelEncoder
from stickytoken.encoders.model_state import config_of, weight_mark
from stickytoken.encoders.prefixes import REUSE, PrefixReuse, ReuseLimits, TreeModel, agree, known_kind
from stickytoken.encoders.prompted._prompt_ids import Ids, PromptIds, PromptTokenizers, PromptVocabulary
from stickytoken.encoders.prompted.attention_output import find_decoder
from stickytoken.encoders.prompted.layer_states import PromptBatch, pooled_states, states_after
from stickytoken.encoders.prompted.model import FixedBeginnings, PromptedModel, PromptRow, Reading
from stickytoken.encoders.prompted.prompts import AUXILIARY
from stickytoken.encoders.protocol import EncoderIdentity, equal_length_batches, shown
from stickytoken.encoders.text_encoder import context_length
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import EncodingError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


_LOG = logging.getLogger(__name__)
# With a 12-layer Qwen2 of width 384 on one core, larger batches outgrow the cache: up to 25% slower.
_TOKEN_BUDGET = {"cpu": 1024}
_ACCELERATOR_TOKEN_BUDGET = 65536


class PromptRunner:
    """Run filled prompts through a model, which must be in inference and evaluation mode.

    Work is shared in two ways, both exact up to rounding. Keys and values of the tokens before the
    placeholder or the sentence are computed once for all sentences. Without overwriting, a state does not
    depend on later tokens, so sentences with a common beginning share it too, as a tree.

    With contrast, the auxiliary prompts of all sentences run first, through a runner of their own, up to the
    layer of contrast.
    """

    def __init__(
        self,
        model: PromptedModel,
        name: str,
        token_budget: int | None,
        *,
        reuse: ReuseLimits | None,
        rounding: float,
    ) -> None:
        self._prompted = model
        self._name = name
        self._device = model.decoder.device
        self.token_budget = token_budget or _TOKEN_BUDGET.get(self._device.type, _ACCELERATOR_TOKEN_BUDGET)
        self.reuse = reuse
        self._rounding = rounding
        self._memory_for_trees = True
        self._made: tuple[list[tuple[int, ...]], FixedBeginnings] | None = None
        self._auxiliary = (
            None
            if model.auxiliary is None
            else AuxiliaryRunner(model.auxiliary, name, token_budget, reuse=reuse, rounding=rounding)
        )

    def vectors(self, contents: Sequence[Ids], numbers: Sequence[int]) -> NDArray[np.float32]:
        """Return vectors of sentences after the given numbers of layers, shape (n, numbers, d)."""
        rows = self._prompted.rows(contents)
        known = self._shares_beginnings(rows)
        if len(numbers) == 1 and (found := self._by_trees(contents, numbers[0], known=known)) is not None:
            return found
        auxiliary = None if self._auxiliary is None else self._auxiliary.values(contents)
        found = self._by_batches(rows, self._beginnings(numbers) if known else None, numbers, auxiliary)
        # MetaEOL: the plain mean over its prompts.
        means: NDArray[np.float32] = found.reshape(len(contents), -1, *found.shape[1:]).mean(axis=1)
        return means

    def forward(
        self,
        rows: Sequence[PromptRow],
        beginnings: FixedBeginnings | None,
        numbers: Sequence[int],
        auxiliary: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Run one batch, shape (rows, numbers, d)."""
        past = cache = None
        if beginnings is not None:
            prompts = torch.tensor([row.prompt for row in rows], device=beginnings.mask.device)
            past, cache = beginnings.mask[prompts], beginnings.cache(prompts)
        layout = self._prompted.layout(rows, skipping=beginnings is not None)
        values = None if auxiliary is None else torch.from_numpy(auxiliary)
        states = self._read(self._prompted.batch(layout, past, values), numbers, cache)
        array: NDArray[np.float32] = states.float().cpu().numpy()
        return array

    def _read(self, batch: PromptBatch, numbers: Sequence[int], cache: Any) -> torch.Tensor:
        prepending = self._prompted.reading.prepending
        return pooled_states(self._prompted.decoder, batch, numbers, prepending, cache)

    def _by_batches(
        self,
        rows: Sequence[PromptRow],
        beginnings: FixedBeginnings | None,
        numbers: Sequence[int],
        auxiliary: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        prompts, known = self._prompted.prompts, beginnings is not None
        lengths = [
            prompts[row.prompt].length(len(row.content)) - (prompts[row.prompt].fixed if known else 0)
            for row in rows
        ]
        batches = equal_length_batches(lengths, self.token_budget)[::-1]
        vectors: NDArray[np.float32] | None = None
        while batches:
            batch = batches.pop()
            # Rows of one sentence, in every prompt, share what is subtracted.
            own = None if auxiliary is None else auxiliary[batch // len(prompts)]
            try:
                found = self.forward([rows[place] for place in batch], beginnings, numbers, own)
            except torch.OutOfMemoryError as error:
                self._shrink(len(batch), lengths[batch[0]], error)
                batches.extend(np.array_split(batch, 2)[::-1])
                continue
            if vectors is None:
                vectors = np.empty((len(rows), *found.shape[1:]), dtype=np.float32)
            vectors[batch] = found
        return np.empty((0, len(numbers), 0), np.float32) if vectors is None else vectors

    def _shrink(self, rows: int, length: int, error: torch.OutOfMemoryError) -> None:
        if rows == 1:
            raise EncodingError(
                f"{self._name}: {self._device} ran out of memory on a prompt of {length} tokens: "
                "use shorter sentences, a lower precision or another device"
            ) from error
        self.token_budget = max(1, rows * length // 2)
        torch.cuda.empty_cache()
        _LOG.warning("%s: out of memory on %s, continuing with smaller batches", self._name, self._device)

    # Fixed beginnings of prompts.

    def _shares_beginnings(self, rows: Sequence[PromptRow]) -> bool:
        prompts = self._prompted.prompts
        if self.reuse is None or len(rows) < self.reuse.rows * len(prompts):
            return False
        fixed = sum(prompts[row.prompt].fixed for row in rows)
        whole = sum(prompts[row.prompt].length(len(row.content)) for row in rows)
        return fixed >= self.reuse.fixed_share * whole and self._beginnings_agree

    def _beginnings(self, numbers: Sequence[int]) -> FixedBeginnings:
        """Return the beginnings, reusing those of the last call if layers and weights are the same."""
        made_for = [tuple(numbers), *map(weight_mark, self._prompted.decoder.model.parameters())]
        if self._made is None or self._made[0] != made_for:
            self._made = made_for, FixedBeginnings(self._prompted, numbers)
        return self._made[1]

    @cached_property
    def _beginnings_agree(self) -> bool:
        """Whether reuse gives the vectors of the plain path; a model may cache more than keys and values."""
        rows = self._prompted.rows([text.ids for text in self._prompted.tokenize(["a", "one two three"])])
        numbers = [self._prompted.number]
        plain = self._by_batches(rows, None, numbers)
        try:
            found = self._by_batches(rows, FixedBeginnings(self._prompted, numbers), numbers)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            _LOG.warning("%s: continuing without reuse of prompt beginnings (%s)", self._name, error)
            return False
        return agree(found, plain, self._rounding)

    # Common beginnings of sentences.

    def _by_trees(self, contents: Sequence[Ids], number: int, *, known: bool) -> NDArray[np.float32] | None:
        """Return vectors of sentences with common beginnings, shape (n, 1, d); None if that saves little."""
        prompts = self._prompted.prompts
        if self.reuse is None or not self._memory_for_trees or not self._reads_alike:
            return None
        found: NDArray[np.float32] | None = None
        for prompt in prompts:
            reuse = self._prefix_reuse(prompt, number)
            roots = reuse.trees(contents, prompt.fixed if known else 0)
            if roots is None or not self._trees_agree:
                return None
            try:
                vectors = reuse.vectors(roots, len(contents))
            except torch.OutOfMemoryError:
                # Keys and values take extra memory, which the plain path does not need.
                self._memory_for_trees = False
                _LOG.warning("%s: out of memory on %s, continuing without reuse", self._name, self._device)
                return None
            found = vectors if found is None else found + vectors
        return None if found is None else (found / np.float32(len(prompts)))[:, None]

    @property
    def _reads_alike(self) -> bool:
        """Whether a state depends on the tokens before it alone, and the last token is read."""
        reading = self._prompted.reading
        return (
            reading.prepending is None
            and reading.contrast is None
            and not reading.prompt.echoes
            and known_kind(self._prompted.decoder.model)
        )

    def _prefix_reuse(self, prompt: PromptIds, number: int) -> PrefixReuse:
        decoder = self._prompted.decoder
        model = TreeModel(
            decoder.model,
            prompt.before,
            prompt.after,
            states=lambda inputs: states_after(decoder, [number], inputs)[number],
            finish=lambda picked: picked[:, 0],
        )
        return PrefixReuse(model, self.token_budget, self.reuse or REUSE)

    @cached_property
    def _trees_agree(self) -> bool:
        """Whether trees give the vectors of the plain path on a few sentences."""
        carrier, other = (text.ids for text in self._prompted.tokenize(["one two three", "a"]))
        contents = [
            *((*carrier, *other[:1] * count) for count in (1, 2, 3)),
            *((*other[:1] * count, *carrier) for count in (1, 2, 3)),
        ]
        number, prompts = self._prompted.number, self._prompted.prompts
        reuse = self._prefix_reuse(prompts[0], number)
        roots = reuse.trees(contents)
        if roots is None:
            return False
        rows = [PromptRow(0, content) for content in contents]
        plain = self._by_batches(rows, None, [number])[:, 0]
        return agree(reuse.vectors(roots, len(contents)), plain, self._rounding)


class AuxiliaryRunner(PromptRunner):
    """Run auxiliary prompts up to the layer of contrast; see `PromptRunner`."""

    def values(self, contents: Sequence[Ids]) -> NDArray[np.float32]:
        """Return what the last token of each auxiliary prompt has attended to, shape (n, heads * size)."""
        rows, number = self._prompted.rows(contents), self._prompted.number
        beginnings = self._beginnings([number]) if self._shares_beginnings(rows) else None
        return self._by_batches(rows, beginnings, [number])[:, 0]

    def _read(self, batch: PromptBatch, numbers: Sequence[int], cache: Any) -> torch.Tensor:
        return self._prompted.attended(batch, cache)[:, None]


class CausalPromptEncoder(ModelEncoder):
    """Encode sentences as the state of a prompt's last token. The model is not changed."""

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
        """Encode texts with several layers at once, in one pass."""
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
        """Refuse a text that the model cannot read in full."""
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
