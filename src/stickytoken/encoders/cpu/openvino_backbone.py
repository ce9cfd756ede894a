"""A transformer compiled by OpenVINO, where that package is installed: faster for many texts, slow to begin.

It is used for texts of one length without padding, so it reads ids and token types alone.
"""

from __future__ import annotations

import importlib.util
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stickytoken.encoders.model_state import weight_mark

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def compilable(model: SentenceTransformer) -> Any:
    """Return the backbone if OpenVINO may compile it, else None: an encoder in float32 on a CPU."""
    from sentence_transformers.sentence_transformer.modules import Transformer

    first: Any = model[0]
    if importlib.util.find_spec("openvino") is None or not isinstance(first, Transformer):
        return None
    text, backbone = first.modality_config.get("text", {}), first.model
    plain = text.get("method") == "forward" and text.get("method_output_name") in (
        "last_hidden_state",
        ["last_hidden_state"],
    )
    config = backbone.config
    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    # Causal models share the work on common beginnings, which saves more.
    causal = any(getattr(module, "is_causal", False) for module in backbone.modules())
    known = type(backbone).__module__.startswith("transformers.models.") and not (decodes or causal)
    weights = list(backbone.parameters())
    floats = all(weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in weights)
    return backbone if plain and known and floats and "forward" not in vars(backbone) else None


class CompiledBackbone:
    """A backbone's forward pass, compiled from its weights as they are now."""

    def __init__(self, backbone: Any, token_types: bool, threads: int) -> None:
        import openvino
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

        self._backbone, self._token_types = backbone, token_types
        self._weights = _state_of(backbone)
        example = torch.ones(2, 16, dtype=torch.long)
        inputs = (example, torch.zeros_like(example)) if token_types else (example,)
        # `openvino.convert_model` does the same, and sends statistics to its makers.
        frontend = FrontEndManager().load_by_framework("pytorch")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracing; the caller compares vectors
            traced = TorchScriptPythonDecoder(_LastStates(backbone), example_input=inputs)
        converted = frontend.convert(frontend.load(traced))
        options = {
            "NUM_STREAMS": threads,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self._compiled: Any = openvino.Core().compile_model(converted, "CPU", options)
        self._requests = threading.local()

    @property
    def current(self) -> bool:
        """Whether the weights are still those that were compiled."""
        return all(
            mark == known_mark and torch.equal(values, known)
            for (mark, values), (known_mark, known) in zip(
                _state_of(self._backbone), self._weights, strict=True
            )
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute with the compiled pass; the caller holds the model's lock."""
        vars(self._backbone)["forward"] = self._forward
        try:
            yield
        finally:
            vars(self._backbone).pop("forward", None)

    def _forward(self, input_ids: torch.Tensor, **others: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        request = getattr(self._requests, "own", None)
        if request is None:  # one for each thread
            request = self._requests.own = self._compiled.create_infer_request()
        inputs = [input_ids.numpy()]
        if self._token_types:
            inputs.append(others["token_type_ids"].contiguous().numpy())
        request.infer(inputs)
        # A copy: the next request of this thread writes to the same place.
        return BaseModelOutput(last_hidden_state=torch.tensor(request.get_output_tensor(0).data))


class _LastStates(torch.nn.Module):
    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self._backbone = backbone

    def forward(self, ids: torch.Tensor, types: torch.Tensor | None = None) -> torch.Tensor:
        more = {} if types is None else {"token_type_ids": types}
        states: torch.Tensor = self._backbone(input_ids=ids, **more).last_hidden_state
        return states


def _state_of(backbone: torch.nn.Module) -> list[tuple[tuple[int, int], torch.Tensor]]:
    """Return marks of the weights, and their products with fixed directions, which ``.data`` changes too."""
    generator = torch.Generator().manual_seed(0)
    found = []
    with torch.inference_mode():
        for weight in backbone.parameters():
            rows = weight.reshape(-1, weight.shape[-1]) if weight.ndim else weight.reshape(1, 1)
            direction = torch.randn(rows.shape[1], generator=generator)
            found.append((weight_mark(weight), rows @ direction))
    return found
