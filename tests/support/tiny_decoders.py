"""Tiny random decoder-only models, deep enough for token prepending, and a plain reference."""

from functools import partial
from pathlib import Path

import torch
import transformers

import tiny
import tiny_architectures as architectures

LAYERS, DIMENSION, LONGEST = 4, 32, 512

_SIZES = {"hidden_size": DIMENSION, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
_SIZES |= {"intermediate_size": 64, "initializer_range": 0.3, "max_position_embeddings": LONGEST}
_GROUPED = {"num_key_value_heads": 2, **_SIZES}
_WINDOWS = {"head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8, **_GROUPED}


_qwen = partial(architectures.qwen_tokenizer, closing=False)

# By name: the class in transformers, the tokenizer, the settings.
DECODERS = {
    "llama": ("Llama", architectures.gemma_tokenizer, _GROUPED),
    "mistral": ("Mistral", architectures.mistral_tokenizer, {"sliding_window": 16, **_GROUPED}),
    "qwen2": ("Qwen2", _qwen, _GROUPED),
    "qwen3": ("Qwen3", partial(architectures.qwen_tokenizer, closing=True), {"head_dim": 8, **_GROUPED}),
    "gemma2": ("Gemma2", architectures.gemma_tokenizer, _WINDOWS),
    "gemma3": ("Gemma3Text", architectures.gemma_tokenizer, _WINDOWS),
    "phi3": ("Phi3", architectures.mistral_tokenizer, _GROUPED),
    "opt": ("OPT", _qwen, {"ffn_dim": 64, "word_embed_proj_dim": 16, "init_std": 0.3, **_SIZES}),
    "gpt2": ("GPT2", _qwen, {"n_inner": 64, **_SIZES}),
    "bloom": ("Bloom", _qwen, {"n_layer": LAYERS, "n_head": 4, **_SIZES}),
    "gpt-neox": ("GPTNeoX", _qwen, _SIZES),
    "falcon": ("Falcon", _qwen, {**_SIZES, "alibi": False}),
}


def decoder(name: str, *, seed: int = 0, **changes: object):
    kind, make_tokenizer, settings = DECODERS[name]
    settings = settings | changes
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = LONGEST
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), **ids, **settings)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.3)
    return model, tokenizer


def saved_decoder(folder: Path, name: str = "qwen2") -> Path:
    return tiny.save_backbone(folder, *decoder(name))
