"""Small facts in the user's cache folder."""

import pytest

from stickytoken.machine import keep, recalled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_kept_is_recalled(folder):
    keep("fact", {"value": 1})
    assert recalled("fact") == {"value": 1}
    assert [path.name for path in folder.iterdir()] == ["fact.json"]


def test_what_cannot_be_written_leaves_nothing_behind(folder):
    (folder / "fact.json").mkdir(parents=True)
    keep("fact", {"value": 1})
    assert recalled("fact") is None
    assert [path.name for path in folder.iterdir()] == ["fact.json"]
