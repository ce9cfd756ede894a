"""Copies behind a carrier on a causal model: common beginnings computed once, against the plain path.

python benchmarks/causal_reuse.py            # two minutes on 2 CPU cores
python benchmarks/causal_reuse.py --quick    # seconds, on a small model
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from checks import Check, show, write
from stickytoken.encoders import IdEncoder
from stickytoken.encoders.prefixes import REUSE
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

CARRIER_TOKENS, COUNTS, VOCABULARY = 24, 8, 2000


def random_model(folder: Path, layers: int, width: int, *, closing: bool) -> SentenceTransformer:
    """A Qwen2 of the given size with random weights, which reads words w0, w1, ...; with or without EOS."""
    words = {"<eos>": 0, **{f"w{place}": place + 1 for place in range(VOCABULARY - 1)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if closing:
        tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 0)])
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
    )
    transformers.Qwen2Model(config).save_pretrained(folder)
    wrapped: Any = transformers.PreTrainedTokenizerFast
    wrapped(tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>").save_pretrained(folder)
    module = Transformer(str(folder))
    return SentenceTransformer(modules=[module, Pooling(module.get_embedding_dimension(), "lasttoken")])


def probes(carriers: int, tokens: int) -> list[tuple[int, ...]]:
    """1 to 8 copies of every token behind every carrier."""
    generator = np.random.default_rng(0)
    texts = [tuple(own) for own in generator.integers(1, VOCABULARY, (carriers, CARRIER_TOKENS)).tolist()]
    return [
        (*text, *(token,) * count)
        for token in range(1, tokens + 1)
        for text in texts
        for count in range(1, COUNTS + 1)
    ]


def timed(encoder: IdEncoder, contents: list[tuple[int, ...]]) -> tuple[float, NDArray[np.float32]]:
    encoder.encode_ids(contents[: 2 * COUNTS])  # loads kernels, tries reuse out
    started = time.perf_counter()
    vectors = encoder.encode_ids(contents)
    return time.perf_counter() - started, vectors


def compare(model: SentenceTransformer, contents: list[tuple[int, ...]], name: str) -> Check:
    reusing, plain = (SentenceTransformerEncoder(model, name, reuse=reuse) for reuse in (REUSE, None))
    seconds, vectors = timed(reusing, contents)
    plain_seconds, expected = timed(plain, contents)
    ratio, difference = plain_seconds / seconds, float(np.abs(unit(vectors) - unit(expected)).max())
    return Check(
        f"{name}: {len(contents):,} inputs",
        "8 times fewer seconds, equal to 1e-4",
        f"{ratio:.1f} times ({plain_seconds:.1f} s to {seconds:.1f} s), differ by {difference:.1e}",
        ratio >= 8 and difference <= 1e-4,
        {"plain_seconds": plain_seconds, "seconds": seconds, "difference": difference},
    )


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and few inputs")
    parser.add_argument("--name", default="causal_reuse", help="name of the result file")
    arguments = parser.parse_args()
    layers, width, tokens = (2, 128, 20) if arguments.quick else (12, 384, 100)
    checks = []
    for closing in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            model = random_model(Path(folder), layers, width, closing=closing)
            name = f"{layers} layers, {width} wide, {'with' if closing else 'without'} EOS"
            checks.append(compare(model, probes(4, tokens), name))
    write(checks, arguments.name, "cpu")
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
