"""Where a model can compute on this machine."""

from __future__ import annotations

from stickytoken.errors import InputError


def available_devices() -> list[str]:
    """The devices of this machine: ``cpu``, and each accelerator that torch can reach."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def require_device(device: str) -> None:
    """Refuse a device that torch does not know, that is not there or that holds no numbers.

    Raises:
        InputError: the device cannot be used; the message names what is there.
    """
    import torch

    there = available_devices()
    advice = f"this machine has {', '.join(there)}; pass one of these, or leave the device out"
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device {device!r} is unknown: {advice}") from error
    if wanted.type == "meta":
        raise InputError(f"device {device!r} holds shapes and no numbers: {advice}")
    # torch reads cpu:1 as cpu, and cuda as the current one of its kind.
    if wanted.type != "cpu" and f"{wanted.type}:{wanted.index or 0}" not in there:
        raise InputError(f"device {device!r} is not there: {advice}")


def require_cuda(kind: str, name: str) -> None:
    """Refuse TF32 for a model that is elsewhere than on CUDA.

    Raises:
        InputError: names where it is.
    """
    if kind != "cuda":
        raise InputError(f"dtype 'tf32' is arithmetic of CUDA, and {name} is on {kind}: use float32")
