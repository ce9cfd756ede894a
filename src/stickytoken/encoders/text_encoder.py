"""Use any object with a method ``encode(texts)`` as an encoder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders import protocol
from stickytoken.encoders._tokenizer import adapted
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, IdReader, WordEncoder, shown
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.vocabulary import RoundTripTokenizer

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders._tokenizer import HuggingFaceTokenizer

# Fixed texts whose vectors identify a model that gives no fingerprint.
SENTINELS = (
    "a",
    "The river is cold in winter.",
    "She paid 42.50 for two tickets!",
    "Ein alter Baum steht am Ufer.",
    "https://example.org/a?b=c",
    "the the the the the the the the",
)


def fingerprint_of(vectors: NDArray[np.float32]) -> str:
    # Adding zero makes -0.0 equal to 0.0.
    return hashlib.sha256((exact_unit_vectors(vectors).round(4) + 0.0).tobytes()).hexdigest()


class TextModel(Protocol):
    """What `load_encoder` accepts besides models: a class with this one method.

    Optional attributes:

    - ``name``: name used in messages and run folders; the default is the name of its class.
    - ``tokenizer``: of transformers or the tokenizers library, or a `RoundTripTokenizer`. Without one the
      vocabulary is unknown, so there is nothing to look for sticky tokens in.
    - ``max_length``: longest input in tokens, special tokens included; texts beyond it are refused.
    - ``device``: where it computes.
    - ``fingerprint``: a string that changes whenever the vectors change, such as a version or a hash of the
      weights; it identifies runs. Without one, the vectors of six fixed texts do, rounded to four decimals.
      These can differ between machines, and then a run cannot be continued on another one.
    """

    def encode(self, texts: Sequence[str]) -> Any: ...


# Takes n texts, returns n vectors.
TextFunction: TypeAlias = Callable[[list[str]], Any]


class FunctionModel:
    def __init__(self, function: TextFunction, tokenizer: Any = None, max_length: int | None = None) -> None:
        self._function = function
        self.name = str(getattr(function, "__name__", None) or type(function).__name__)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.fingerprint = getattr(function, "fingerprint", None)

    def encode(self, texts: Sequence[str]) -> Any:
        return self._function(list(texts))


class TextEncoder:
    def __init__(self, model: Any, truncate_dim: int | None = None) -> None:
        if isinstance(model, type):
            raise ModelError(f"{model.__name__} is a class: pass an object of it, {model.__name__}(...)")
        if not callable(getattr(model, "encode", None)):
            raise ModelError(
                f"an object of type {type(model).__name__} is not an encoder: it lacks the method "
                "encode(texts). Pass the name of a model, a SentenceTransformer, or an object with that "
                "method"
            )
        self.model = model
        self.name = str(getattr(model, "name", None) or type(model).__name__)
        self.device = str(getattr(model, "device", None) or "cpu")
        self.truncate_dim = truncate_dim  # components that are read; None reads all
        if truncate_dim is not None:
            require_components(truncate_dim, self._vectors(SENTINELS[:1]).shape[1], self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name} on {self.device}>"

    @property
    def max_length(self) -> int | None:
        length = getattr(self.model, "max_length", None)
        return None if length is None else int(length)

    @cached_property
    def dimension(self) -> int:
        return int(self._vectors(SENTINELS[:1])[:, : self.truncate_dim].shape[1])

    @property
    def identity(self) -> EncoderIdentity:
        for derived in ("dimension", "tokenizer", "_special_tokens"):
            vars(self).pop(derived, None)  # the user's object may have changed
        tokenizer = None if self._given_tokenizer is None else self.tokenizer
        kind, given = type(self.model), getattr(self.model, "fingerprint", None)
        if given is None:
            weights = fingerprint_of(self._vectors(SENTINELS))
        else:
            weights = _sha256(str(given() if callable(given) else given))
        return EncoderIdentity(
            weights=weights,
            tokenizer=vocabulary_hash(tokenizer),
            modules=_sha256(f"{kind.__module__}.{kind.__qualname__}"),
            prompt="",
            dtype="float32",
            max_length=self.max_length,
            dimension=self.dimension,
        )

    @cached_property
    def tokenizer(self) -> RoundTripTokenizer:
        if self._given_tokenizer is None:
            raise ModelError(
                f"{self.name} has no tokenizer, so its vocabulary is unknown: give the "
                f"{type(self.model).__name__} an attribute `tokenizer` (of transformers or tokenizers)"
            )
        try:
            return adapted(self._given_tokenizer)
        except ModelError as error:
            raise ModelError(f"the tokenizer of {self.name} cannot be used: {error}") from error

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_many(texts)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        if hasattr(self.tokenizer, "tokenize"):
            found: list[TokenizedText] = self.tokenizer.tokenize(texts)
            return found
        return [TokenizedText((), tuple((token_id,) for token_id in ids)) for ids in self.content_ids(texts)]

    def fits(self, ids: Sequence[int]) -> bool:
        return self.max_length is None or len(ids) + self._special_tokens <= self.max_length

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        texts = protocol.texts_of(texts)
        # Equal texts share one row: less work, and exactly equal vectors.
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        distinct = list(rows)
        if not distinct:
            return np.empty((0, self.dimension), np.float32)
        known = self._given_tokenizer is not None and self.max_length is not None
        # The server of a tokenizer that estimates knows better what it reads.
        if known and not getattr(self.tokenizer, "estimates", False):
            for text, ids in zip(distinct, self.content_ids(distinct), strict=True):
                if not self.fits(ids):
                    raise EncodingError(
                        f"{self.name}: the text {shown(text)} has {len(ids) + self._special_tokens} tokens, "
                        f"the model reads {self.max_length}: use shorter sentences or fewer copies"
                    )
        vectors = self._vectors(distinct)[:, : self.truncate_dim]
        self._require_usable(vectors, distinct, allow_zero=allow_zero)
        return vectors[[rows[text] for text in texts]]

    def _require_usable(
        self, vectors: NDArray[np.float32], texts: Sequence[str], *, allow_zero: bool
    ) -> None:
        protocol.require_usable(vectors, self.name, lambda row: shown(texts[row]), allow_zero=allow_zero)

    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        found = self.model.encode(list(texts))
        if hasattr(found, "detach"):  # a torch tensor, which may have a gradient or be on a GPU
            found = found.detach().float().cpu()
        try:
            vectors = np.asarray(found, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise EncodingError(
                f"{self.name}: encode returned a {type(found).__name__} that is not an array of numbers "
                f"({error}): return one vector per text, all of the same length"
            ) from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise EncodingError(
                f"{self.name}: encode returned an array of shape {vectors.shape} for {len(texts)} texts: "
                "return one vector per text, shape (n, d)"
            )
        return vectors

    @property
    def _given_tokenizer(self) -> Any:
        return getattr(self.model, "tokenizer", None)

    @cached_property
    def _special_tokens(self) -> int:
        added = getattr(self._given_tokenizer, "num_special_tokens_to_add", None)
        if added is None:
            return 0
        try:
            return int(added())
        except TypeError:  # that of the tokenizers library asks whether it is for a pair
            return int(added(False))


def require_components(truncate_dim: int, components: int, name: str) -> None:
    if truncate_dim > components:
        raise InputError(
            f"truncate_dim is {truncate_dim}, and the vectors of {name} have {components} components: pass 1 "
            f"to {components}"
        )


def vocabulary_hash(tokenizer: RoundTripTokenizer | None) -> str:
    given: str = getattr(tokenizer, "fingerprint", "")
    return given or _sha256("" if tokenizer is None else repr(sorted(tokenizer.entries.items())))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_POSITION_EMBEDDINGS = ("position_embeddings", "embed_positions", "wpe")
# Tokenizers write "no limit" as a huge integer or as infinity.
NO_LIMIT = 10**9


def learned_positions(model: torch.nn.Module) -> list[int]:
    import torch

    found = []
    for name, module in model.named_modules():
        if name.endswith(_POSITION_EMBEDDINGS) and isinstance(module, torch.nn.Embedding):
            # RoBERTa counts positions from after the padding index, OPT from an offset.
            skipped = getattr(module, "offset", 0) if module.padding_idx is None else module.padding_idx + 1
            found.append(int(module.num_embeddings - skipped))
    return found


def readable_positions(model: torch.nn.Module, max_length: int | None, name: str) -> int | None:
    from transformers import PreTrainedModel

    found = learned_positions(model)
    for module in model.modules():
        if not isinstance(module, PreTrainedModel):
            continue
        config: Any = module.config
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
        kinds: list[Any] = []
        if isinstance(rope, Mapping):  # of all layers, or one per kind of layer
            kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, Mapping))]
        # Where rotary positions are scaled, the configured number is not a limit.
        scaled = any(kind.get("rope_type", kind.get("type", "default")) != "default" for kind in kinds)
        declared = getattr(config, "max_position_embeddings", None)
        if isinstance(declared, int) and declared > 0 and not scaled:  # XLNet uses -1 for no limit
            found.append(declared)
    positions = min(found, default=None)
    if positions is not None and max_length is not None and max_length > positions:
        raise InputError(
            f"max_length is {max_length}: {name!r} has only {positions} positions; pass at most {positions}"
        )
    return positions


def context_length(
    model: torch.nn.Module, tokenizer: Any, max_length: int | None, name: str, *, taken: int
) -> int | None:
    limits = (getattr(tokenizer, "model_max_length", None), readable_positions(model, max_length, name))
    known = [limit for limit in limits if limit is not None and limit < NO_LIMIT]
    longest = min(known, default=None) if max_length is None else max_length
    if longest is not None and longest <= taken:
        raise InputError(
            f"{name!r} reads {longest} tokens, and the prompt alone takes {taken}: use a shorter prompt"
        )
    return None if longest is None else int(longest)


def as_id_reader(encoder: Encoder, purpose: str) -> IdReader:
    if protocol.reads_ids(encoder):
        return encoder
    if getattr(encoder.tokenizer, "estimates", False):
        raise ModelError(
            f"{purpose} needs the tokens of texts, and of {encoder.name} only candidates are known: "
            "detect with its tokenizer"
        )
    return DecodedEncoder(protocol.require_words(encoder, purpose))


# Ids are sent as text. The model may cut that text into other tokens, which is rare.
class DecodedEncoder(protocol.EncoderWrapper[WordEncoder]):
    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        return self._encoder.encode(texts, allow_zero=allow_zero)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        return self._encoder.encode([self._text(each) for each in ids], allow_zero=allow_zero)

    @cached_property
    def _prompt(self) -> list[int]:
        return self._encoder.content_ids([""])[0]

    def _text(self, ids: Sequence[int]) -> str:
        alike = (own == of_prompt for own, of_prompt in zip(ids, self._prompt, strict=False))
        shared = sum(takewhile(bool, alike))
        for end in range(len(ids), shared, -1):
            (text,) = self.tokenizer.decode_many([list(ids[shared:end])])
            text = text.lstrip() if shared else text
            if self.fits(self.content_ids([text])[0]):
                return text
        return ""


_SAMPLES = ("The cat sat on a warm stone.", "Trains leave at noon")
_ROOM = 8
_SHOWN_REASON = 300


@dataclass(frozen=True, slots=True)
class InputTemplate:
    before: tuple[int, ...]  # special ids
    after: tuple[int, ...]
    features: dict[str, Any]  # further inputs of the modules, such as ``prompt_length``
    # Types of the ids before, of every content id, and of the ids after; None if the model has none.
    token_types: tuple[tuple[int, ...], int, tuple[int, ...]] | None
    flat: bool  # one flat id list with offsets (static embeddings) instead of a matrix

    @property
    def overhead(self) -> int:
        return len(self.before) + len(self.after)


def _why_changed(model: SentenceTransformer, prompt: str) -> str:
    """Say why the input of a model does not contain the tokens of its prompt and text as they are."""
    first: Any = model[0]
    processor = getattr(first, "processor", None)
    templates = (getattr(part, "chat_template", None) for part in (processor, first.tokenizer))
    through_chat = "message" in getattr(first, "modalities", ()) and any(templates)
    if through_chat and prompt:
        return (
            f"its chat template puts the prompt {shown(prompt)} into a message of its own, apart from the "
            "text, so that copies cannot be inserted by token id: leave the prompt out (prompt='')"
        )
    if through_chat:
        return (
            "its chat template changes the text, so that copies cannot be inserted by token id: use a model "
            "that reads plain text"
        )
    return "its input does not contain the tokens of the text as they are"


def read_template(
    model: SentenceTransformer, tokenizer: HuggingFaceTokenizer, prompt: str, name: str
) -> InputTemplate:
    def template_of(sample: str) -> InputTemplate:
        try:
            features = model.preprocess([sample], prompt=prompt or None)
        except Exception as error:  # processors of images and sound fail in ways of their own; chained
            reason = " ".join(str(error).split())[:_SHOWN_REASON]
            raise ModelError(
                f"{name} does not read text alone ({type(error).__name__}: {reason}): pass a text model"
            ) from error
        tensors = [features.get("input_ids"), features.get("attention_mask", features.get("input_ids"))]
        if not all(hasattr(value, "shape") for value in tensors):  # a processor of sound gives lists
            raise ModelError(f"{name}: its first module does not read token ids (is it a text model?)")
        flat = "offsets" in features
        ids = features["input_ids"] if flat else features["input_ids"][0]
        padded = not flat and "attention_mask" in features
        kept = features["attention_mask"][0].bool() if padded else slice(None)
        whole = tuple(ids[kept].tolist())
        content = tuple(tokenizer.encode_many([prompt + sample])[0])
        size = len(content)
        starts = (start for start in range(len(whole) - size + 1) if whole[start : start + size] == content)
        if (start := next(starts, None)) is None:
            raise ModelError(f"{name}: {_why_changed(model, prompt)}")
        token_types = None
        if "token_type_ids" in features and not flat:
            types = tuple(features["token_type_ids"][0][kept].tolist())
            token_types = types[:start], types[start], types[start + size :]
        return InputTemplate(
            before=whole[:start],
            after=whole[start + size :],
            features={key: features[key] for key in ("modality", "prompt_length") if key in features},
            token_types=token_types,
            flat=flat,
        )

    longest = model.max_seq_length if model.max_seq_length is not None else math.inf
    sizes = [len(ids) for ids in tokenizer.encode_many([prompt + sample for sample in _SAMPLES])]
    samples = _SAMPLES if max(sizes) + _ROOM <= longest else ("a", "to")
    if len(tokenizer.encode_many([prompt])[0]) >= longest:
        raise ModelError(f"{name}: the prompt is too long: the model reads {longest} tokens in total")
    with tokenizer.settings_kept():
        templates = [template_of(sample) for sample in samples]
    if templates[0] != templates[1]:
        raise ModelError(
            f"{name}: the special tokens depend on the text; stickytoken cannot insert ids into its input"
        )
    return templates[0]
