"""Measure how a model is computed fastest on this machine.

That depends on the processor, on the build of torch and on the sizes of the layers. The answer is kept in the
user's cache folder.
"""

from __future__ import annotations

import importlib.util
import platform
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from stickytoken.encoders.compute.linear import linear_places
from stickytoken.encoders.compute.model_state import weight_mark
from stickytoken.machine import available_cores, digest, keep, recalled

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


_SECONDS = 0.5
_LEAST_TURNS = 3
_OPERATIONS, _MOST_TEXTS = 20e9, 64
# Increased when the measurement changes.
_VERSION = 1


def trial_inputs(network: torch.nn.Module, contents: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Take as many contents as the model computes in about a tenth of a second, at least one."""
    weights = sum(place.layer.weight.numel() for place in linear_places(network))
    texts: list[tuple[int, ...]] = []
    operations = 0
    for content in reversed(contents) if weights else ():
        operations += 2 * weights * len(content)
        if texts and (operations > _OPERATIONS or len(texts) == _MOST_TEXTS):
            break
        texts.append(content)
    return texts


def measured(
    what: str, network: torch.nn.Module, ways: Mapping[str, Callable[[], object]], threads: int
) -> dict[str, float]:
    """Time ways to compute a few texts with a model, or read what was found on this machine before."""
    known = earlier(what, network, ways, threads)
    if known is None:
        known = dict(zip(ways, shortest(tuple(ways.values())), strict=True))
        keep(_key(what, network, threads), known)
    return known


def earlier(
    what: str, network: torch.nn.Module, ways: Collection[str], threads: int
) -> dict[str, float] | None:
    """Return what `measured` found on this machine before; None if it has not measured these ways."""
    known = recalled(_key(what, network, threads)) or {}
    found = {name: known[name] for name in ways if isinstance(known.get(name), float)}
    return found if len(found) == len(ways) else None


def _key(what: str, network: torch.nn.Module, threads: int) -> str:
    machine = [platform.node(), torch.backends.cpu.get_cpu_capability()]
    facts = {"version": _VERSION, "model": repr(network), "machine": machine}
    return f"{what}-{digest({**facts, 'torch': torch.__version__, 'threads': threads})}"


def shortest(ways: tuple[Callable[[], object], ...]) -> list[float]:
    """Call the ways in turn for about half a second, and return the shortest time of each in seconds.

    Other work on the machine makes single times longer, never shorter.
    """
    for way in ways:
        way()  # packs weights, and builds kernels
    found: list[list[float]] = [[] for _ in ways]
    ends = time.perf_counter() + _SECONDS
    while len(found[0]) < _LEAST_TURNS or time.perf_counter() < ends:
        for way, times in zip(ways, found, strict=True):
            started = time.perf_counter()
            way()
            times.append(time.perf_counter() - started)
    return [min(times) for times in found]


T = TypeVar("T")

# For every call under way, the number of torch's threads before the first began.
_BEFORE: list[int] = []
_GUARD = threading.Lock()

# Modules of these packages keep nothing about the texts that they compute.
_STATELESS = ("torch.", "transformers.models.", "transformers.activations", "sentence_transformers.")


def worker_count(model: torch.nn.Module) -> int:
    """Return how many batches of a model may be computed at a time.

    One on an accelerator, and for models with modules or hooks of their own, which may not expect it.
    Otherwise one for each core, but not more than torch would use threads (``OMP_NUM_THREADS``,
    ``torch.set_num_threads``).
    """
    stateless = all(
        f"{type(module).__module__}.".startswith(_STATELESS)
        and not (module._forward_hooks or module._forward_pre_hooks)
        for module in model.modules()
    )
    if next(model.parameters()).device.type != "cpu" or not stateless:
        return 1
    return max(1, min(_threads_allowed(), available_cores()))


def compute_all(compute: Callable[[T], None], items: Sequence[T], workers: int) -> None:
    """Call a function with every item, by several threads in inference mode."""
    if workers <= 1 or len(items) <= 1:
        for item in items:
            compute(item)
        return
    waiting = deque(items)

    def work() -> None:
        with torch.inference_mode():
            while waiting:
                try:
                    item = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                compute(item)

    with (
        _one_thread_each(),
        ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="encode") as threads,
    ):
        try:
            for done in as_completed([threads.submit(work) for _ in range(min(workers, len(items)))]):
                done.result()
        except BaseException:  # Ctrl-C too: threads stop after the batches that they have begun
            waiting.clear()
            raise


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let torch use one thread for a product, in this thread and in those that start inside."""
    with _GUARD:
        before = _threads_allowed()
        _BEFORE.append(before)
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _GUARD:
            _BEFORE.pop()
            torch.set_num_threads(before)


def _threads_allowed() -> int:
    """Return how many threads torch may use when no call is under way."""
    return _BEFORE[0] if _BEFORE else torch.get_num_threads()


def compilable(model: SentenceTransformer) -> Any:
    """Return the backbone if OpenVINO may compile it, else None: an encoder in float32 on a CPU."""
    from sentence_transformers.sentence_transformer.modules import Transformer

    first: Any = model[0]
    if importlib.util.find_spec("openvino") is None or not isinstance(first, Transformer):
        return None
    backbone, text = first.model, first.modality_config.get("text", {})
    config = backbone.config
    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    possible = (
        text.get("method") == "forward"
        and text.get("method_output_name") in ("last_hidden_state", ["last_hidden_state"])
        and type(backbone).__module__.startswith("transformers.models.")
        and not decodes
        # Causal models share the work on common beginnings, which saves more.
        and not any(getattr(module, "is_causal", False) for module in backbone.modules())
        and "forward" not in vars(backbone)
        and all(
            weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in backbone.parameters()
        )
    )
    return backbone if possible else None


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
        pairs = zip(_state_of(self._backbone), self._weights, strict=True)
        return all(mark == known[0] and torch.equal(values, known[1]) for (mark, values), known in pairs)

    @contextmanager
    def active(self) -> Iterator[None]:
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
