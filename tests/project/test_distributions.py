"""What is in the wheel and the sdist."""

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import stickytoken
from package_page import absolute

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(stickytoken.__file__).parent
NAME = f"stickytoken-{stickytoken.__version__}"
# The wheel is about 3 MB: code, templates, two corpora and a run for the web app.
WHEEL_MEGABYTES = 5
SDIST_MEGABYTES = 20


def built(folder, target, root=ROOT, **environment):
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    environment["SOURCE_DATE_EPOCH"] = "1750000000"
    subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return built(tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def metadata_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"{NAME}.dist-info/METADATA"))


def package_files(package):
    files = (path.relative_to(package.parent) for path in package.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_package_and_nothing_else(unpacked):
    assert {path.name for path in unpacked.iterdir()} == {"stickytoken", f"{NAME}.dist-info"}
    assert package_files(unpacked / "stickytoken") == package_files(PACKAGE)
    assert {path.suffix for path in (unpacked / "stickytoken").rglob("*") if path.is_file()} == {
        ".py", ".j2", ".css", ".js", ".csv", ".json", ".jsonl", ".npz", ".parquet", ".typed",
    }  # fmt: skip
    assert (unpacked / "stickytoken" / "py.typed").is_file()
    licence = unpacked / f"{NAME}.dist-info" / "licenses" / "LICENSE"
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_metadata_are_those_of_the_project(wheel):
    metadata = metadata_of(wheel)
    assert metadata["Version"] == stickytoken.__version__
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("MIT", ">=3.11")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra")) == set(extras)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Project-URL"] is None  # nor are links changed without an address
    assert (
        metadata.get_payload(decode=True).decode().strip() == (ROOT / "README.md").read_text("utf-8").strip()
    )
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    core = {requirement.name for requirement in required if requirement.marker is None}
    assert core & {requirement.name for requirement in required if requirement.marker is not None} == set()
    assert {"torch", "sentence-transformers", "polars"} <= core


def links(page):
    return re.findall(r"\]\(([^)\s]+)\)", page)


def test_a_release_leads_to_its_repository_also_when_built_from_its_sdist(tmp_path):
    address = "https://git.example/owner/stickytoken"
    sdist = built(tmp_path / "sdist", "sdist", STICKYTOKEN_REPOSITORY=address)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    metadata = metadata_of(built(tmp_path / "wheel", "wheel", root=tmp_path / NAME))
    tag = f"v{stickytoken.__version__}"
    assert (
        dict(address_line.split(", ") for address_line in metadata.get_all("Project-URL"))["Source"]
        == address
    )
    addresses = links(metadata.get_payload(decode=True).decode())
    assert [link for link in addresses if not link.startswith("https://")] == []
    assert f"{address}/blob/{tag}/docs/tutorial.md" in addresses
    paths = [
        link.partition(f"/{tag}/")[2].partition("#")[0] for link in addresses if link.startswith(address)
    ]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_code_and_links_to_elsewhere_are_left_alone():
    page = "[a](https://example.org) [b](#here) ![c](d.svg) [e\nf](g.md#h)\n```\n[i](j)\n```\n[k](LICENSE)\n"
    assert links(absolute(page, "https://git.example/o/r", "v1")) == [
        "https://example.org", "#here", "https://git.example/o/r/raw/v1/d.svg",
        "https://git.example/o/r/blob/v1/g.md#h", "j", "https://git.example/o/r/blob/v1/LICENSE",
    ]  # fmt: skip


def test_the_sdist_holds_what_the_tests_need_and_both_stay_small(wheel, sdist):
    assert wheel.stat().st_size < WHEEL_MEGABYTES * 1e6
    assert sdist.stat().st_size < SDIST_MEGABYTES * 1e6
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in names}
    assert {"src", "tests", "docs", "benchmarks", "Makefile", "LICENSE", "CHANGELOG.md"} <= tops
    assert {"constraints.txt", "constraints-lowest.txt", "AGENTS.md", "CITATION.cff"} <= tops
    assert tops & {"shared", "dist", "runs", ".venv", ".git"} == set()
    assert {f"src/{name}" for name in package_files(PACKAGE)} <= names
