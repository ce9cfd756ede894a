"""Check the devices of this machine."""

from __future__ import annotations

from stickytoken.errors import InputError


def available_devices() -> list[str]:
    """List the devices of this machine: ``cpu``, and each accelerator that torch finds."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def best_device() -> str:
    """Return the first accelerator of this machine, or else ``cpu``."""
    return available_devices()[:2][-1]


def require_device(device: str) -> None:
    """Refuse a device that is unknown to torch, missing, or ``meta``.

    Raises:
        InputError: The device cannot be used; the message lists the available ones.
    """
    import torch

    there = available_devices()
    advice = f"this machine has {', '.join(there)}; pass one of these, or leave the device out"
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device {device!r} is unknown: {advice}") from error
    if wanted.type == "meta":
        raise InputError(f"device {device!r} has no values, only shapes: {advice}")
    # torch treats cpu:1 as cpu, and cuda as the current CUDA device.
    if wanted.type != "cpu" and f"{wanted.type}:{wanted.index or 0}" not in there:
        raise InputError(f"device {device!r} is not available: {advice}")


def require_cuda(kind: str, name: str) -> None:
    """Refuse TF32 for a model that is not on CUDA.

    Raises:
        InputError: The model is on another device.
    """
    if kind != "cuda":
        raise InputError(f"dtype 'tf32' needs CUDA, and {name} is on {kind}: use float32")
