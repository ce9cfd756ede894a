"""A corpus that a tokenizer cannot read is refused, and one that it reads stays as it is."""

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import planted
import tiny
from stickytoken import detect, load_tokenizer, probe
from stickytoken.data.corpora import PairCorpus, SentencePair, collect_sentences, readable
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.methods.registry import entries

CHINESE = [
    "今天天气很好",
    "我们去公园散步",
    "这本书讲述了一个故事",
    "他昨天坐飞机到了上海",
    "政府宣布了新的政策",
]
EMOJI = ["😀😃", "🎉🎊", "👍🙏👍", "🚀"]


@pytest.fixture(scope="module")
def wordpiece(bert_folder):
    return load_tokenizer(bert_folder)


def unigram(folder):
    pieces = [("<unk>", 0.0), ("▁", -1.0), *((letter, -2.0) for letter in "abcdefghijklmnopqrstuvwxyz.")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def test_a_corpus_of_unknown_characters_is_refused(wordpiece, tmp_path):
    for texts, tokenizer in ((CHINESE, wordpiece), (EMOJI, unigram(tmp_path))):
        with pytest.raises(InputError, match=r"of tiny does not know (9\d|100)% of the characters in test"):
            readable(collect_sentences(texts, "test"), tokenizer, "tiny")


@pytest.mark.parametrize("method", [entry.name for entry in entries()])
def test_a_run_on_such_a_corpus_is_refused_before_anything_is_encoded(encoder, tmp_path, method):
    """It would say: no sticky tokens."""
    texts = [f"{first}{second}" for first in CHINESE for second in CHINESE] * 2
    events = []
    with pytest.raises(InputError, match="does not know"):
        detect(encoder, method=method, sentences=texts, out=tmp_path / "run", progress=events.append)
    with pytest.raises(InputError, match="does not know"):
        probe(encoder, ["river"], method=method, sentences=texts, progress=events.append)
    assert events == []
    assert not (tmp_path / "run").exists()


def test_the_share_is_that_of_the_characters(wordpiece):
    corpus = collect_sentences([*tiny.sentences(60), "the river 今天 stone"], "test")
    characters = sum(len(text.replace(" ", "")) for text in corpus.texts)
    assert readable(corpus, wordpiece, "tiny").unknown == pytest.approx(2 / characters)


def test_a_small_share_is_told_and_recorded(encoder, tmp_path):
    texts = [*planted.small_corpus().texts, *(f"{text} {'今' * 3}" for text in planted.small_corpus().texts)]
    with pytest.warns(StickyTokenWarning, match=r"does not know \d\.\d% of the characters in the given list"):
        run = detect(encoder, sentences=texts, settings=planted.SMALL, tokens=[60], out=tmp_path / "run")
    assert 0.02 < run.record.corpus.unknown < 0.2


def test_sentences_that_unknown_tokens_make_equal_are_kept_once(wordpiece):
    texts = [*tiny.sentences(60), *(f"the {word} stone" for word in ("river 今", "river 天", "River 😀"))]
    texts.append("a 今 bird")
    found = readable(collect_sentences(texts, "test", topics=[str(k) for k in range(64)]), wordpiece, "tiny")
    assert found.texts == (*texts[:61], texts[63])
    assert found.topics == (*(str(k) for k in range(61)), "63")
    assert found.duplicates == 2
    # Texts that differ in case alone are two texts, as they were in published runs.
    corpus = collect_sentences([*tiny.sentences(60), tiny.sentences(60)[0].upper()], "test")
    assert readable(corpus, wordpiece, "tiny").fingerprint == corpus.fingerprint


def test_pairs_are_checked_too(wordpiece):
    pairs = tuple(SentencePair(text, "the river", 0.5) for text in CHINESE)
    with pytest.raises(InputError, match="of the characters in pairs"):
        readable(PairCorpus(pairs, "pairs"), wordpiece, "tiny")
    plain = PairCorpus((SentencePair("a stone", "the river", 0.5),), "pairs")
    assert readable(plain, wordpiece, "tiny").pairs == plain.pairs


def test_a_tokenizer_without_spans_counts_tokens():
    class Spanless:
        unknown_id = 0

        def encode_many(self, texts):
            return [[0 if "x" in word else 1 for word in text.split()] for text in texts]

        def encode_with_spans(self, texts):
            return [(ids, None) for ids in self.encode_many(texts)]

    texts = [f"a b c d e f g h i {letter}" for letter in "jklmnopqrst"] + ["a b c d e f g h i x"]
    assert readable(collect_sentences(texts, "test"), Spanless(), "model").unknown == pytest.approx(1 / 120)
