"""Shards: a committed shard is read back in full or not at all."""

import random

import polars as pl
import pytest

from stickytoken.detection.run_folder import RunFolder
from stickytoken.measurement.store import ShardCost


def shard_rows():
    generator = random.Random(0)
    return [{"token_id": token, "score": generator.random(), "by": [1.0, token / 7]} for token in range(50)]


@pytest.fixture
def shard(tmp_path):
    """A run folder with one committed shard of 50 tokens."""
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.write_shard("score", 0, shard_rows(), ShardCost(1.25, 10))
    return folder


def test_a_shard_comes_back_as_it_was_written_and_none_for_other_tokens_stages_or_places(shard):
    assert shard.read_shard("score", 0, range(50)).to_dicts() == shard_rows()
    assert shard.read_shard("score", 0, range(1, 51)) is None
    assert shard.read_shard("score", 0, range(49)) is None
    assert shard.read_shard("score", 1, range(50)) is None
    assert shard.read_shard("validate", 0, range(50)) is None


def test_a_shard_that_was_cut_off_anywhere_is_none(shard):
    (path,) = (shard.path / "shards").iterdir()
    content = path.read_bytes()
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        assert shard.read_shard("score", 0, range(50)) is None, size


def test_a_shard_without_a_seal_is_none(shard):
    (path,) = (shard.path / "shards").iterdir()
    pl.DataFrame(shard_rows()).write_parquet(path)
    assert shard.read_shard("score", 0, range(50)) is None
    assert shard.committed() == {}


def test_a_shard_with_a_flipped_bit_raises_nothing_and_never_gives_other_numbers(shard, capfd):
    (path,) = (shard.path / "shards").iterdir()
    content, generator = path.read_bytes(), random.Random(1)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        found = shard.read_shard("score", 0, range(50))
        assert found is None or found.to_dicts() == shard_rows()
    capfd.readouterr()  # what a panic of Polars writes
