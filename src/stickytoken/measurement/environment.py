"""Record the versions and the hardware of a run."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from stickytoken.version import __version__

_PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "polars")


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect numbers."""
    found = {"python": platform.python_version(), "stickytoken": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: str) -> dict[str, str]:
    """Return the platform, the number of processors and the name of the device."""
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
    """Return the current UTC time in ISO 8601 format."""
    return datetime.now(UTC).isoformat(timespec="seconds")
