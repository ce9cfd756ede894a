"""Compute a model's linear layers with oneDNN on a CPU, with packed weights or in bfloat16."""

from __future__ import annotations

import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import _onednn, evaluating, weight_version
from stickytoken.encoders.compute._onednn import Activation
from stickytoken.encoders.equal_lengths import TOKEN_MULTIPLE
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.machine import Precision, digest, keep, recalled

# Environment variable that switches packed layers on or off.
SWITCH = "STICKYTOKEN_PACKED_LAYERS"
# Largest accepted difference from the output of torch's own layers, as a fraction of the largest output. In
# bfloat16, rounding alone accounts for a few percent.
_TOLERANCE = 1e-4
_BFLOAT16_TOLERANCE = 0.05
# Number of rows in the input that layers are compared on.
_COMPARED_ROWS = 64
# Names that transformers gives to the children of a gated block.
_GATED_CHILDREN = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass(frozen=True, slots=True)
class LinearSite:
    """A linear layer, and the module whose forward pass is replaced to compute the layer with oneDNN.

    Attributes:
        module: the layer itself, or a module that consists of the layer and a GELU.
        layer: the layer.
        has_gelu: whether the module applies an exact GELU to the output of the layer.
        feeds_layer: whether only another linear layer reads the module's output, so that an output in
            bfloat16 is not converted back to float32.
    """

    module: torch.nn.Module
    layer: torch.nn.Linear
    has_gelu: bool = False
    feeds_layer: bool = False


def linear_sites(model: torch.nn.Module) -> list[LinearSite]:
    """Return a `LinearSite` for each plain float32 linear layer on the CPU, including any GELU after it.

    Blocks of a linear layer and a GELU come first. A block feeds a layer if it is ``intermediate`` in a
    transformer layer whose ``output.dense`` is a linear layer.
    """
    # In BERT and similar models, only the linear layer `output.dense` reads the output of `intermediate`.
    modules_before_layers = set()
    for parent in model.modules():
        next_layer = getattr(getattr(parent, "output", None), "dense", None)
        if _is_plain(next_layer):
            modules_before_layers.add(getattr(parent, "intermediate", None))
    blocks: list[LinearSite] = []
    for module in model.modules():
        if _is_gelu_block(module):
            dense: Any = module.dense
            feeds_layer = module in modules_before_layers
            blocks.append(LinearSite(module, dense, has_gelu=True, feeds_layer=feeds_layer))
    layers_in_blocks = {block.layer for block in blocks}
    layers: list[Any] = [module for module in model.modules() if _is_plain(module)]
    return blocks + [LinearSite(layer, layer) for layer in layers if layer not in layers_in_blocks]


def _is_gelu_block(module: torch.nn.Module) -> bool:
    """Return whether a module consists of a linear layer and an exact GELU, as in BERT.

    Only modules defined in the transformers library qualify. A module from elsewhere may have the same
    children, but its forward pass may compute more than the layer and the GELU.
    """
    from transformers.activations import GELUActivation

    children: Any = dict(module.named_children())
    if set(children) != {"dense", "intermediate_act_fn"} or not _is_of_transformers(module):
        return False
    activation = children["intermediate_act_fn"]
    is_exact = isinstance(activation, GELUActivation) and activation.act is torch.nn.functional.gelu
    return is_exact and _is_plain(children["dense"])


def _is_of_transformers(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.models.")


def _is_plain(module: Any) -> bool:
    """Return whether a module is a float32 `torch.nn.Linear` (not a subclass) on the CPU."""
    if type(module) is not torch.nn.Linear:
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype == torch.float32


class PackedLinear:
    """The forward pass of a linear layer and the GELU after it (if any), with weights packed for oneDNN.

    With ``packed=False``, it uses torch's public functions instead, so that bfloat16 also works on machines
    where packing fails. Products of bfloat16 numbers are summed in float32.
    """

    def __init__(self, site: LinearSite, dtype: torch.dtype, *, packed: bool = True) -> None:
        self._site = site
        self._layer = site.layer
        self._dtype = dtype
        self._packed = packed
        self._weight = torch.empty(0)
        self._checksum = torch.empty(0)
        self._packed_version: tuple[int, int] | None = None  # None before the weight is packed
        generator = torch.Generator().manual_seed(0)
        self._direction = torch.randn(site.layer.in_features, generator=generator)

    def __getstate__(self) -> dict[str, Any]:  # packed weights cannot be pickled; a copy packs them again
        return vars(self) | {"_weight": torch.empty(0), "_packed_version": None}

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        flat, row_count = _flattened(hidden_states)
        outputs = self.multiply(flat, Activation.GELU if self._site.has_gelu else Activation.NONE)
        return outputs[:row_count].reshape(*hidden_states.shape[:-1], outputs.shape[-1])

    def refresh(self) -> None:
        """Pack the weight again if it has changed."""
        weight = self._layer.weight.detach()
        # The version of the weight reveals every change that torch records, but not a change through
        # ``.data``. The product of the weight with a fixed vector also reveals a change through ``.data``,
        # unless an outlier in the same row is so large that rounding hides the change.
        version = weight_version(self._layer.weight)
        with torch.inference_mode():
            checksum = weight @ self._direction
        if version == self._packed_version and torch.equal(checksum, self._checksum):
            return
        self._weight = weight.to(self._dtype)
        if self._packed:
            self._weight = _onednn.packed(self._weight)
        self._packed_version = version
        self._checksum = checksum

    def multiply(self, flat: torch.Tensor, activation: Activation = Activation.NONE) -> torch.Tensor:
        """Apply the layer and the activation to rows of shape (rows, in_features); return the result."""
        flat = flat.to(self._dtype)
        if self._packed:
            outputs = _onednn.product(flat, self._weight, self._bias, activation)
        else:
            outputs = torch.nn.functional.linear(flat, self._weight, self._bias)
            if activation is Activation.GELU:
                outputs = torch.nn.functional.gelu(outputs)
        # If only a linear layer reads the outputs, they stay in bfloat16, because that layer rounds its input
        # anyway.
        return outputs if self._site.feeds_layer else outputs.float()

    def multiply_times(self, flat: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, multiplied elementwise by factors of the same shape."""
        return _onednn.product_times(flat, factors, self._weight, self._bias)

    @property
    def _bias(self) -> torch.Tensor | None:
        bias: torch.Tensor | None = self._layer.bias
        return None if bias is None else bias.detach().to(self._dtype)


class _GatedBlock:
    """The forward pass of a gated SiLU block, as in Llama: down(silu(gate(x)) * up(x))."""

    def __init__(self, gate: LinearSite, up: LinearSite, down: LinearSite) -> None:
        self._gate = PackedLinear(gate, torch.float32)
        self._up = PackedLinear(up, torch.float32)
        self._down = PackedLinear(down, torch.float32)

    def refresh(self) -> None:
        for layer in (self._gate, self._up, self._down):
            layer.refresh()

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        flat, row_count = _flattened(hidden_states)
        gates = self._gate.multiply(flat, Activation.SILU)
        outputs = self._down.multiply(self._up.multiply_times(flat, gates))
        return outputs[:row_count].reshape(*hidden_states.shape[:-1], outputs.shape[-1])


Forward: TypeAlias = PackedLinear | _GatedBlock


def _flattened(hidden_states: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the states as rows, padded with rows of zeros, and the number of rows before padding."""
    # oneDNN keeps a kernel for every number of rows. Padding the number of rows to a multiple of
    # TOKEN_MULTIPLE limits the number of kernels.
    flat = hidden_states.reshape(-1, hidden_states.shape[-1])
    row_count = flat.shape[0]
    missing = -row_count % TOKEN_MULTIPLE
    if missing:
        flat = torch.nn.functional.pad(flat, (0, 0, 0, missing))
    return flat, row_count


class PackedLinears:
    """Faster forward passes for linear layers and gated blocks; `active` temporarily installs them."""

    def __init__(
        self, model: torch.nn.Module, dtype: torch.dtype = torch.float32, *, packed: bool = True
    ) -> None:
        self._model = model
        self._dtype = dtype
        self._packed = packed
        self._layout: list[object] | None = None
        self.forwards: dict[torch.nn.Module, Forward] = {}
        self._renew()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replace forward passes inside a ``with`` block, except for those that the user has replaced."""
        self._renew()
        replaced_modules = [module for module in self.forwards if not _has_own_forward(module)]
        for module in replaced_modules:
            self.forwards[module].refresh()
            vars(module)["forward"] = self.forwards[module]
        try:
            yield
        finally:
            for module in replaced_modules:
                vars(module).pop("forward", None)

    def _renew(self) -> None:
        """Rebuild the forward passes if a layer or an activation was replaced."""
        sites = linear_sites(self._model)
        activations = [getattr(module, "act_fn", None) for module in self._model.modules()]
        layout = [*sites, *activations]
        if layout != self._layout:
            self.forwards = self._new_forwards(sites)
            self._layout = layout

    def _new_forwards(self, sites: list[LinearSite]) -> dict[torch.nn.Module, Forward]:
        """Return the new forward passes, keyed by module; empty if float32 layers cannot be packed.

        A packed layer stores its weights in the format of oneDNN. One packed layer of each shape is compared
        with torch's own. If any result differs, nothing is packed: float32 layers keep torch's own forward
        pass, and bfloat16 layers use torch's public functions. In float32, the layers of a gated block get
        one forward pass for the whole block; see `_GatedBlock`.
        """
        in_float32 = self._dtype is torch.float32
        if in_float32 and not _onednn.is_available():
            return {}
        forwards = self._linear_forwards(sites, packed=self._packed)
        failure = self._first_failure(sites, forwards) if self._packed else None
        if failure is not None:  # a description of what is wrong
            self._warn_of_slow_layers(failure)
            return {} if in_float32 else self._linear_forwards(sites, packed=False)
        if in_float32:
            self._replace_gated_blocks(sites, forwards)
        return forwards

    def _linear_forwards(self, sites: list[LinearSite], *, packed: bool) -> dict[torch.nn.Module, Forward]:
        return {site.module: PackedLinear(site, self._dtype, packed=packed) for site in sites}

    def _first_failure(
        self, sites: list[LinearSite], forwards: Mapping[torch.nn.Module, Forward]
    ) -> str | None:
        """Compare the results of oneDNN and torch for one layer of each shape, on the layer's own weights.

        Returns:
            What is wrong with the first layer that fails; None if no layer fails.
        """
        tolerance = _TOLERANCE if self._dtype is torch.float32 else _BFLOAT16_TOLERANCE
        samples: dict[object, LinearSite] = {}
        for site in sites:
            if not _has_own_forward(site.module):
                shape = (*site.layer.weight.shape, site.layer.bias is None, site.has_gelu)
                samples.setdefault(shape, site)
        for site in samples.values():
            forward = forwards[site.module]
            failure = _failure(site.module, site.layer.in_features, forward, tolerance)
            if failure is not None:
                return failure
        return None

    def _warn_of_slow_layers(self, failure: str) -> None:
        """Warn that computing is slower than it could be, because weights cannot be packed for oneDNN.

        If bfloat16 was requested on a CPU without instructions for it, the warning recommends float32
        instead, because bfloat16 is slow on such a CPU in any case.

        Args:
            failure: what is wrong with the packed layers.
        """
        in_float32 = self._dtype is torch.float32
        if in_float32 or _onednn.has_bfloat16():
            work = "encoding" if in_float32 else "bfloat16"
            message = (
                f"packed layers are off, and {work} on this CPU is slower: {failure}. Another version of "
                f"torch may help; {SWITCH}=0 turns this warning off"
            )
        else:
            message = "this CPU has no instructions for bfloat16, so bfloat16 is slow on it: use float32"
        warnings.warn(message, StickyTokenWarning, stacklevel=2)

    def _replace_gated_blocks(
        self, sites: list[LinearSite], forwards: dict[torch.nn.Module, Forward]
    ) -> None:
        """Replace the forward passes of the layers in each gated block by one forward pass of the block.

        The new forward pass is tested on the first block of each class. If the block's new output differs
        from its original output, all blocks of this class are left unchanged.

        Args:
            sites: all linear layers that can be replaced.
            forwards: forward passes, keyed by module. The new forward passes are added to this dict, and
                those of the layers in the blocks are removed.
        """
        site_of_layer: dict[Any, LinearSite] = {site.layer: site for site in sites}
        block_works: dict[type, bool] = {}
        for module in self._model.modules():
            if not _is_gated_block(module) or _has_own_forward(module):
                continue
            children: Any = dict(module.named_children())
            layers = [children["gate_proj"], children["up_proj"], children["down_proj"]]
            if not all(layer in site_of_layer for layer in layers):
                continue
            block = _GatedBlock(*(site_of_layer[layer] for layer in layers))
            kind = type(module)
            if kind not in block_works:
                failure = _failure(module, layers[0].in_features, block, _TOLERANCE)
                block_works[kind] = failure is None
            if block_works[kind]:
                forwards[module] = block
                for layer in layers:
                    forwards.pop(layer, None)


def _has_own_forward(module: torch.nn.Module) -> bool:
    """Return whether the forward pass was replaced on this module object itself, not in its class."""
    return "forward" in vars(module)


def _is_gated_block(module: torch.nn.Module) -> bool:
    """Return whether a module is a gated SiLU block of the transformers library; see `_GatedBlock`."""
    from transformers.activations import SiLUActivation

    children: Any = dict(module.named_children())
    if set(children) != _GATED_CHILDREN or not _is_of_transformers(module):
        return False
    return type(children["act_fn"]) in (torch.nn.SiLU, SiLUActivation)


def _failure(module: torch.nn.Module, in_features: int, forward: Forward, tolerance: float) -> str | None:
    """Compare a new forward pass with the module's own; return what is wrong, or None if they agree."""
    rows = torch.linspace(-1, 1, _COMPARED_ROWS * in_features).sin().reshape(_COMPARED_ROWS, -1)
    try:
        with torch.inference_mode(), evaluating(module):
            expected: Any = module.forward(rows)
            forward.refresh()
            outputs = forward(rows)
    except torch.OutOfMemoryError:
        raise
    except _onednn.OPERATOR_ERRORS as error:
        return f"oneDNN's operators failed ({' '.join(str(error).split())[:200]})"
    # With damaged weights, torch's own outputs are not finite. These are not compared, because
    # `require_usable` reports them later, with the text.
    is_finite = expected.isfinite()
    difference = torch.where(is_finite, outputs - expected, 0).abs().max()
    if difference <= tolerance * torch.where(is_finite, expected, 0).abs().max():
        return None
    return "oneDNN's operators gave different results from torch's own"


# The measurement lasts at least this many seconds and at least this many rounds. In a round, each trial runs
# once.
_MEASURED_SECONDS = 0.5
_MIN_ROUNDS = 3
# A trial has at most this many floating-point operations, and at most this many texts.
_TRIAL_OPERATIONS = 20e9
_MAX_TRIAL_TEXTS = 64
# Increase this when the measurement changes, so that stored times are measured again.
_MEASUREMENT_VERSION = 1


def trial_inputs(network: torch.nn.Module, contents: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the inputs of a trial: the id sequences at the end of ``contents``, as many as its limits allow.

    The list is empty if the model has no linear layers that can be packed.
    """
    weight_count = sum(site.layer.weight.numel() for site in linear_sites(network))
    if not weight_count:
        return []
    inputs: list[tuple[int, ...]] = []
    operations = 0
    for content in reversed(contents):
        operations += 2 * weight_count * len(content)
        if inputs and (operations > _TRIAL_OPERATIONS or len(inputs) == _MAX_TRIAL_TEXTS):
            break
        inputs.append(content)
    return inputs


def shortest_seconds(
    network: torch.nn.Module, trials: Mapping[str, Callable[[], object]], threads: int
) -> dict[str, float]:
    """Run each trial several times, and return the shortest time of each, in seconds, keyed by trial name.

    The times are stored in a file, and reused for the same machine, model structure, torch version and number
    of threads.

    Args:
        network: the model, whose structure is part of the key of the stored times.
        trials: functions without arguments, keyed by name.
        threads: number of threads, which is also part of the key.
    """
    conditions = {
        "version": _MEASUREMENT_VERSION,
        "model": repr(network),
        "machine": [platform.node(), torch.backends.cpu.get_cpu_capability()],
        "torch": torch.__version__,
        "threads": threads,
    }
    key = f"packing-{digest(conditions)}"
    stored = recalled(key) or {}
    if all(isinstance(stored.get(name), float) for name in trials):
        return {name: stored[name] for name in trials}
    # The first run of each trial is not timed, because it also packs weights and builds kernels.
    for run in trials.values():
        run()
    # The trials alternate. The shortest time of each trial is kept, because other processes can only slow a
    # run down.
    shortest = dict.fromkeys(trials, math.inf)
    deadline = time.perf_counter() + _MEASURED_SECONDS
    rounds = 0
    while rounds < _MIN_ROUNDS or time.perf_counter() < deadline:
        for name, run in trials.items():
            started = time.perf_counter()
            run()
            shortest[name] = min(shortest[name], time.perf_counter() - started)
        rounds += 1
    keep(key, shortest)
    return shortest


# A lower precision is usable if the mean cosine between its vectors and those at the model's own precision is
# at least this.
_MIN_AGREEMENT = 0.95


def require_agreement(
    exact: NDArray[np.float32], lower: NDArray[np.float32], precision: Precision, name: str
) -> None:
    """Raise an `InputError` if a lower precision changes the vectors of the model too much.

    Args:
        exact: vectors at the model's own precision, shape (n, d).
        lower: vectors of the same texts at the lower precision, shape (n, d).
        precision: the lower precision, for the message.
        name: name of the model, for the message.
    """
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(lower, axis=1)
    products = (exact * lower).sum(axis=1)
    agreement = float(np.mean(products / np.maximum(lengths, np.finfo(np.float32).tiny)))
    # If a vector is not finite, the agreement is NaN. Every comparison with NaN is false, so `<` would accept
    # it.
    if not agreement >= _MIN_AGREEMENT:
        raise InputError(
            f"{precision} changes the vectors of {name} too much (mean cosine {agreement:.2f} with "
            "the exact ones): use another precision, or leave it out"
        )
