"""The command that makes pages, reports and pictures again: what it makes, and what it leaves."""

import json
from pathlib import Path

import matplotlib
import pytest

import model_card
import pages
import typed_copies
from naming import naming
from pages import Step, Workshop, make_all, run_identity

SOURCE = "packaged all-MiniLM-L6-v2"
IDENTITY = run_identity(pages.PACKAGED / "all-MiniLM-L6-v2")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository without any page."""
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "RECORD", tmp_path / "pages.json")
    return tmp_path


@pytest.fixture
def counted_page(root, monkeypatch):
    """The only step writes page.md; returns the list of what it has written."""
    product = root / "page.md"
    texts = []

    def write():
        texts.append(f"page {len(texts) + 1}")
        product.write_text(texts[-1], "utf-8")

    step = Step("page", (SOURCE,), (product,), write)
    monkeypatch.setattr(Workshop, "steps", lambda self: iter([step]))
    return texts


def test_a_missing_page_is_made_once(root, counted_page, capsys):
    make_all(root)
    make_all(root)
    assert counted_page == ["page 1"]
    assert capsys.readouterr().out == "to make:    page\nup to date: page\n"
    assert pages.record()["made"] == {"page.md": {SOURCE: IDENTITY}}
    assert pages.record()["sha256"] == {"page.md": pages.digest_of(root / "page.md")}


def test_a_deleted_page_is_made_again(root, counted_page):
    make_all(root)
    (root / "page.md").unlink()
    make_all(root)
    assert counted_page == ["page 1", "page 2"]


def test_a_page_of_another_run_is_made_again(root, counted_page):
    make_all(root)
    (root / "pages.json").write_text(json.dumps({"made": {"page.md": {SOURCE: "0123456789ab"}}}), "utf-8")
    make_all(root)
    assert counted_page == ["page 1", "page 2"]


def test_again_makes_what_is_up_to_date(root, counted_page):
    make_all(root)
    make_all(root, again=True)
    make_all(root, "report", again=True)  # no step has this name
    assert counted_page == ["page 1", "page 2"]


def test_a_plan_makes_nothing(root, counted_page, capsys):
    make_all(root, plan=True)
    assert counted_page == []
    assert capsys.readouterr().out == "to make:    page\n"


def test_a_failure_stops_no_other_step(root, monkeypatch):
    (root / "second.md").write_text("", "utf-8")
    first = Step("first", (SOURCE,), (root / "first.md",), lambda: None)
    second = Step("second", (SOURCE,), (root / "second.md",), lambda: None)
    monkeypatch.setattr(Workshop, "steps", lambda self: iter([first, second]))
    with pytest.raises(SystemExit, match=naming("first", "first.md")):
        make_all(root)
    assert list(pages.record()["made"]) == ["second.md"]


def test_every_recorded_file_exists_and_is_the_product_of_a_step():
    steps = Workshop(Path("unused")).steps()
    products = {pages.relative(product) for step in steps for product in step.products}
    recorded = pages.record()["made"]
    assert set(recorded) <= products
    assert [path for path in recorded if not (pages.ROOT / path).is_file()] == []


def test_every_recorded_file_is_as_it_was_made():
    digests = pages.record()["sha256"]
    assert {path for path in pages.record()["made"] if path.endswith(".md")} <= set(digests)
    assert {path: pages.digest_of(pages.ROOT / path) for path in digests} == digests


def test_every_picture_and_page_is_recorded():
    """The picture of the README is drawn from a result file, and drawn again by another test."""
    files = {pages.relative(path) for path in (*pages.PAGES.glob("*.md"), *pages.IMAGES.iterdir())}
    drawn = {"docs/images/typed_copies-dark.svg", "docs/images/typed_copies.svg"}
    assert files - set(pages.record()["made"]) == {"docs/models/README.md", *drawn}


def test_the_picture_of_the_readme_is_drawn_from_its_result(tmp_path, monkeypatch):
    tested = dict(line.split("==") for line in pinned_versions())
    if matplotlib.__version__ != tested["matplotlib"]:
        pytest.skip("another matplotlib draws other files")
    monkeypatch.setattr(typed_copies, "IMAGES", tmp_path)
    typed_copies.draw()
    drawn = sorted(tmp_path.iterdir())
    assert [path.name for path in drawn] == ["typed_copies-dark.svg", "typed_copies.svg"]
    for path in drawn:
        assert path.read_bytes() == (pages.IMAGES / path.name).read_bytes()


def pinned_versions():
    lines = (pages.ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return [line for line in lines if "==" in line and not line.startswith("#")]


def test_the_page_of_minilm_is_that_of_the_packaged_run(tmp_path, monkeypatch):
    name = "all-MiniLM-L6-v2"
    monkeypatch.setattr(model_card, "PAGES", tmp_path)
    model_card.main(pages.PACKAGED / name, name)
    assert (tmp_path / f"{name}.md").read_text("utf-8") == (pages.PAGES / f"{name}.md").read_text("utf-8")


def test_every_page_names_the_run_that_it_was_made_from():
    for page in set(pages.PAGES.glob("*.md")) - {pages.PAGES / "README.md"}:
        identity = pages.record()["made"][pages.relative(page)][page.stem]
        assert f", in run {identity}." in page.read_text("utf-8")
