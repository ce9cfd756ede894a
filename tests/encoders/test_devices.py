"""Devices that a model cannot be loaded on are refused before it is loaded, with what is there."""

import pytest
import torch

import saved_models
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.encoders.loading import resolution as devices
from stickytoken.encoders.loading.resolution import available_devices, require_device
from stickytoken.errors import InputError


@pytest.mark.parametrize("device", [None, "cpu", "cpu:0", torch.device("cpu")])
def test_the_processor_is_taken_in_every_spelling_and_without_a_device(pristine, device):
    assert available_devices()[0] == "cpu"
    encoder = load_encoder(pristine, device=device)
    assert encoder.encode(saved_models.TEXTS).shape == (3, architectures.DIMENSION)
    assert device is None or encoder.device.startswith("cpu")


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("banana", "is unknown"),
        ("", "is unknown"),
        ("CPU", "is unknown"),
        ("cuda:-1", "is unknown"),
        ("cuda:99", "is not available"),
        ("vulkan", "is not available"),
        ("meta:0", "no values"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_before_the_model_is_looked_for(device, reason):
    with pytest.raises(InputError, match=reason) as caught:
        load_encoder("no-such/model", device=device)
    message = str(caught.value)
    assert message.startswith(f"device {device!r} ")
    assert f"this machine has {', '.join(available_devices())}" in message


def test_one_of_two_accelerators_is_taken_and_a_third_refused(monkeypatch):
    """This machine need not have two: only the list of what is there is replaced."""
    monkeypatch.setattr(devices, "available_devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    for device in ("cpu", "cuda", "cuda:0", "cuda:1"):
        require_device(device)
    for device in ("cuda:2", "xpu", "mps"):
        with pytest.raises(InputError, match="is not available: this machine has cpu, cuda:0, cuda:1"):
            require_device(device)


def test_a_loaded_model_stays_on_its_device_and_needs_one_with_values(model):
    with pytest.raises(InputError, match=r"on cpu, not meta"):
        load_encoder(model, device="meta")
    assert load_encoder(model, device="cpu").device == "cpu"
    with pytest.raises(InputError, match="is on the meta device, which holds no values"):
        load_encoder(architectures.static_model().to("meta"))
