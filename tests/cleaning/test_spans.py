"""What is found in texts with planted copies, and what is left alone in natural ones."""

import itertools
from dataclasses import replace

import pytest
from tokenizers import Regex, normalizers

import tokenizers_of_kinds as kinds
from stickytoken.cleaning import Cleaner, CleaningRules, Fix, SpanKind, find_spans

BERT = kinds.description_of(kinds.tokenizer_with(kinds.normalizers_of_models()["BERT, uncased"]))
RULES = CleaningRules(words=("able", " Contract", "禾"), specials=("[SEP]", "<|endoftext|>"), normalizer=BERT)


def found(text, rules=RULES):
    return [(text[span.start : span.end], span.kind, span.count) for span in find_spans(text, rules)]


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        ("a normal pregnancyableableableable", "ableableableable"),
        ("able, Able. aBLE! ABLE the flow", "able, Able. aBLE! ABLE"),
        ("a\u200bble able \u00e0ble a\u0300ble flow", "a\u200bble able \u00e0ble a\u0300ble"),
        ("contract able contract able flow", "contract able contract able"),
        ("水禾禾禾禾水", "禾禾禾禾"),
    ],
)  # fmt: skip
def test_copies_of_a_flagged_word_in_a_row_are_one_span(text, copies):
    assert found(text) == [(copies, SpanKind.FLAGGED, 4)]


# As T5's normaliser does, which is in no package.
SPACING = normalizers.Replace(Regex("[\u200b-\u200f\ufeff]"), " ")


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), SPACING], ids=["none", "NFC", "to spaces"])
@pytest.mark.parametrize(
    "invisible", "\xad\u200b\u200c\u200d\u200e\u2060\ufeff\u202a\u2066\u206a\ufff9\U000e0020"
)
@pytest.mark.parametrize("word", ["able", "ذ"])
def test_invisible_characters_between_copies_hide_none(word, invisible, normalizer):
    """The normaliser keeps them, or makes spaces of them."""
    description = normalizer and kinds.description_of(kinds.tokenizer_with(normalizer))
    rules = CleaningRules(words=(word,), normalizer=description)
    for text in (f"the {invisible.join([word] * 8)} air", f"the {(word + invisible) * 8} air"):
        (span,) = find_spans(text, rules)
        assert (span.kind, span.count, span.fix) == (SpanKind.FLAGGED, 8, Fix.SAFE)
        assert Cleaner(rules)(text) == "the air"


@pytest.mark.parametrize(("copies", "fix"), [(2, Fix.UNSAFE), (3, Fix.SAFE), (8, Fix.SAFE)])
def test_few_copies_in_a_row_are_found_and_three_are_no_ordinary_text(copies, fix):
    """Two of a sticky token may hide a document, but also be a name, such as "Baden Baden"."""
    row = " ".join(["able"] * copies)
    (span,) = find_spans(f"the wings {row} of the plane", RULES)
    assert (span.count, span.fix, span.is_certain) == (copies, fix, fix is Fix.SAFE)


def test_copies_between_other_words_are_found_without_these_words():
    text = "flow of able the able the able the able the"
    spans = find_spans(text, RULES)
    assert [(text[span.start : span.end], span.count, span.fix) for span in spans] == [
        ("able", 1, Fix.UNSAFE)
    ] * 4


@pytest.mark.parametrize(
    "text",
    [
        "She was able to sign the contract.",
        "able",
        "very very very good",
        "0 0 0 0 0 0",
        "o, o, n, n, no, no, no, no, o, o, n, n",
        "the effect of the shape of the nose of the body of the plane",
        "",
        "haha hahahaha",
        "It is a view into a dict-of-dict-of-dict-of-dict structure.",
        "Bounds are a tuple (float, float, float, float) in points.",
        "│ i64 ┆ i64 ┆ i64 ┆ i64 ┆ i64 │",
        "The end of the end of the end of the matter.",
        # Six times the same word, but in company, as documents about a contract have it.
        "The contract was signed in May. Under the contract the seller delivers the goods, and the buyer "
        "pays for them once the contract ends. Whoever breaks the contract pays damages. A new version of "
        "the contract was drawn up in June, and the contract now covers repairs.",
    ],
)
def test_natural_text_is_left_alone(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("before", "run", "behind"),
    [
        ("", "very very very very", " good"),
        ("so ", "buy it now buy it now buy it now buy it now", ""),
        ("他说", "哈哈哈哈", "然后走了"),
        ("他说", "你好你好你好你好", "然后走了"),
    ],
)
def test_runs_of_other_words_and_phrases_are_found(before, run, behind):
    assert found(before + run + behind) == [(run, SpanKind.REPETITION, 4)]


def test_a_few_words_in_no_fixed_order_are_no_repetition():
    text = "zebra lion lion tiger zebra tiger lion zebra zebra tiger lion lion tiger tiger zebra lion"
    assert SpanKind.REPETITION not in {kind for _, kind, _ in found(f"air {text} flow")}


def test_many_copies_are_a_guess_unless_they_keep_company():
    positions = (3, 10, 24, 31, 45, 52, 70, 90)

    def planted(copies):
        return " ".join(f"word{n} {copies}" if n in positions else f"word{n}" for n in range(100))

    assert {kind for _, kind, _ in found(planted("zebra"))} == {SpanKind.SUSPECTED}
    assert found(planted("boundary layer")) == []


def test_special_tokens_are_found_as_the_tokenizer_reads_them():
    text = "<|endof<|endoftext|>text|> ［ＳＥＰ］ air [SEP][SEP] [S\u200bEP] [sep]"
    assert [span_text for span_text, kind, _ in found(text)] == ["<|endoftext|>", "[SEP]", "[SEP]"]


NORMALIZED = CleaningRules(
    specials=("<unk>", "<s>", "[SEP]"), normalized_specials=("<unk>", "<s>"), normalizer=BERT
)


@pytest.mark.parametrize("spelling", ["<UNK>", "<Unk>", "<ünk>", "<u\u0308nk>", "<u\u200bnk>", "<unk>"])
def test_special_tokens_that_are_normalised_are_found_in_every_spelling(spelling):
    text = f"the {spelling} river{spelling}[sep] <un[SEP]k> < unk >"
    spans = find_spans(text, NORMALIZED)
    assert [(text[span.start : span.end], span.what, span.fix) for span in spans] == [
        (spelling, "<unk>", Fix.SAFE),
        (spelling, "<unk>", Fix.SAFE),
        ("[SEP]", "[SEP]", Fix.NONE),
    ]


def test_a_normaliser_that_treats_characters_together_makes_no_special_token():
    nfc = kinds.description_of(kinds.tokenizer_with(kinds.normalizers_of_models()["byte-level, NFC"]))
    rules = CleaningRules(specials=("[MASK]",), normalized_specials=("[MASK]",), normalizer=nfc)
    assert found("[MAS\u212a] [MASK\u0327] [MA\u0308SK]", rules) == [("[MAS\u212a]", SpanKind.SPECIAL, 1)]


@pytest.mark.parametrize(
    "text", ["`<UNK>`", "[<UNK>](x.html)", "&lt;UNK&gt;", "<P><S>a</S> <S>b</S> <S>c</S></P>"]
)
def test_other_spellings_stay_where_special_tokens_do(text):
    spans = find_spans(text, NORMALIZED)
    assert {span.fix for span in spans} == {Fix.NONE}


@pytest.mark.parametrize("allowed", ["<unk>", "<UNK>"])
def test_an_allowed_special_token_that_is_normalised_is_allowed_in_every_spelling(allowed):
    rules = replace(NORMALIZED, words=("<unk>",), allowed=(allowed,))
    assert find_spans("<unk> <UNK> <Unk> <ünk> <unk> the river", rules) == []


@pytest.mark.parametrize(("copies", "kind"), [(2, SpanKind.SPECIAL), (3, SpanKind.FLAGGED)])
def test_three_copies_of_a_flagged_special_token_are_flagged_wherever_they_stand(copies, kind):
    rules = CleaningRules(words=("[CLS]",), specials=("[CLS]", "[SEP]"))
    text = "[SEP] " + " of wings and of air ".join(["[CLS]"] * copies)
    expected = [("[SEP]", SpanKind.SPECIAL, 1), *[("[CLS]", kind, 1)] * copies]
    assert found(text, rules) == expected
    assert all(span.is_special and span.is_certain for span in find_spans(text, rules))


def test_a_strike_tag_is_a_special_token_only_in_plain_text():
    rules = CleaningRules(specials=("<s>", "</s>"))
    assert {span.fix for span in find_spans("air <s> flow </s>", rules)} == {Fix.SAFE}
    assert {span.fix for span in find_spans("<p>air <s>flow</s></p>", rules)} == {Fix.NONE}
    struck = "<ul><li><s>air</s></li><li><s>flow</s> <s>layer</s></li></ul>"
    assert {span.fix for span in find_spans(struck, rules)} == {Fix.NONE}


@pytest.mark.parametrize("text", ["able able able", "able able", "<pad>", "[CLS]"])
def test_the_whole_text_of_a_link_stays(text):
    rules = CleaningRules(words=("able",), specials=("<pad>", "[CLS]"))
    for link in (f"air [{text}](x.html) flow", f"[{text}](https://x.org/)"):
        spans = find_spans(link, rules)
        assert spans
        assert {span.fix for span in spans} == {Fix.NONE}
    (span, *_) = find_spans(f"air [see {text} {text}](x.html) flow", rules)
    assert span.fix is not Fix.NONE


@pytest.mark.parametrize("specials", [("<s>", "</s>"), ("</s>",)])
def test_tags_whose_counterpart_is_no_special_token_stay(specials):
    opening = '<s class="old">' if "<s>" in specials else "<s>"
    text = f"<p>{opening}10 euros</s> 8, {opening}20 euros</s> 15 and {opening}30 euros</s> 25.</p>"
    spans = find_spans(text, CleaningRules(specials=specials))
    assert [(span.what, span.fix) for span in spans] == [("</s>", Fix.NONE)] * 3


@pytest.mark.parametrize("copies", ["<s>" * 8, "<s> . " * 8, "<s></s>" * 4, "<s><i></i>" * 8, "<s>a " * 8])
def test_copies_of_a_strike_tag_are_removed_from_html_too(copies):
    rules = CleaningRules(specials=("<s>", "</s>"))
    spans = find_spans(f"<p>air <s>flow</s></p><p>{copies}</p>", rules)
    assert [span.fix for span in spans] == [Fix.NONE, Fix.NONE, *[Fix.SAFE] * 8]


def test_flagged_words_in_a_repeated_phrase_are_found_and_the_other_words_are_not():
    text = "flow" + " able one two three" * 4
    assert found(text) == [("able", SpanKind.FLAGGED, 1)] * 4


@pytest.mark.parametrize("word", ["its", "a", "…"])
def test_a_flagged_word_of_every_text_must_make_up_much_of_one(word):
    rules = CleaningRules(words=(word,))
    assert find_spans(f"{word} shape of {word} nose and {word} tail in {word} flow near walls", rules) == []
    spans = find_spans(f"air {word} {word} {word} {word} {word} {word}", rules)
    assert {span.fix for span in spans} == {Fix.UNSAFE}


@pytest.mark.parametrize("copies", ["able able {}", "so, able {}", "{} able, so"])
def test_other_copies_and_what_punctuation_separates_are_no_company(copies):
    fillers = [f"word{number}" for number in range(60)]
    text = " ".join(" ".join([*fillers[at : at + 9], copies.format(f"end{at}")]) for at in range(0, 60, 10))
    assert sum(count for _, kind, count in found(text) if kind is SpanKind.FLAGGED) == text.count("able")


@pytest.mark.parametrize(
    ("copy", "copies", "uneven", "count"),
    [("violet", 6, 0, 6), ("violet", 5, 0, 0), ("violet", 6, 9, 0), ("deep violet", 6, 0, 0)],
)
def test_another_word_at_regular_distances_in_ever_new_company_is_planted(copy, copies, uneven, count):
    words = ["".join(letters) for letters in itertools.product("bdfgk", "aeiou", "lmnr", "aeio")]
    sentences = [words[20 * start : 20 * start + 20 + start % 2 * uneven] for start in range(copies)]
    text = " ".join(" ".join([*sentence, copy]) for sentence in sentences)
    assert found(text) == [("violet", SpanKind.SUSPECTED, 1)] * count
