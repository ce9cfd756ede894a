"""Tiny random models of many architectures, each with the kind of tokenizer that it comes with."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

import tiny

MAX_LENGTH = 96
DIMENSION = 32
_SIZES = {"hidden_size": DIMENSION, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_SIZES |= {"initializer_range": 0.2}
_Pieces: TypeAlias = tuple[dict[str, int], list[tuple[str, str]]]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SIGNS = ".,!?:'0123456789"
_CAUSAL_POOLINGS = ("mean", "lasttoken")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

HOSTILE_TEXTS = (
    "", " ", "   \t ", " the river ", "the  river   sings", "the\nriver\r\nsings\n",
    "the\x00river\x07 sings\x1b[31m", "river\u200bstone \ufeffbird\u00ad", "\u0301 \u0308",
    "cafe\u0301 café", "👩‍👩‍👧‍👦 🙂", "река 川 نهر नदी river", "ﬁnancial ① ½ Ａ", "river" * 9,
    "[CLS] [PAD] <s> </s> <pad> <unk> <|endoftext|> <bos> <eos>", "<b>&amp;</b> {{river}} %s \\n",
    "\ufffd \ud7ff \ue000 \U0010fffe",
)  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    name: str
    save: Callable[[Path], Path]
    absolute_positions: bool = False
    poolings: tuple[str, ...] = ("mean", "cls", "lasttoken")
    empty: bool = False


def unigram_pieces(specials: list[str], last: tuple[str, ...] = ()) -> list[tuple[str, float]]:
    """SentencePiece unigram entries with scores: words, word ends, letters and signs."""
    scores = {**dict.fromkeys(specials, 0.0), "▁": -3.0}
    words = (word for word in tiny.WORDS if len(word) > 1)
    ends = ("s", "ing", "er", "en", "in", "ou", "st")
    scores |= {f"▁{word}": -4.0 - 0.01 * rank for rank, word in enumerate(words)}
    scores |= {f"▁{letter}": -6.0 - 0.01 * rank for rank, letter in enumerate(_LETTERS)}
    scores |= {end: -5.0 - 0.01 * rank for rank, end in enumerate(ends)}
    scores |= {sign: -7.0 - 0.01 * rank for rank, sign in enumerate(_LETTERS + _SIGNS) if sign not in scores}
    return [*scores.items(), *((piece, 0.0) for piece in last)]


def byte_pieces(specials: list[str]) -> _Pieces:
    """Vocabulary and merges of a byte-level BPE trained on tiny sentences, special entries first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return _trained(tokenizer, specials, alphabet, size=400)


def sentencepiece_pieces(specials: list[str]) -> _Pieces:
    """Vocabulary and merges of a SentencePiece BPE with one entry a byte, special entries first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return _trained(tokenizer, [*specials, *_BYTES], ["▁", *_LETTERS, *_SIGNS], size=200)


def _trained(tokenizer: Tokenizer, first: list[str], alphabet: list[str], size: int) -> _Pieces:
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(tiny.sentences(300), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return (
        {piece: token_id for token_id, piece in enumerate(dict.fromkeys([*first, *pieces]))},
        [(first, right) for first, right in model["merges"]],
    )


def bert_tokenizer() -> transformers.BertTokenizer:
    """WordPiece, [CLS] and [SEP] around the text."""
    return transformers.BertTokenizer(tiny.wordpiece_tokenizer().get_vocab(), model_max_length=MAX_LENGTH)


def mpnet_tokenizer() -> transformers.MPNetTokenizer:
    """WordPiece, <s> and </s> around the text; the model insists on 1 for the padding."""
    entries_by_id = tiny.wordpiece_tokenizer().get_vocab()
    pieces = [
        entry for entry in sorted(entries_by_id, key=entries_by_id.__getitem__) if entry not in tiny.SPECIALS
    ]
    entries = ["<s>", "<pad>", "</s>", "[UNK]", *pieces, "<mask>"]
    vocabulary = {entry: token_id for token_id, entry in enumerate(entries)}
    return transformers.MPNetTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH)


def roberta_tokenizer() -> transformers.RobertaTokenizer:
    """Byte-level BPE, <s> and </s> around the text."""
    vocabulary, merges = byte_pieces(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges, model_max_length=MAX_LENGTH)


def xlm_roberta_tokenizer() -> transformers.XLMRobertaTokenizer:
    """Unigram, <s> and </s> around the text."""
    pieces = unigram_pieces(["<s>", "<pad>", "</s>", "<unk>"], ("<mask>",))
    return transformers.XLMRobertaTokenizer(pieces, model_max_length=MAX_LENGTH)


def t5_tokenizer() -> transformers.T5Tokenizer:
    """Unigram, </s> behind the text."""
    extra = tuple(f"<extra_id_{number}>" for number in range(2, -1, -1))
    pieces = unigram_pieces(["<pad>", "</s>", "<unk>"], extra)
    return transformers.T5Tokenizer(vocab=pieces, extra_ids=3, model_max_length=MAX_LENGTH)


def modernbert_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of the bare class, [CLS] and [SEP] around the text."""
    vocabulary, merges = byte_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tiny.with_bert_specials(tokenizer, MAX_LENGTH)


def qwen_tokenizer(*, closing: bool) -> transformers.Qwen2Tokenizer:
    """Byte-level BPE, nothing or <|endoftext|> behind the text; that is also the padding."""
    vocabulary, merges = byte_pieces(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges, model_max_length=MAX_LENGTH)
    if closing:
        template = processors.TemplateProcessing("$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
        tokenizer.backend_tokenizer.post_processor = template
    return tokenizer


def mistral_tokenizer() -> transformers.LlamaTokenizer:
    """SentencePiece BPE with bytes, a blank put in front, <s> and </s> around the text."""
    vocabulary, merges = sentencepiece_pieces(["<unk>", "<s>", "</s>"])
    return transformers.LlamaTokenizer(
        vocab=vocabulary,
        merges=merges,
        pad_token="</s>",
        add_bos_token=True,
        add_eos_token=True,
        model_max_length=MAX_LENGTH,
    )


def gemma_tokenizer() -> transformers.GemmaTokenizer:
    """SentencePiece BPE with bytes, no blank put in front, <bos> before the text."""
    vocabulary, merges = sentencepiece_pieces(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    return transformers.GemmaTokenizer(
        vocab=vocabulary, merges=merges, add_bos_token=True, model_max_length=MAX_LENGTH
    )


def byt5_tokenizer() -> transformers.ByT5Tokenizer:
    """Bytes; written in Python, so without offsets."""
    return transformers.ByT5Tokenizer(extra_ids=3, model_max_length=MAX_LENGTH)


def _random(
    kind: str,
    seed: int,
    make_tokenizer: Callable[[], PreTrainedTokenizerBase],
    roles: tuple[str, ...] = ("pad", "bos", "eos"),
    model: str = "Model",
    **settings,
) -> Callable[..., Path]:
    """A function that saves a random model of a kind that transformers knows and its tokenizer."""

    def save(folder: Path, tokenizer: PreTrainedTokenizerBase | None = None, **changes) -> Path:
        tokenizer = tokenizer or make_tokenizer()
        ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in roles}
        config = getattr(transformers, f"{kind}Config")
        torch.manual_seed(seed)
        backbone = getattr(transformers, f"{kind}{model}")(
            config(vocab_size=len(tokenizer), **ids | settings | changes)
        )
        # A fresh model has a zero row for its padding; a trained one that also closes texts with it has not.
        torch.nn.init.normal_(backbone.get_input_embeddings().weight, std=0.2)
        return tiny.save_backbone(folder, backbone, tokenizer)

    return save


_POSITIONS = {"max_position_embeddings": MAX_LENGTH}
# RoBERTa and its kin count positions from behind the padding, whose id is 1.
_SHIFTED = {"max_position_embeddings": MAX_LENGTH + 2, **_SIZES}
_WINDOWS = {"local_attention": 8, "global_attn_every_n_layers": 2, "bos_token_id": None, "eos_token_id": None}
_T5 = {
    "d_model": DIMENSION,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "initializer_factor": 0.5,
}
_T5 |= {"relative_attention_num_buckets": 8, "decoder_start_token_id": 0}
_DISTIL = {"dim": DIMENSION, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "initializer_range": 0.2}
_DECODER = {"num_key_value_heads": 2, **_POSITIONS, **_SIZES}
_CAPPED = {"head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8}

bert = _random("Bert", 1, bert_tokenizer, ("pad",), **_POSITIONS, **_SIZES)
distilbert = _random("DistilBert", 2, bert_tokenizer, ("pad",), **_POSITIONS, **_DISTIL)
mpnet = _random("MPNet", 3, mpnet_tokenizer, **_SHIFTED)
roberta = _random("Roberta", 4, roberta_tokenizer, type_vocab_size=1, **_SHIFTED)
xlm_roberta = _random("XLMRoberta", 5, xlm_roberta_tokenizer, type_vocab_size=1, **_SHIFTED)
modernbert = _random(
    "ModernBert", 6, modernbert_tokenizer, ("pad", "cls", "sep"), **_POSITIONS, **_WINDOWS, **_SIZES
)
t5 = _random("T5", 7, t5_tokenizer, ("pad", "eos"), "EncoderModel", **_T5)
byt5 = _random("T5", 7, byt5_tokenizer, ("pad", "eos"), "EncoderModel", **_T5)
llama = _random("Llama", 12, gemma_tokenizer, **_DECODER)
qwen2 = _random("Qwen2", 8, lambda: qwen_tokenizer(closing=False), **_DECODER)
qwen3 = _random("Qwen3", 9, lambda: qwen_tokenizer(closing=True), head_dim=8, **_DECODER)
mistral = _random("Mistral", 10, mistral_tokenizer, sliding_window=16, **_DECODER)
gemma2 = _random("Gemma2", 11, gemma_tokenizer, **_CAPPED, **_DECODER)


def qwen2_chat(folder: Path) -> Path:
    """Qwen2 with a chat template, which the library then puts around every text."""
    tokenizer = qwen_tokenizer(closing=False)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{{ message['content'] if message['content'] is string else message['content'][0]['text'] }}"
        "<|im_end|>\n{% endfor %}"
    )
    return qwen2(folder, tokenizer)


ARCHITECTURES = (
    Architecture("bert", bert, absolute_positions=True),
    Architecture("distilbert", distilbert, absolute_positions=True),
    Architecture("mpnet", mpnet),
    Architecture("roberta", roberta),
    Architecture("xlm-roberta", xlm_roberta),
    Architecture("modernbert", modernbert),
    Architecture("t5", t5),
    Architecture("byt5", byt5, poolings=("mean",)),
    Architecture("qwen2", qwen2, poolings=_CAUSAL_POOLINGS, empty=True),
    Architecture("qwen2-chat", qwen2_chat, poolings=("lasttoken",)),
    Architecture("qwen3", qwen3, poolings=_CAUSAL_POOLINGS),
    Architecture("mistral", mistral, poolings=_CAUSAL_POOLINGS),
    Architecture("gemma2", gemma2, poolings=_CAUSAL_POOLINGS),
)


stacked = tiny.sentence_transformer


def router(query: SentenceTransformer, document: SentenceTransformer) -> SentenceTransformer:
    routes = Router.for_query_document(
        query_modules=list(query), document_modules=list(document), default_route="document"
    )
    return SentenceTransformer(modules=[routes], device="cpu")


def static_model(dimension: int = DIMENSION, **options) -> SentenceTransformer:
    """A bag of word vectors: no special tokens, no longest input."""
    tokenizer = Tokenizer.from_str(tiny.wordpiece_tokenizer().backend_tokenizer.to_str())
    tokenizer.no_truncation()
    generator = torch.Generator().manual_seed(22)
    rows = torch.randn((tokenizer.get_vocab_size(), dimension), generator=generator)
    return tiny.static_model(tokenizer, rows, **options)


def saved(model: SentenceTransformer, folder: Path) -> Path:
    model.save(str(folder), create_model_card=False)
    return folder
