"""The table [tool.stickytoken] of pyproject.toml."""

from pathlib import Path

import pytest

from stickytoken.errors import InputError
from stickytoken.gate.project_settings import read_project


@pytest.fixture
def root(tmp_path):
    (tmp_path / ".git").mkdir()
    return tmp_path


def settings_of(folder):
    return read_project(folder).settings.model_dump(exclude_none=True)


def written(root, text):
    (root / "pyproject.toml").write_text(text, encoding="utf-8")
    return read_project(root)


def test_without_a_table_nothing_is_set(root):
    assert settings_of(root) == {}
    assert written(root, "[tool.other]\nmodel = 3\n").settings.model is None
    assert written(root, "").place is None


def test_every_entry_is_read(root):
    found = written(
        root,
        '[project]\nname = "x"\n\n[tool.stickytoken]\nfail-on = "serious"\nmax = 3\n'
        'model = "all-MiniLM-L6-v2"\nrevision = "main"\nfolder = "measured"\nbaseline = "runs/a"\n',
    )
    assert settings_of(root) == {
        "model": "all-MiniLM-L6-v2",
        "revision": "main",
        "folder": "measured",
        "baseline": "runs/a",
        "fail_on": "serious",
        "max_tokens": 3,
    }
    assert found.place == ("pyproject.toml", 7)


def test_paths_are_relative_to_the_file_and_names_of_models_stay(root):
    inner = root / "docs" / "deep"
    inner.mkdir(parents=True)
    (root / "model").mkdir()
    written(root, '[tool.stickytoken]\nmodel = "model"\nbaseline = "runs/a"\n')
    found = read_project(inner)
    assert Path(found.settings.model) == root / "model"
    assert Path(found.settings.baseline) == root / "runs/a"
    assert found.place == ("pyproject.toml", 2)
    written(root, '[tool.stickytoken]\nmodel = "organisation/model"\n')
    assert read_project(inner).settings.model == "organisation/model"


def test_a_path_may_begin_at_the_home_folder(root, monkeypatch):
    monkeypatch.setenv("HOME", str(root / "home"))
    (root / "home" / "model").mkdir(parents=True)
    (root / "inner").mkdir()
    written(root, '[tool.stickytoken]\nmodel = "~/model"\nbaseline = "~/runs/a"\n')
    found = read_project(root / "inner").settings
    assert (found.model, found.baseline) == (str(root / "home/model"), str(root / "home/runs/a"))


def test_the_nearest_table_counts_and_none_above_the_repository(root):
    outer = root / "pyproject.toml"
    outer.write_text('[tool.stickytoken]\nmodel = "outer"\n', encoding="utf-8")
    inner = root / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text('[project]\nname = "x"\n', encoding="utf-8")
    assert read_project(inner).settings.model == "outer"
    (inner / ".git").mkdir()
    assert read_project(inner).settings.model is None


def test_the_place_is_the_table_where_it_names_no_model(root):
    text = '# first\n[tool.stickytoken]\nmax = 1\n[tool.other]\nmodel = "x"\n'
    assert written(root, text).place == ("pyproject.toml", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[tool.stickytoken]\nmodle = 'x'\n",
            "no entry 'modle': use model, revision, folder, baseline, documents",
        ),
        ("[tool.stickytoken]\nfail_on = 'sticky'\n", "no entry 'fail_on': use .*fail-on"),
        (
            "[tool.stickytoken]\nfail-on = 'bad'\n",
            "fail-on in .* is 'bad': .*'sticky', 'serious' or 'severe'",
        ),
        ("[tool.stickytoken]\nmax = '3'\n", "max in .* is '3'"),
        ("[tool.stickytoken]\nmax = -1\n", "max in .* is -1"),
        ("[tool.stickytoken]\nmax = true\n", "max in .* is True"),
        ("[tool.stickytoken]\nmodel = 3\n", "model in .* is 3"),
        ("[tool.stickytoken]\nmodel = ''\n", "model in .* is ''"),
        ("[tool]\nstickytoken = 3\n", "must be a table"),
        ("tool = 3\n", "is not valid TOML"),
        ("[tool.stickytoken\n", "is not valid TOML"),
    ],
)
def test_what_cannot_be_used_is_one_line(root, text, message):
    with pytest.raises(InputError, match=message) as error:
        written(root, text)
    assert "\n" not in str(error.value)


def test_a_file_in_another_encoding_is_one_line(root):
    (root / "pyproject.toml").write_bytes(b"[tool.stickytoken]\nmodel = '\xff'\n")
    with pytest.raises(InputError, match="must be TOML in UTF-8"):
        read_project(root)
