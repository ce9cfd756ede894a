"""How much faster is OpenVINO than packed layers?

pip install "stickytoken[openvino]"
python benchmarks/openvino_comparison.py            # three minutes on 2 CPU cores
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np
from sentence_transformers import SentenceTransformer

from checks import Check, show, write
from stickytoken.encoders import load_encoder
from stickytoken.encoders.loading.resolution import resolve_model
from throughput_sets import SETS, seconds_by_turns, texts_of_lengths

_TURNS = 3
# As many as a call must have to go through OpenVINO.
_TEXTS = 2160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", default="openvino", help="name of the result file")
    arguments = parser.parse_args()
    os.environ.pop("STICKYTOKEN_PACKED_LAYERS", None)
    model = SentenceTransformer(resolve_model("all-MiniLM-L6-v2").location, device="cpu")
    packed, chosen = load_encoder(model, packed_layers=True), load_encoder(model)
    checks = []
    for own in SETS["small"][:2]:
        contents = packed.content_ids(texts_of_lengths(packed, np.resize(own.lengths, _TEXTS).tolist()))
        ways: dict[str, Callable[[], object]] = {
            "packed": partial(packed.encode_ids, contents),
            "openvino": partial(chosen.encode_ids, contents),
        }
        difference = float(np.abs(packed.encode_ids(contents) - chosen.encode_ids(contents)).max())
        seconds = seconds_by_turns(ways, _TURNS)
        ratio = statistics.median(seconds["packed"]) / statistics.median(seconds["openvino"])
        checks.append(
            Check(
                f"{_TEXTS:,} texts, {own.name.partition('of ')[2]}: OpenVINO against packed layers",
                "none",
                f"{ratio:.2f} times (components within {difference:.1e})",
                True,
                {"seconds": seconds},
            )
        )
    write(checks, arguments.name, "cpu")
    show(checks, arguments.name)


if __name__ == "__main__":
    main()
