"""The devices of this machine, and which of them a model can use."""

from __future__ import annotations

from stickytoken.errors import InputError


def available_devices() -> list[str]:
    """Return the devices of this machine: the CPU, and every accelerator."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def default_device() -> str:
    """Return the first accelerator, or the CPU if there is none."""
    cpu, *accelerators = available_devices()
    return accelerators[0] if accelerators else cpu


def require_device(device: str) -> None:
    """Check that this machine has the given device.

    Raises:
        InputError: the device is unknown or not available.
    """
    import torch

    available = available_devices()
    advice = f"this machine has {', '.join(available)}; pass one of these, or leave the device out"
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device {device!r} is unknown: {advice}") from error
    if parsed.type == "meta":
        raise InputError(f"device {device!r} stores the shapes of tensors, but no values: {advice}")
    # torch treats cpu:1 as cpu, and cuda as the current CUDA device.
    if parsed.type != "cpu" and f"{parsed.type}:{parsed.index or 0}" not in available:
        raise InputError(f"device {device!r} is not available: {advice}")


def require_cuda(device_type: str, name: str) -> None:
    """Check that a model that computes in TF32 is on CUDA.

    Raises:
        InputError: the model is on another type of device.
    """
    if device_type != "cuda":
        raise InputError(f"dtype 'tf32' needs CUDA, and {name} is on {device_type}: use float32")
