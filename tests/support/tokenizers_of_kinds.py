"""Small tokenizers with the normalisers of well-known models, and spellings that some of them read alike."""

import unicodedata

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer

WORDS = (
    "cafe",
    "flow",
    "fire",
    "strasse",
    "ذ",
    "ثم",
    "йод",
    "기술",
    "が",
    "ñandu",
    "x1",
    "Able",
    "mākua",
    "กา",
    "बाढ़",
)
MARKS = "\u0301\u0327\u064e\u0650\u0336\u20dd\ufe0f\u093e"
INVISIBLE = "\u200b\u00ad\u200d\u2060\ufeff"
REPLACED = {"fi": "ﬁ", "ss": "ß", "1": "①", "a": "𝐚", "i": "İ", "k": "\u212a", "e": "é", "й": "и", "o": "ｏ"}


def spellings(word):
    """Other spellings of a word: case, accents, composition, width, compatibility, invisible characters."""
    forms = {word.upper(), word.title(), word.lower()}
    forms |= {unicodedata.normalize(form, word) for form in ("NFC", "NFD", "NFKC")}
    forms |= {word[0] + mark + word[1:] for mark in MARKS}
    forms |= {word[0] + sign + word[1:] for sign in INVISIBLE}
    forms |= {word + sign for sign in INVISIBLE} | {sign + word for sign in INVISIBLE}
    forms |= {word.replace(old, new) for old, new in REPLACED.items()}
    return sorted(forms - {word})


def normalizers_of_models():
    """Normalisers, as tokenizers of these models have them; None does nothing."""
    bert = normalizers.BertNormalizer
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    albert = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    return {
        "BERT, uncased": bert(lowercase=True),
        "BERT, cased": bert(lowercase=False),
        "BERT, cased, without accents": bert(lowercase=False, strip_accents=True),
        "byte-level": None,
        "byte-level, NFC": normalizers.NFC(),
        "SentencePiece, NFKC": normalizers.NFKC(),
        "ALBERT": normalizers.Sequence(albert),
        "CLIP": normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()]),
        "Gemma": normalizers.Replace(" ", "\u2581"),
        "Llama": normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
    }


def tokenizer_with(normalizer):
    """A byte-level tokenizer, which reads two texts alike only if its normaliser makes them equal."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    # White space around words is no spelling.
    split = pre_tokenizers.Split(Regex("[\\s\u2581]+"), "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["the river floods the town"], trainer)
    return tokenizer


def description_of(tokenizer):
    """The normaliser of a tokenizer, as rules carry it."""
    return HuggingFaceTokenizer(tokenizer).normalizer
