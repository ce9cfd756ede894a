"""What packed weights of linear layers gain on a CPU: texts per second with and without them.

Both encoders have the same model, batches and threads, and take turns in one run; only `packed_layers`
differs. Vectors are compared too. --quick takes few texts.
"""

from __future__ import annotations

import statistics
from typing import Annotated

import numpy as np
import typer

from bench import MINILM, Results, by_turns, commands
from stickytoken.encoders import IdEncoder, load_encoder

# Content tokens of each text: 56 lengths, as sentences with a few copies of a token have.
LENGTHS = np.arange(4, 60)
# Smallest ratio at which packed layers are worth their code.
BAR = 1.2
# Largest difference between two vectors of length 1, a few roundings of float32.
LARGEST_DIFFERENCE = 1e-5


def contents_of(encoder: IdEncoder, count: int) -> list[tuple[int, ...]]:
    """Random tokens in texts of all lengths."""
    generator = np.random.default_rng(0)
    entries = [entry for entry in encoder.tokenizer.entries if encoder.fits((entry,))]
    lengths = np.resize(LENGTHS, count)
    return [tuple(generator.choice(entries, length).tolist()) for length in lengths]


def packed_layers(
    model: Annotated[str, typer.Option(help="Model to load.")] = MINILM,
    turns: Annotated[int, typer.Option(help="Turns of each encoder.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Few texts.")] = False,
) -> None:
    count = 112 if quick else 1120
    packed = load_encoder(model, device="cpu", packed_layers=True)
    plain = load_encoder(model, device="cpu", packed_layers=False)
    contents = contents_of(plain, count)
    difference = float(np.abs(packed.encode_ids(contents) - plain.encode_ids(contents)).max())
    ways = {"packed": lambda: packed.encode_ids(contents), "plain": lambda: plain.encode_ids(contents)}
    seconds = by_turns(ways, turns, warm=True)
    rates = {name: count / statistics.median(times) for name, times in seconds.items()}
    # Paired by turn, so that other work on the machine meets both.
    ratios = [plain_time / packed_time for packed_time, plain_time in zip(*seconds.values(), strict=True)]
    ratio = statistics.median(ratios)
    results = Results("packed_layers", model=model, texts=count)
    results.check(
        f"packed linear layers against torch's own, {count:,} texts of {len(LENGTHS)} lengths, {model}",
        f"at least {BAR} times the texts a second",
        f"{ratio:.2f} times ({rates['packed']:.0f} to {rates['plain']:.0f}; {min(ratios):.2f} to "
        f"{max(ratios):.2f} by turn)",
        ratio >= BAR,
        seconds=seconds,
    )
    results.check(
        "largest difference of a component",
        f"at most {LARGEST_DIFFERENCE:g}",
        f"{difference:.1e}",
        difference <= LARGEST_DIFFERENCE,
    )
    results.finish()


if __name__ == "__main__":
    commands(__doc__, packed_layers)
