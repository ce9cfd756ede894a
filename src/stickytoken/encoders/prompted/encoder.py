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

from stickytoken.encoders.compute import computing, config_of, prefixes, weight_mark
from stickytoken.encoders.compute.batches import BatchEngine
from stickytoken.encoders.lengths import context_length
from stickytoken.encoders.prompted import AUXILIARY, Ids, OwnTokenizer, PromptVocabulary, own_tokenizer
from stickytoken.encoders.prompted.model import (
    FixedBeginnings,
    PromptedModel,
    PromptRow,
    Reading,
    find_decoder,
    pooled_states,
    states_after,
)
from stickytoken.encoders.protocol import shown
from stickytoken.encoders.sentence_transformer import Content, ModelEncoder
from stickytoken.errors import EncodingError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LOG = logging.getLogger(__name__)


class PromptRunner(BatchEngine):
    """Run filled prompts through a model, which must be in inference and evaluation mode.

    Work is shared in two ways, both exact up to rounding. Keys and values of the tokens before the
    placeholder or the sentence are computed once for all sentences. Without overwriting, a state does not
    depend on later tokens, so sentences with a common beginning share it too, as a tree.
    """

    unit = "prompt"

    def __init__(
        self,
        model: PromptedModel,
        token_budget: int | None,
        *,
        reuse: prefixes.ReuseLimits | None,
        rounding: float,
    ) -> None:
        super().__init__(model.decoder.name, model.decoder)
        self._prompted, self.reuse, self._rounding = model, reuse, rounding
        if token_budget:
            self.token_budget = token_budget
        self._trees: dict[tuple[int, int], prefixes.PrefixReuse] = {}  # by template and number of layers
        self._made: tuple[list[tuple[int, ...]], FixedBeginnings] | None = None
        # With contrast, the auxiliary prompts of all sentences run first, up to the layer of contrast.
        self._auxiliary: PromptRunner | None = None
        if model.auxiliary is not None:
            self._auxiliary = PromptRunner(model.auxiliary, token_budget, reuse=reuse, rounding=rounding)

    def vectors(self, contents: Sequence[Ids], numbers: Sequence[int]) -> NDArray[np.float32]:
        rows, prompts = self._prompted.rows(contents), self._prompted.prompts
        known = False
        if self.reuse is not None and len(rows) >= self.reuse.rows * len(prompts):
            fixed = sum(prompts[row.prompt].fixed for row in rows)
            whole = sum(prompts[row.prompt].length(len(row.content)) for row in rows)
            known = fixed >= self.reuse.fixed_share * whole and self._beginnings_agree
        if len(numbers) == 1 and (found := self._by_trees(contents, numbers[0], known=known)) is not None:
            return found
        auxiliary = None
        if (other := self._auxiliary) is not None:
            auxiliary = other.vectors(contents, [other._prompted.number])[:, 0]
        beginnings = None
        if known:  # those of the last call, if layers and weights are the same
            made_for = [tuple(numbers), *map(weight_mark, self._prompted.decoder.model.parameters())]
            if self._made is None or self._made[0] != made_for:
                self._made = made_for, FixedBeginnings(self._prompted, numbers)
            beginnings = self._made[1]
        found = self._by_batches(rows, beginnings, numbers, auxiliary)
        # MetaEOL: the plain mean over its prompts.
        means: NDArray[np.float32] = found.reshape(len(contents), -1, *found.shape[1:]).mean(axis=1)
        return means

    def forward(
        self,
        rows: Sequence[PromptRow],
        beginnings: FixedBeginnings | None,
        numbers: Sequence[int],
        auxiliary: NDArray[np.float32] | None = None,
    ) -> torch.Tensor:
        model, past, cache = self._prompted, None, None
        if beginnings is not None:
            prompts = torch.tensor([row.prompt for row in rows], device=beginnings.mask.device)
            past, cache = beginnings.mask[prompts], beginnings.cache(prompts)
        layout = model.layout(rows, skipping=beginnings is not None)
        batch = model.batch(layout, past, None if auxiliary is None else torch.from_numpy(auxiliary))
        if model.attends:
            states = model.attended(batch, cache)[:, None]
        else:
            states = pooled_states(model.decoder, batch, numbers, cache)
        return states.float()

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

        def compute(batch: NDArray[np.intp]) -> torch.Tensor:
            # Rows of one sentence, in every prompt, share what is subtracted.
            own = None if auxiliary is None else auxiliary[batch // len(prompts)]
            return self.forward([rows[row] for row in batch], beginnings, numbers, own)

        return self.run(lengths, compute)

    @cached_property
    def _beginnings_agree(self) -> bool:
        """Whether reuse gives the vectors of the plain path: a model may cache more than keys and values."""
        rows = self._prompted.rows([text.ids for text in self._prompted.tokenize(["a", "one two three"])])
        numbers = [self._prompted.number]
        plain = self._by_batches(rows, None, numbers)
        try:
            found = self._by_batches(rows, FixedBeginnings(self._prompted, numbers), numbers)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            _LOG.warning("%s: continuing without reuse of prompt beginnings (%s)", self.name, error)
            return False
        return prefixes.agree(found, plain, self._rounding)

    def _by_trees(self, contents: Sequence[Ids], number: int, *, known: bool) -> NDArray[np.float32] | None:
        model, reading, decoder = self._prompted, self._prompted.reading, self._prompted.decoder
        # A state must depend on the tokens before it alone, and the last token be read.
        steered = reading.prepending is not None or reading.contrast is not None
        if steered or model.attends or reading.prompt.echoes or not prefixes.known_kind(decoder.model):
            return None
        if self.reuse is None:
            return None

        def plain(place: int, contents: Sequence[Ids]) -> NDArray[np.float32]:
            return self._by_batches([PromptRow(place, content) for content in contents], None, [number])[:, 0]

        vectors = []
        for place, prompt in enumerate(model.prompts):
            if (place, number) not in self._trees:
                carrier, other = (text.ids for text in model.tokenize(["one two three", "a"]))
                self._trees[place, number] = prefixes.PrefixReuse(
                    decoder.model,
                    prompt.before,
                    prompt.after,
                    states=lambda inputs: states_after(decoder, [number], inputs)[number],
                    finish=lambda picked: picked[:, 0],
                    engine=self,
                    limits=self.reuse,
                    samples=prefixes.samples_of(carrier, other[:1]),
                    plain=partial(plain, place),
                    rounding=self._rounding,
                )
            found = self._trees[place, number].shared(contents, prompt.fixed if known else 0)
            if found is None:
                return None
            vectors.append(found)
        means: NDArray[np.float32] = np.add.reduce(vectors) / np.float32(len(vectors))
        return means[:, None]


class CausalPromptEncoder(ModelEncoder):
    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        reading: Reading,
        *,
        token_budget: int | None = None,
        max_length: int | None = None,
        reuse: prefixes.ReuseLimits | None = prefixes.REUSE,
        normalize: bool = False,
        precision: Precision | None = None,
        packed_layers: bool | None = None,
    ) -> None:
        self.normalizes, self.reading = normalize, reading
        self._model, self.user_tokenizer = model, tokenizer
        self._token_budget, self._asked_length, self._reuse_limits = token_budget, max_length, reuse
        self._decoder = find_decoder(model, name)
        self._tokenizers: dict[bool, OwnTokenizer] = {}  # without and with a placeholder
        super().__init__(self._decoder.model, name, precision, packed_layers)

    def _read(self) -> None:
        prepending = self.reading.prepending is not None
        for placed in {False, prepending} - self._tokenizers.keys():  # copying one takes seconds
            self._tokenizers[placed] = own_tokenizer(self.user_tokenizer, self.name, placed)
        self.prompted = PromptedModel(self._decoder, self.reading, self._tokenizers[prepending])
        self.own_tokenizer = self._tokenizers[False].tokenizer
        self.own_tokenizer.rows = self._decoder.rows
        # Encodes a token as part of a sentence in the prompt.
        self.entries_tokenizer = PromptVocabulary(self.own_tokenizer, quoted=self.reading.prompt.quoted)
        taken = self.prompted.length(0)
        self.max_length = context_length(
            self._network, self.user_tokenizer, self._asked_length, self.name, taken=taken
        )
        self._runner = self._new_runner()

    def _new_runner(self, *, whole: bool = False) -> PromptRunner:
        return PromptRunner(
            self.prompted,
            self._token_budget,
            reuse=None if whole else self._reuse_limits,
            rounding=torch.finfo(self.dtype).eps if whole else self._rounding,
        )

    def _settings(self) -> tuple[object, ...]:
        return (getattr(self.user_tokenizer, "model_max_length", None), self._decoder.rows)

    def _read_again(self) -> None:
        self._tokenizers = {}  # the user's may have changed
        super()._read_again()

    def _forget(self) -> None:
        super()._forget()
        self.prompted.forget()
        self._runner = self._new_runner()

    @property
    def layers(self) -> int:
        return len(self._decoder.layers)

    @property
    def device(self) -> str:
        return str(self._decoder.device)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._decoder.embedding.weight.dtype
        return dtype

    def _measured_dimension(self) -> int:
        with computing(self._network):
            return int(self._runner.forward([PromptRow(0, (0,))], None, [self.prompted.number]).shape[-1])

    def _modules_and_prompt(self) -> tuple[str, str]:
        reading, placeholder = self.reading, self.prompted.placeholder
        span, contrast, drawn = reading.prepending, reading.contrast, None
        if placeholder is not None:
            drawn = hashlib.sha256(placeholder.numpy().tobytes()).hexdigest()
        description: dict[str, Any] = {
            "model": type(self._decoder.model).__name__,
            "config": config_of(self._decoder.model),
            "layer": self.prompted.number,
            "normalize": self.normalizes,
            "prepending": None if span is None else [span.start, min(span.exit, self.layers)],
            "placeholder": drawn,
        }
        if contrast is not None:  # other identities stay as they were
            strength = None if contrast.strength is None else float(contrast.strength)
            description["contrast"] = [AUXILIARY.templates, contrast.layer, strength, contrast.rule]
        prompt = reading.prompt
        templates = [prompt.pieces(each, prepending=span is not None) for each in prompt.templates]
        text = json.dumps(description, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest(), json.dumps(templates)

    def reread(self, reading: Reading) -> CausalPromptEncoder:
        self._follow()
        other = self._copy()
        other.reading = reading
        other._token_budget = self._runner.token_budget
        other._start_over()
        return other

    def sentence_transformer(self) -> SentenceTransformer:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Normalize

        from stickytoken.encoders.causal_module import CausalPrompt

        options = self.reading.options | {"prompt": self.reading.prompt}
        module = CausalPrompt(self._model, self.user_tokenizer, **options)
        later = [Normalize()] if self.normalizes else []
        return SentenceTransformer(modules=[module, *later], device=str(module.model.device))

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        self._follow()
        return self.prompted.tokenize(texts)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.ids) for text in self.tokenize(texts)]

    def fits(self, ids: Sequence[int]) -> bool:
        if self.max_length is not None and self.prompted.length(len(ids)) > self.max_length:
            return False
        return self.prompted.knows(min(ids, default=0)) and self.prompted.knows(max(ids, default=0))

    def encode_layers(self, texts: Sequence[str], layers: Sequence[int]) -> NDArray[np.float32]:
        numbers = [self._decoder.layer_number(layer) for layer in layers]
        contents = [text.ids for text in self.tokenize(texts)]
        for text, content in zip(texts, contents, strict=True):
            self.check_input(content, partial(shown, text))
        if not contents:
            return np.empty((0, len(numbers), self.dimension), np.float32)
        return self._forward_all(contents, numbers)

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        return self._forward_all(contents, [self.prompted.number])[:, 0]

    def _forward_all(self, contents: Sequence[Content], numbers: Sequence[int]) -> NDArray[np.float32]:
        with computing(self._network), self._arithmetic():
            return self._runner.vectors(contents, numbers)

    def usable_entries(self) -> list[int]:
        return [entry for entry in self.entries_tokenizer.entries if self.prompted.knows(entry)]

    def _center(self, exact: NDArray[np.float32]) -> Any:
        # Vectors of one prompt share a direction, which does not help to tell them apart.
        return exact.mean(axis=0, keepdims=True)

    def _run(self, contents: Sequence[Content]) -> None:
        # Every token passes through every layer, and nothing computed in another precision is reused.
        self._new_runner(whole=True).vectors(contents, [self.prompted.number])

    def check_input(self, content: Content, label: Callable[[], str]) -> None:
        strange = next((each for each in content if not self.prompted.knows(each)), None)
        if strange is not None:
            raise EncodingError(
                f"{self.name}: a text has token id {strange}, "
                f"but the model embeds only ids from 0 to {self._decoder.rows - 1}"
            )
        if not content and self.reading.prompt.echoes:
            raise EncodingError(
                f"{self.name}: the text {label()} has no tokens, and an echo prompt reads only those"
            )
        if not self.fits(content):
            raise EncodingError(
                f"{self.name}: the text {label()} makes a prompt of {self.prompted.length(len(content))} "
                f"tokens, the model reads {self.max_length}: use shorter sentences or fewer copies"
            )
