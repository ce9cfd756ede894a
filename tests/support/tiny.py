"""Tiny real models and tokenizers, built in memory from a configuration and a seed."""

from collections.abc import Sequence
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = (
    "the a of and to in is was on with river stone bird winter market song letter engine green old quick "
    "quiet walks sings falls opens builds carries night morning paper glass copper garden window road "
    "teacher farmer sailor doctor baker hides finds breaks mends paints counts near under over behind"
).split()
PIECES = ["##s", "##ing", "##ed", "##er", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece_tokenizer(max_length: int = 64, words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A BERT tokenizer over a few dozen words and all letters, and over further words behind them."""
    entries = [
        *SPECIALS,
        "[unused0]",
        *"abcdefghijklmnopqrstuvwxyz.,!?0123456789",
        *(word for word in WORDS if len(word) > 1),
        *PIECES,
        *words,
    ]
    vocabulary = {entry: token_id for token_id, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return with_bert_specials(tokenizer, max_length, "token_type_ids")


def with_bert_specials(tokenizer: Tokenizer, max_length: int, *inputs: str) -> PreTrainedTokenizerFast:
    """A tokenizer for transformers, [CLS] and [SEP] around the text."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_max_length=max_length,
        model_input_names=["input_ids", *inputs, "attention_mask"],
    )


def save_backbone(folder: Path, model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bert_backbone(
    folder: Path,
    *,
    max_length: int = 64,
    seed: int = 0,
    words: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerFast | None = None,
    hidden_size: int = 32,
    initializer_range: float = 0.4,
) -> Path:
    tokenizer = tokenizer or wordpiece_tokenizer(max_length, words)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=max_length,
        initializer_range=initializer_range,
    )
    return save_backbone(folder, BertModel(config), tokenizer)


def sentence_transformer(
    backbone: Path,
    *,
    pooling: str = "mean",
    padding_side: str | None = None,
    include_prompt: bool = True,
    dense: int | None = None,
    normalize: bool = False,
    **options,
) -> SentenceTransformer:
    side = {} if padding_side is None else {"padding_side": padding_side}
    transformer = modules.Transformer(str(backbone), processor_kwargs=side)
    width = transformer.get_embedding_dimension()
    layers = [transformer, modules.Pooling(width, pooling_mode=pooling, include_prompt=include_prompt)]
    if dense is not None:
        torch.manual_seed(21)
        layers.append(Dense(width, dense))
    if normalize:
        layers.append(modules.Normalize())
    return SentenceTransformer(modules=layers, device="cpu", **options)


def static_model(tokenizer: Tokenizer, rows: torch.Tensor, **options) -> SentenceTransformer:
    """Mean-pooled embeddings: a row for each entry."""
    module = modules.StaticEmbedding(tokenizer, embedding_weights=rows.numpy())
    return SentenceTransformer(modules=[module], device="cpu", **options)


def sentences(count: int, seed: int = 0, words: Sequence[str] = WORDS) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    distinct_sentences: dict[str, None] = {}
    while len(distinct_sentences) < count:
        size = int(torch.randint(3, 10, (1,), generator=generator))
        indices = torch.randint(len(words), (size,), generator=generator).tolist()
        distinct_sentences[" ".join(words[index] for index in indices) + "."] = None
    return list(distinct_sentences)
