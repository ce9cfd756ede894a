"""Devices that a model cannot be loaded on are refused before it is loaded, with what is there."""

import pytest
import torch

import saved_models
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.encoders.loading import resolution as devices
from stickytoken.encoders.loading.resolution import available_devices, require_device
from stickytoken.errors import InputError

ABSENT = ["cuda:99", "mps:7", "xpu", "vulkan", "hpu"]
UNKNOWN = ["banana", "", " ", "CPU", "cuda:x", "cuda:-1", "cuda:", "cpu,cuda"]


def test_the_processor_is_always_there_and_other_devices_compute():
    assert available_devices()[0] == "cpu"
    for device in available_devices():
        require_device(device)
        assert float(torch.ones(3, device=device).sum()) == 3


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_processor_is_taken_in_every_spelling(pristine, device):
    assert load_encoder(pristine, device=device).device.startswith("cpu")


@pytest.mark.parametrize("device", [*UNKNOWN, *ABSENT, "meta", "meta:0"])
def test_a_device_that_cannot_be_used_is_refused_before_the_model_is_looked_for(device):
    with pytest.raises(InputError) as caught:
        load_encoder("no-such/model", device=device)
    message = str(caught.value)
    assert message.startswith(f"device {device!r} ")
    assert f"this machine has {', '.join(available_devices())}; pass one of these" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("device", "reason"), [("banana", "is unknown"), ("vulkan", "is not available"), ("meta", "no values")]
)
def test_the_reason_is_told(device, reason):
    with pytest.raises(InputError, match=reason):
        require_device(device)


def test_one_of_two_accelerators_is_taken_and_a_third_refused(monkeypatch):
    """This machine need not have two: only the list of what is there is replaced."""
    monkeypatch.setattr(devices, "available_devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    for device in ("cpu", "cuda", "cuda:0", "cuda:1"):
        require_device(device)
    for device in ("cuda:2", "xpu", "mps"):
        with pytest.raises(
            InputError, match="is not available: this machine has cpu, cuda:0, cuda:1; pass one"
        ):
            require_device(device)


def test_a_loaded_model_without_numbers_is_refused():
    model = architectures.static_model().to("meta")
    with pytest.raises(InputError, match="is on the meta device, which holds no values"):
        load_encoder(model)


def test_without_a_device_the_best_is_taken(pristine):
    assert load_encoder(pristine).encode(saved_models.TEXTS).shape == (3, architectures.DIMENSION)
