"""Backbones of tiny architectures, each saved once a session."""

from functools import cache

import pytest

import tiny_architectures as architectures


@pytest.fixture(scope="session")
def backbone(tmp_path_factory):
    root = tmp_path_factory.mktemp("backbones")
    savers = {architecture.name: architecture.save for architecture in architectures.ARCHITECTURES}
    return cache(lambda name: savers[name](root / name))


@pytest.fixture
def model(backbone):
    return architectures.stacked(backbone("bert"))
