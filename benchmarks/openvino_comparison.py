"""Would OpenVINO compute faster than this project's packed layers?

pip install openvino
python benchmarks/openvino_comparison.py            # a minute on 2 CPU cores

The backbone is converted from torch and computes the same batches with one stream per core. The option
`backend="openvino"` of sentence-transformers needs optimum-intel, whose releases up to 2.2 refuse the version of
transformers that this project needs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from checks import Check, show, write
from stickytoken.encoders import load_encoder
from stickytoken.encoders.batching import equal_length_batches
from stickytoken.encoders.loading.resolution import resolve_model
from throughput_sets import SETS, seconds_by_turns, texts_of_lengths

_TURNS = 5
_BUDGETS = (1024, 4096)


class MeanOfStates(torch.nn.Module):
    """The backbone with mean pooling, for texts of one length.

    Args:
        backbone: a transformers model.
    """

    def __init__(self, backbone: torch.nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        found: Any = self.backbone(input_ids=ids, attention_mask=mask, token_type_ids=types)
        mean: torch.Tensor = found.last_hidden_state.mean(dim=1)
        return mean


def compiled(model: SentenceTransformer, streams: int) -> Any:
    """Convert the backbone, and compile it in float32."""
    import openvino  # type: ignore[import-not-found, unused-ignore]

    first: Any = model[0]
    example = torch.ones(2, 16, dtype=torch.long)
    with torch.no_grad():
        converted = openvino.convert_model(
            MeanOfStates(first.model).eval(), example_input=(example, example, torch.zeros_like(example))
        )
    options = {
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return openvino.Core().compile_model(converted, "CPU", options)


def encoded(network: Any, rows: Sequence[Sequence[int]], budget: int, streams: int) -> NDArray[np.float32]:
    """Compute unit vectors, shape (n, d), with as many requests at a time as there are streams."""
    import openvino

    batches = equal_length_batches([len(row) for row in rows], budget)
    found: dict[int, NDArray[np.float32]] = {}
    queue = openvino.AsyncInferQueue(network, streams)
    queue.set_callback(lambda request, place: found.update({place: request.get_output_tensor(0).data.copy()}))
    for place, batch in enumerate(batches):
        ids = np.array([rows[row] for row in batch], dtype=np.int64)
        queue.start_async([ids, np.ones_like(ids), np.zeros_like(ids)], place)
    queue.wait_all()
    vectors = np.empty((len(rows), found[0].shape[1]), np.float32)
    for place, batch in enumerate(batches):
        vectors[batch] = found[place]
    units: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", default="openvino", help="name of the result file")
    arguments = parser.parse_args()
    model = SentenceTransformer(resolve_model("all-MiniLM-L6-v2").location, device="cpu")
    encoder, streams = load_encoder(model), torch.get_num_threads()
    started = time.perf_counter()
    network = compiled(model, streams)
    loading = time.perf_counter() - started
    before, after = (getattr(encoder.template, side) for side in ("before", "after"))  # type: ignore[attr-defined]
    checks = []
    for own in SETS["small"]:
        contents = encoder.content_ids(texts_of_lengths(encoder, own.lengths))
        rows = [[*before, *content, *after] for content in contents]
        ways: dict[str, Callable[[], object]] = {"ours": partial(encoder.encode_ids, contents)}
        for budget in _BUDGETS:
            ways[str(budget)] = partial(encoded, network, rows, budget, streams)
        difference = float(np.abs(encoded(network, rows, 1024, streams) - encoder.encode_ids(contents)).max())
        seconds = seconds_by_turns(ways, _TURNS)
        typical = {way: statistics.median(times) for way, times in seconds.items()}
        ours = typical.pop("ours")
        theirs = min(typical.values())
        checks.append(
            Check(
                f"{own.name}: OpenVINO against packed layers",
                "none",
                f"{ours / theirs:.2f} times (vectors within {difference:.1e}; "
                f"loading takes {loading:.1f} s more)",
                True,
                {"seconds": seconds},
            )
        )
    write(checks, arguments.name, "cpu")
    show(checks, arguments.name)


if __name__ == "__main__":
    main()
