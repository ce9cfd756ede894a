"""One batched interface to tokenizers of all kinds."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from stickytoken.errors import EncodingError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.vocabulary import RoundTripTokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


_Part: TypeAlias = Mapping[str, Any]

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
"""Characters allowed next to a boundary."""

STOPS = ".!?"
"""Some pipelines also have a boundary after these, before a letter or digit."""

_MARK = "▁"
# They treat each character alone, or up to the next ASCII character: nothing crosses "x y".
_PLAIN_NORMALIZERS = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
_LOCAL_NORMALIZERS = _PLAIN_NORMALIZERS | {"Nmt", "Precompiled"}
_WHITESPACE_PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# Patterns of Qwen 2 and 3 and Llama 3. No alternative has a space after another character, and "x y" is
# always split at the space.
_KNOWN_PATTERNS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}", r"\p{N}{1,3}")
}


@dataclass(frozen=True)
class Boundaries:
    """Where a text may be split.

    A boundary is a single space between two printable ASCII characters whose other neighbours are printable
    ASCII, spaces, or the ends of the text. The ids of a text without added tokens are those of the part
    before a boundary, followed by those of the prefix and the part after the boundary.

    Attributes:
        prefix: put before a part that is encoded without the part before it: a space, or nothing if the
            pipeline itself puts a mark before every text.
        stops: whether a `STOPS` character before an ASCII letter or digit is also followed by a boundary,
            which has no space and no prefix.
    """

    prefix: str
    stops: bool


def boundaries(backend: Tokenizer) -> Boundaries | None:
    """Find the boundaries of a tokenizer from its pipeline; None if there are none.

    The proof is by cases: every step must be known to act on both sides of a boundary independently. A
    pipeline with an unknown step is refused.
    """
    try:
        pipeline = json.loads(backend.to_str())
    except Exception as error:  # the library raises bare Exceptions for steps written in Python
        if type(error) is not Exception:
            raise
        return None
    steps = list(_flat(pipeline["normalizer"], "normalizers"))
    marks = bool(steps) and steps[0]["type"] == "Prepend"
    blank = _normalized_blank(backend, steps)
    contents = added_contents(backend)
    if (
        blank is None
        or not all(map(_keeps_to_one_side, contents))
        or not _one_sequence(pipeline["post_processor"])
        or pipeline["model"].get("dropout")
        or not (
            _cuts_before_blank(pipeline["pre_tokenizer"], blank) or _merges_stop_at_blank(pipeline, blank)
        )
    ):
        return None
    plain = {step["type"] for step in steps} <= _PLAIN_NORMALIZERS and not set(STOPS) & set("".join(contents))
    return Boundaries("" if marks else " ", plain and _cuts_behind_stop(pipeline["pre_tokenizer"]))


def added_contents(backend: Tokenizer) -> frozenset[str]:
    """Return the strings that the library searches for, in plain or normalized text, to find added tokens."""
    added = backend.get_added_tokens_decoder().values()
    normalizer = backend.normalizer
    normalized = [
        normalizer.normalize_str(token.content) for token in added if normalizer and token.normalized
    ]
    return frozenset([*(token.content for token in added), *normalized])


def _flat(part: _Part | None, members: str) -> Iterator[_Part]:
    """Yield the steps of a sequence in order."""
    if part is not None and part["type"] == "Sequence":
        for member in part[members]:
            yield from _flat(member, members)
    elif part is not None:
        yield part


def _normalized_blank(backend: Tokenizer, steps: list[_Part]) -> str | None:
    """Return what the space of a boundary becomes, a space or the mark; None if the sides interact."""
    if backend.normalizer is None:
        return " "
    front = ""
    if steps and steps[0]["type"] == "Prepend":
        # The mark put before a text must be the one that replaces spaces.
        if [step["type"] for step in steps] != ["Prepend", "Replace"] or steps[0]["prepend"] != _MARK:
            return None
        if steps[1]["pattern"] != {"String": " "} or steps[1]["content"] != _MARK:
            return None
        front, steps = _MARK, steps[1:]
    if not all(_is_local(step) for step in steps):
        return None
    blanks = set()
    for character in PRINTABLE:
        alone = backend.normalizer.normalize_str(character).removeprefix(front)
        pair = backend.normalizer.normalize_str(f"{character} {character}").removeprefix(front)
        # A character that becomes a space or nothing would merge with the space.
        if not alone or not set(alone) <= set(PRINTABLE):
            return None
        blanks.add(pair.removeprefix(alone).removesuffix(alone))
    return blanks.pop() if blanks in ({" "}, {_MARK}) else None


def _is_local(step: _Part) -> bool:
    """Check that a step treats both sides of a boundary independently."""
    if step["type"] == "Strip":
        return not step["strip_left"]
    if step["type"] != "Replace":
        return step["type"] in _LOCAL_NORMALIZERS
    content, pattern = step["content"], step["pattern"].get("String")
    if pattern is None:
        return bool(step["pattern"] == {"Regex": " {2,}"})
    if pattern == " ":
        return content in (" ", _MARK)
    # The ends of a replacement must be printable, so that it does not add a space.
    return bool(pattern) and not {" ", _MARK} & set(pattern) and {content[:1], content[-1:]} <= set(PRINTABLE)


def _keeps_to_one_side(content: str) -> bool:
    """Check that an added token can never cross a boundary."""
    beside = {"", *PRINTABLE}
    return not any(
        character in (" ", _MARK)
        and {content[max(place - 1, 0) : place], content[place + 1 : place + 2]} <= beside
        for place, character in enumerate(content)
    )


def _one_sequence(processor: _Part | None) -> bool:
    """Check that the ids of the text are kept as they are, apart from special tokens."""
    return all(
        step["type"] in ("ByteLevel", "BertProcessing", "RobertaProcessing")
        or (
            step["type"] == "TemplateProcessing" and sum("Sequence" in piece for piece in step["single"]) == 1
        )
        for step in _flat(processor, "processors")
    )


def _cuts_before_blank(pre_tokenizer: _Part | None, blank: str) -> bool:
    """Check that no piece crosses a boundary after pre-tokenization."""
    steps = list(_flat(pre_tokenizer, "pretokenizers"))
    kinds = [step["type"] for step in steps]
    if kinds == ["Metaspace"]:
        return bool(steps[0]["split"] and steps[0]["replacement"] == _MARK)
    if blank != " ":
        return False
    if kinds == ["ByteLevel"]:
        return bool(steps[0]["use_regex"])
    if kinds == ["Split", "ByteLevel"]:
        split = steps[0]
        isolated = split["behavior"] == "Isolated" and not split["invert"] and not steps[1]["use_regex"]
        return isolated and split["pattern"].get("Regex") in _KNOWN_PATTERNS
    if kinds == ["WhitespaceSplit", "Metaspace"]:
        return bool(steps[1]["replacement"] == _MARK)
    return len(kinds) == 1 and kinds[0] in _WHITESPACE_PRE_TOKENIZERS


def _cuts_behind_stop(pre_tokenizer: _Part | None) -> bool:
    """Check that a stop and a letter or digit after it are never in one piece."""
    steps = list(_flat(pre_tokenizer, "pretokenizers"))
    kinds = [step["type"] for step in steps]
    return kinds == ["BertPreTokenizer"] or (
        kinds == ["ByteLevel"] and steps[0]["use_regex"] and not steps[0]["add_prefix_space"]
    )


def _merges_stop_at_blank(pipeline: _Part, blank: str) -> bool:
    """Check that byte pair encoding of a whole text never merges across a boundary."""
    model, steps = pipeline["model"], list(_flat(pipeline["pre_tokenizer"], "pretokenizers"))
    if model["type"] != "BPE" or model["ignore_merges"] or _MARK not in model["vocab"]:
        return False
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return False
    if not steps or (len(steps) == 1 and steps[0]["type"] == "Split"):
        # Gemma splits at spaces, but the normalizer has replaced all of them.
        whole = blank == _MARK and all(step["pattern"] == {"String": " "} for step in steps)
    else:
        whole = len(steps) == 1 and steps[0]["type"] == "Metaspace" and steps[0]["replacement"] == _MARK
    return whole and not any(
        right.startswith(_MARK) and not left.endswith(_MARK) for left, right in model["merges"]
    )


_Ids: TypeAlias = tuple[int, ...] | None

_CAPACITY = 64 * 2**20
# Approximate size of an entry with key and value, of an id in a tuple, and of a hash in a set.
_ENTRY_BYTES, _ID_BYTES, _HASH_BYTES = 200, 36, 64
_BOUNDARY = re.compile(r" (?=[!-~](?:[ -~]|\Z))(?:(?<=[ -~][!-~] )|(?<=\A[!-~] ))")
# The first two characters after a boundary, and the last two before it.
_STARTS = frozenset({*PRINTABLE, *(one + other for one in PRINTABLE for other in " " + PRINTABLE)})
_ENDS = frozenset({*PRINTABLE, *(other + one for one in PRINTABLE for other in " " + PRINTABLE)})
_STOP = re.compile(rf"[{re.escape(STOPS)}](?=[A-Za-z0-9](?:[ -~]|\Z))")
# Texts with several boundaries, and with lookalikes.
_SAMPLES = (
    "It's 9 o'clock: the old (quiet) river 's  sings, 10,000 times.",
    " The quick brown fox; jumps over 'em all\n at once ",
    "co-operate \u0301 caf\u00e9 \u4e2d\u6587 \u2581 x \u00a0y z\u200d na\u00efve words.Words 3.14 end?no",
)


class WordCache:
    """Encode texts without special tokens, and never tokenize the same piece twice.

    A text is split at boundaries (see `boundaries`): before its last word or after its first word, if the
    longer part has been seen before; otherwise into its words. A text with an added token goes through the
    whole tokenizer.
    """

    def __init__(self, backend: Tokenizer, found: Boundaries, capacity: int = _CAPACITY) -> None:
        self._backend = backend
        self._prefix = found.prefix
        self._stops = found.stops
        self._capacity = capacity
        self._added = frozenset(backend.get_added_tokens_decoder())
        self._contents = added_contents(backend)
        self._forget()

    @classmethod
    def of(cls, backend: Tokenizer) -> WordCache | None:
        """Return a cache for a tokenizer; None if words cannot be encoded separately."""
        found = boundaries(backend)
        if found is None:
            return None
        cache = cls(backend, found)
        # From the second time on, longer parts are known.
        agrees = all(cache.encode(_SAMPLES) == _tokenized(backend, _SAMPLES) for _ in range(3))
        return cache if agrees else None

    def _forget(self) -> None:
        # New containers, because a call in another thread keeps using the old ones.
        self._beginnings: dict[str, _Ids] = {}
        self._continuations: dict[str, _Ids] = {}
        self._seen: set[int] = set()
        self._held = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the content ids of each text."""
        if self._held + _HASH_BYTES * len(self._seen) > self._capacity:
            self._forget()
        beginnings, continuations = self._beginnings, self._continuations
        cuts = [self._cut(text) for text in texts]
        self._learn(beginnings, chain.from_iterable((first, after) for first, _, after in cuts), "")
        self._learn(continuations, chain.from_iterable(words for _, words, _ in cuts), self._prefix)
        known = continuations.__getitem__
        ids: list[list[int]] = []
        whole = []
        for place, (first, words, after) in enumerate(cuts):
            parts = [beginnings[first], *map(known, words), beginnings[after]]
            if None in parts:
                whole.append(place)
            ids.append([token_id for part in parts if part for token_id in part])
        for place, own in zip(whole, _tokenized(self._backend, [texts[row] for row in whole]), strict=True):
            ids[place] = own
        return ids

    def _cut(self, text: str) -> tuple[str, list[str], str]:
        """Split a text into its beginning, the following pieces, and the rest after the last of them."""
        seen = self._seen
        head, blank, last = text.rpartition(" ")
        if not blank:
            return text, [], ""
        if head[-2:] in _ENDS and last[:2] in _STARTS:
            if head in self._beginnings or (key := hash(head)) in seen:
                if self._stops and (stop := _STOP.search(last)):
                    return head, [last[: stop.end()]], last[stop.end() :]
                return head, [last], ""
            seen.add(key)
        first, _, tail = text.partition(" ")
        if first[-2:] in _ENDS and tail[:2] in _STARTS:
            if tail in self._continuations or (key := hash(tail)) in seen:
                return first, [tail], ""
            seen.add(key)
        words = _BOUNDARY.split(text)
        return words[0], words[1:], ""

    def _learn(self, known: dict[str, _Ids], pieces: Iterable[str], prefix: str) -> None:
        """Tokenize the unknown pieces; a piece with an added token maps to None."""
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        added = self._added
        for piece, ids in zip(new, _tokenized(self._backend, [prefix + piece for piece in new]), strict=True):
            plain = added.isdisjoint(ids) or not self._may_hold_added(prefix + piece)
            known[piece] = tuple(ids) if plain else None
            self._held += _ENTRY_BYTES + 2 * len(piece) + _ID_BYTES * len(ids)

    def _may_hold_added(self, text: str) -> bool:
        """Check whether the text can contain an added token; the unknown token is often an added one, too."""
        normalizer = self._backend.normalizer
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        return any(content in text or content in normalized for content in self._contents)


def _tokenized(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Run the whole pipeline, without computing offsets."""
    if not texts:
        return []
    return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


# The published category tables count these roles, not cls, as special.
_SPECIAL_ROLES = ("bos", "eos", "pad", "unk", "sep", "mask")
_WORD = re.compile(r"\S+")
_OWN_TOKENIZER = ("entries", "special_ids", "decode_many", "encode_many")


class HuggingFaceTokenizer:
    """Batched access to a tokenizer, without padding, truncation or clean-up.

    It works on a copy of the Rust pipeline if there is one; a tokenizer written in Python is called text by
    text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = _own_backend(tokenizer)
        if self._backend is None and not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise ModelError(
                f"the vocabulary of a {type(tokenizer).__name__} contains words, not tokens: pass a model "
                "with a subword tokenizer"
            )
        if not set(self.entries) - self.special_ids - {getattr(tokenizer, "cls_token_id", None)}:
            raise ModelError("the tokenizer has only special tokens: pass a model with a vocabulary")

    @contextmanager
    def settings_kept(self) -> Iterator[None]:
        """Restore padding and truncation of the user's tokenizer at the end."""
        backend = _backend_of(self._tokenizer)
        if backend is None:
            yield
            return
        padding, truncation = backend.padding, backend.truncation
        try:
            yield
        finally:
            backend.no_padding() if padding is None else backend.enable_padding(**padding)
            backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)

    @cached_property
    def entries(self) -> Mapping[int, str]:
        """Vocabulary strings by ascending id."""
        vocabulary = self._backend.get_vocab() if self._backend else self._tokenizer.get_vocab()
        by_id = {int(token_id): _readable(token) for token, token_id in vocabulary.items()}
        return dict(sorted(by_id.items()))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids with a special role; cls alone does not count."""
        named = {
            token_id
            for role in _SPECIAL_ROLES
            if (token_id := getattr(self._tokenizer, f"{role}_token_id", None)) is not None
        }
        others = set(getattr(self._tokenizer, "all_special_ids", ()))
        if not hasattr(
            self._tokenizer, "all_special_ids"
        ):  # a bare pipeline marks its special tokens, without roles
            added = self._tokenizer.get_added_tokens_decoder()
            others = {token_id for token_id, token in added.items() if token.special}
        return frozenset(named | (others - {getattr(self._tokenizer, "cls_token_id", None)}))

    @cached_property
    def unknown_id(self) -> int | None:
        """Id of the unknown token; None without one."""
        found = getattr(self._tokenizer, "unk_token_id", None)
        if found is not None or self._backend is None:
            return found
        model = json.loads(self._backend.to_str())["model"]  # a bare pipeline has no roles
        token = model.get("unk_token")
        return model.get("unk_id") if token is None else self._backend.token_to_id(token)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the pipeline and the vocabulary."""
        if self._backend is not None:
            content = f"{self._backend.to_str()}|{self._backend.encode_special_tokens}"
        else:
            content = json.dumps([type(self._tokenizer).__name__, sorted(self.entries.items())])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode each list of ids, keeping special tokens, without clean-up."""
        if self._backend is not None:
            return self._backend.decode_batch([list(row) for row in ids], skip_special_tokens=False)
        return [
            self._tokenizer.decode(list(row), skip_special_tokens=False, clean_up_tokenization_spaces=False)
            for row in ids
        ]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text without special tokens, padding or truncation."""
        if self._backend is not None and self._words is not None:
            with suppress(TypeError):
                return self._words.encode(texts)
        if self._backend is not None:
            return [encoding.ids for encoding in self._encodings(texts)]
        return [self._tokenizer.encode(text, add_special_tokens=False, truncation=False) for text in texts]

    @cached_property
    def _words(self) -> WordCache | None:
        """Cache of encoded text, if the pipeline works word by word."""
        return None if self._backend is None else WordCache.of(self._backend)

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]] | None]]:
        """Return the ids of each text, as `encode_many` does, and the characters of each id.

        The second item is None if the tokenizer does not report offsets.
        """
        if self._backend is None:
            return [(ids, None) for ids in self.encode_many(texts)]
        return [(encoding.ids, encoding.offsets) for encoding in self._encodings(texts)]

    def tokenize(self, texts: Sequence[str], prompt: str = "") -> list[TokenizedText]:
        """Return the content ids of prompt + text, split at the words of the text.

        A token with both the end of the prompt and the start of the text counts as text. Without offsets,
        every token counts as a word.
        """
        if self._backend is None:
            heads = len(self.encode_many([prompt])[0]) if prompt else 0
            return [
                TokenizedText(tuple(ids[:heads]), tuple((token_id,) for token_id in ids[heads:]))
                for ids in self.encode_many([prompt + text for text in texts])
            ]
        encodings = self._encodings([prompt + text for text in texts])
        return [
            _cut(encoding, prompt + text, len(prompt))
            for encoding, text in zip(encodings, texts, strict=True)
        ]

    def _encodings(self, texts: Sequence[str]) -> list[Encoding]:
        if self._backend is None:
            raise ModelError("the tokenizer does not report offsets: use a fast tokenizer")
        try:
            return self._backend.encode_batch(list(texts), add_special_tokens=False)
        except TypeError as error:
            broken = next((text for text in texts if not _is_unicode(text)), None)
            if broken is None:
                raise
            raise EncodingError(
                f"the text {broken[:80]!r} contains half a surrogate pair: pass valid Unicode text"
            ) from error


def adapted(tokenizer: Any) -> RoundTripTokenizer:
    """Return a tokenizer of any kind as the vocabulary needs it."""
    if all(hasattr(tokenizer, part) for part in _OWN_TOKENIZER):
        own: RoundTripTokenizer = tokenizer
        return own
    return HuggingFaceTokenizer(tokenizer)


def vocabulary_size(tokenizer: Any) -> int | None:
    """Count the entries of a tokenizer, including added tokens; None if it cannot tell."""
    backend = _backend_of(tokenizer)
    if backend is not None:
        return backend.get_vocab_size()
    return len(tokenizer) if hasattr(tokenizer, "__len__") else None


def _cut(encoding: Encoding, text: str, prompt_length: int) -> TokenizedText:
    """Split the ids where a token begins a word, words being separated by whitespace."""
    starts = {match.start() for match in _WORD.finditer(text, prompt_length)}
    head: list[int] = []
    words: list[list[int]] = []
    begun = False
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if end <= prompt_length and not words and prompt_length:
            head.append(token_id)
            continue
        # A token may include the whitespace before its word; blank tokens belong to a word.
        spaces = len(text[start:end]) - len(text[start:end].lstrip())
        begins = start + spaces in starts and end > start
        if not words or (begins and begun):
            words.append([])
        if begins:
            starts.discard(start + spaces)
        begun = begun or not text[start:end].isspace()
        words[-1].append(token_id)
    return TokenizedText(tuple(head), tuple(tuple(word) for word in words))


def _backend_of(tokenizer: Any) -> Tokenizer | None:
    from tokenizers import Tokenizer

    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    return backend if isinstance(backend, Tokenizer) else None


def _own_backend(tokenizer: Any) -> Tokenizer | None:
    backend = _backend_of(tokenizer)
    if backend is None:
        return None
    own: Tokenizer = copy.deepcopy(backend)
    # A copy loses the first; a caller may have changed the others.
    own.encode_special_tokens = getattr(tokenizer, "split_special_tokens", backend.encode_special_tokens)
    own.no_padding()
    own.no_truncation()
    return own


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _readable(token: str | bytes) -> str:
    return token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else token
