"""The versions and the hardware that a run was computed with."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("stickytoken", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "polars")


def package_versions() -> dict[str, str]:
    """Versions of Python and of everything that computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: str) -> dict[str, str]:
    """Platform, processor count and the device's name."""
    import torch

    found = {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "torch_threads": str(torch.get_num_threads()),
        "device": device,
    }
    if device.startswith("cuda"):
        found["device_name"] = torch.cuda.get_device_name(torch.device(device))
    return found


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
