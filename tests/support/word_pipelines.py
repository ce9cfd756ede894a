"""Tokenizers of many kinds, and the hostile texts that they are given."""

import json
from collections.abc import Callable, Sequence

import transformers
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

import tiny
import tiny_architectures as architectures

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def changed(
    build: Callable[[], transformers.PreTrainedTokenizerBase],
    *,
    added: Sequence[AddedToken] = (),
    model: dict[str, object] | None = None,
    **parts: object,
) -> Tokenizer:
    """A pipeline with other parts, added tokens or settings of its model."""
    pipeline = json.loads(build().backend_tokenizer.to_str())
    pipeline["model"] |= model or {}
    tokenizer = Tokenizer.from_str(json.dumps(pipeline))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.add_tokens(list(added))
    return tokenizer


def unigram(normalizer: object, pre_tokenizer: object) -> Tokenizer:
    return changed(architectures.t5_tokenizer, normalizer=normalizer, pre_tokenizer=pre_tokenizer)


def legacy_llama() -> Tokenizer:
    """The mark comes from the normalizer; nothing is split before the merges."""
    return changed(
        architectures.mistral_tokenizer,
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        pre_tokenizer=None,
    )


ADDED = (
    AddedToken("<left>", lstrip=True),
    AddedToken("<right>", rstrip=True, normalized=False),
    AddedToken("stone", single_word=True),
    AddedToken("Mixed"),
    AddedToken("  "),
)

CACHED: dict[str, Callable[[], Tokenizer]] = {
    "bert": lambda: architectures.bert_tokenizer().backend_tokenizer,
    "bert, cased": lambda: changed(
        architectures.bert_tokenizer, normalizer=normalizers.BertNormalizer(lowercase=False)
    ),
    "bert, added tokens": lambda: changed(architectures.bert_tokenizer, added=ADDED),
    "bert, short words": lambda: changed(architectures.bert_tokenizer, model={"max_input_chars_per_word": 6}),
    "mpnet": lambda: architectures.mpnet_tokenizer().backend_tokenizer,
    "roberta": lambda: architectures.roberta_tokenizer().backend_tokenizer,
    "roberta, blank in front": lambda: changed(
        architectures.roberta_tokenizer, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)
    ),
    "roberta, added tokens": lambda: changed(architectures.roberta_tokenizer, added=ADDED),
    "roberta, whole words": lambda: changed(architectures.roberta_tokenizer, model={"ignore_merges": True}),
    "modernbert": lambda: architectures.modernbert_tokenizer().backend_tokenizer,
    "qwen": lambda: architectures.qwen_tokenizer(closing=True).backend_tokenizer,
    "llama 3": lambda: changed(
        lambda: architectures.qwen_tokenizer(closing=False),
        normalizer=None,
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    ),
    "t5": lambda: architectures.t5_tokenizer().backend_tokenizer,
    "xlm-roberta": lambda: architectures.xlm_roberta_tokenizer().backend_tokenizer,
    "t5, added tokens": lambda: changed(architectures.t5_tokenizer, added=ADDED),
    "bge": lambda: unigram(
        normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), "▁")]
        ),
        pre_tokenizers.Metaspace(prepend_scheme="always"),
    ),
    "albert": lambda: unigram(
        normalizers.Sequence(
            [
                normalizers.Replace("``", '"'),
                normalizers.Replace("''", '"'),
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
            ]
        ),
        pre_tokenizers.Metaspace(prepend_scheme="always"),
    ),
    "unigram, first": lambda: unigram(None, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "unigram, never": lambda: unigram(normalizers.NFC(), pre_tokenizers.Metaspace(prepend_scheme="never")),
    "mistral": lambda: architectures.mistral_tokenizer().backend_tokenizer,
    "mistral, added tokens": lambda: changed(architectures.mistral_tokenizer, added=ADDED),
    "gemma": lambda: architectures.gemma_tokenizer().backend_tokenizer,
    "legacy llama": legacy_llama,
    "words": lambda: bare(models.WordLevel({"[UNK]": 0, "the": 1, "river": 2}, unk_token="[UNK]")),
}


def bare(model: object) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def crossing_merges() -> Tokenizer:
    """Merges that join the end of a word with the mark of the next."""
    pipeline = json.loads(architectures.gemma_tokenizer().backend_tokenizer.to_str())
    pipeline["model"]["vocab"]["s▁"] = len(pipeline["model"]["vocab"])
    pipeline["model"]["merges"].insert(0, ["s", "▁"])
    return Tokenizer.from_str(json.dumps(pipeline))


def template(text: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(text)


NOT_CACHED: dict[str, Callable[[], Tokenizer]] = {
    "merges over words": crossing_merges,
    "whole texts looked up": lambda: changed(architectures.gemma_tokenizer, model={"ignore_merges": True}),
    "other symbols inside a text": lambda: changed(
        architectures.gemma_tokenizer, model={"continuing_subword_prefix": "#", "merges": []}
    ),
    "sums over the whole text": lambda: unigram(
        None, pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    ),
    "ends cut off": lambda: unigram(
        normalizers.Strip(left=True), pre_tokenizers.Metaspace(prepend_scheme="always")
    ),
    "an expression": lambda: unigram(
        normalizers.Replace(Regex(r"\w+ \w+"), "river"), pre_tokenizers.Metaspace()
    ),
    "two words replaced": lambda: unigram(normalizers.Replace("s t", "st"), pre_tokenizers.Metaspace()),
    "the mark replaced": lambda: unigram(
        normalizers.Sequence([normalizers.Replace(" ", "▁"), normalizers.Replace("▁t", "t")]),
        pre_tokenizers.Metaspace(),
    ),
    "an end replaced": lambda: unigram(normalizers.Replace("s", ""), pre_tokenizers.Metaspace()),
    "an end replaced by a blank": lambda: unigram(normalizers.Replace("s", " "), pre_tokenizers.Metaspace()),
    "an unknown split": lambda: changed(
        lambda: architectures.qwen_tokenizer(closing=False),
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    ),
    "no split of bytes": lambda: changed(
        architectures.roberta_tokenizer,
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ),
    "blanks kept": lambda: changed(
        architectures.bert_tokenizer, pre_tokenizer=pre_tokenizers.Punctuation("merged_with_previous")
    ),
    "a text of a mark": lambda: changed(
        architectures.mistral_tokenizer, normalizer=normalizers.Prepend("x"), pre_tokenizer=None
    ),
    "an added token of two words": lambda: changed(
        architectures.bert_tokenizer, added=[AddedToken("the river")]
    ),
    "an added blank": lambda: changed(architectures.roberta_tokenizer, added=[AddedToken(" ")]),
    "an added word with its blank": lambda: changed(
        architectures.gemma_tokenizer, added=[AddedToken(" river", normalized=True)]
    ),
    "the text twice": lambda: changed(architectures.bert_tokenizer, post_processor=template("$A $A")),
}

_ODD = [
    *(
        "\x00",
        "\x07",
        "\x1b[31m",
        "\t",
        "\n",
        "\r\n",
        "\x85",
        "\u00a0",
        "\u2003",
        "\u3000",
        "\u2028",
        "\u200b",
    ),
    *(
        "\u200d",
        "\ufeff",
        "\u00ad",
        "\u0301",
        "\u0308",
        "\u0338",
        "e\u0301",
        "a\u0323\u0307",
        "\u0600",
        "\u1100",
    ),
    *(
        "中文",
        "漢",
        "ひらがな",
        "👩‍👩‍👧",
        "🙂",
        "🇩🇪",
        "▁",
        "▁the",
        "##s",
        "İ",
        "ß",
        "ΟΔΟΣ",
        "ς",
        "ǆ",
        "ﬁ",
        "①",
        "½",
    ),
    *("نهر", "שלום", "\u202e", "नदी", "Ａ", "\ufffd", "\U0010fffe", "´", "¨", "``", "''", "'s", "'T", "'"),
]
_ADDED = [
    *("[CLS]", "[MASK]", "[mask]", "[UNK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>"),
    *("<left>", "<right>", "stone", "Mixed", "mixed", "<extra_id_1>", "<0x41>", "<bos>"),
]
_WORDS = [
    *tiny.WORDS,
    "The",
    "RIVER",
    "walks.",
    "42",
    "10,000",
    "don't",
    "x",
    "river" * 30,
    "end.Start",
    "a?b",
]
_pieces = st.one_of(
    st.sampled_from(_WORDS),
    st.sampled_from([" ", " ", " ", "  ", *".,!?-(\"'"]),
    st.sampled_from([*_ODD, *_ADDED]),
)
glued = st.lists(_pieces, max_size=14).map("".join)
spaced = st.lists(
    st.one_of(st.sampled_from(_WORDS), st.sampled_from([*_ODD, *_ADDED, ""])), min_size=1, max_size=9
).map(" ".join)
hostile_texts = st.one_of(glued, spaced, st.text(max_size=30))
tokens = st.one_of(
    st.sampled_from([*_WORDS, *_ODD, *_ADDED]), st.sampled_from(_WORDS).map(" {}".format), st.text(max_size=4)
)
