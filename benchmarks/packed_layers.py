"""How much faster does the CPU encode texts if the weights of linear layers are packed?

Two encoders of the same model encode the same texts in turns, with the same batches and threads. They differ
only in the option `packed_layers`. The benchmark compares texts per second, and the vectors.

Needs a quiet machine; takes minutes, or less with --quick.

    python benchmarks/packed_layers.py --turns 3
"""

from __future__ import annotations

import statistics
from typing import Annotated

import numpy as np
import typer

from bench import MINILM, Results, by_turns, commands
from stickytoken.encoders import IdEncoder, load_encoder

# Numbers of tokens in a text: 56 lengths, as sentences with a few copies of a token have.
LENGTHS = np.arange(4, 60)
# Number of texts: each length 20 times, or twice with --quick.
TEXTS = 1120
QUICK_TEXTS = 112
# Smallest ratio of speeds at which packed layers are worth their code.
BAR = 1.2
# Largest allowed difference between components of two unit vectors: a few roundings of float32.
LARGEST_DIFFERENCE = 1e-5


def random_texts(encoder: IdEncoder, count: int) -> list[tuple[int, ...]]:
    """Return the token ids of ``count`` texts of random tokens, which cycle through `LENGTHS`."""
    generator = np.random.default_rng(0)
    entries = [entry for entry in encoder.tokenizer.entries if encoder.fits((entry,))]
    texts = []
    for length in np.resize(LENGTHS, count):
        text = generator.choice(entries, length)
        texts.append(tuple(text.tolist()))
    return texts


def packed_layers(
    model: Annotated[str, typer.Option(help="Model to load.")] = MINILM,
    turns: Annotated[int, typer.Option(help="Turns of each encoder.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Few texts.")] = False,
) -> None:
    """Compare texts per second with and without packed linear layers on the CPU. Takes minutes.

    Two encoders of the same model encode the same texts in turns. The vectors are compared too.
    """
    count = QUICK_TEXTS if quick else TEXTS
    packed = load_encoder(model, device="cpu", packed_layers=True)
    plain = load_encoder(model, device="cpu", packed_layers=False)
    texts = random_texts(plain, count)
    differences = np.abs(packed.encode_ids(texts) - plain.encode_ids(texts))
    largest_difference = float(differences.max())

    encoders = {"packed": lambda: packed.encode_ids(texts), "plain": lambda: plain.encode_ids(texts)}
    seconds = by_turns(encoders, turns, warm=True)
    packed_rate = count / statistics.median(seconds["packed"])
    plain_rate = count / statistics.median(seconds["plain"])
    # The two times of one turn are compared, because other work on the machine slows both of them.
    ratios = [
        plain_time / packed_time
        for packed_time, plain_time in zip(seconds["packed"], seconds["plain"], strict=True)
    ]
    ratio = statistics.median(ratios)

    results = Results("packed_layers", model=model, texts=count)
    results.check(
        f"packed linear layers against torch's own, {count:,} texts of {len(LENGTHS)} lengths, {model}",
        f"at least {BAR} times the texts a second",
        f"{ratio:.2f} times ({packed_rate:.0f} to {plain_rate:.0f}; {min(ratios):.2f} to "
        f"{max(ratios):.2f} by turn)",
        ratio >= BAR,
        seconds=seconds,
    )
    results.check(
        "largest difference of a component",
        f"at most {LARGEST_DIFFERENCE:g}",
        f"{largest_difference:.1e}",
        largest_difference <= LARGEST_DIFFERENCE,
    )
    results.finish()


if __name__ == "__main__":
    commands(__doc__, packed_layers)
