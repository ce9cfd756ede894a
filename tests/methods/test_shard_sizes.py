"""How many texts a shard has by default."""

import pytest

from stickytoken.methods.runner import shard_probes_for


@pytest.mark.parametrize(
    ("device", "texts"), [("cpu", 8192), ("endpoint", 8192), ("mps:0", 8192), ("cuda:0", 32768)]
)
def test_a_cuda_gpu_gets_larger_shards(device, texts):
    assert shard_probes_for(device) == texts
