"""The README: its figures are those of the results. Its outputs are compared in test_outputs.py."""

import json
import re

import pytest

from build import ROOT
from report import RECORD, shown

README = (ROOT / "README.md").read_text("utf-8")
RESULTS = ROOT / "benchmarks" / "results"
COMMANDS = json.loads(RECORD.read_text("utf-8"))["commands"]


def flat(text):
    return " ".join(text.split())


def test_the_questions_of_a_reader_have_a_command_each():
    parts = re.split(r"^## ", README, flags=re.MULTILINE)[:5]
    assert [len(shown(part)) for part in parts] == [1] * 5


def test_the_figures_of_the_picture_are_those_of_the_result():
    figure = json.loads((RESULTS / "readme_figure.json").read_text("utf-8"))
    as_written, tampered, repaired = (f"{value:.2f}".replace("-", "−") for value in figure["pair"].values())
    assert f"from {as_written} to {tampered}" in README
    assert f"that pair has {repaired}" in flat(README)
    assert f'Eight copies of "{figure["token"]}"' in flat(README)
    eight = figure["curve"]["copies"].index(figure["copies"])
    first, after = (figure["curve"]["before"][place] for place in (0, eight))
    assert f"from {first:.2f} to {after:.2f} on average" in flat(README)


def test_what_is_said_of_minilm_is_what_the_run_found():
    (headline, *_) = COMMANDS["stickytoken detect all-MiniLM-L6-v2"]["stdout"]
    assert headline in README
    assert "all 23,699 of 23,699 available tokens" in README


def test_the_code_is_five_lines_and_runs(bert_folder, sentence_file, tmp_path, monkeypatch):
    """On a tiny model and with few texts, so that it takes seconds."""
    import planted
    import stickytoken

    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert len([line for line in code.splitlines() if line.strip()]) == 5
    monkeypatch.chdir(tmp_path)
    detect = stickytoken.detect
    settings = {"sentences": sentence_file, "settings": planted.SMALL, "tokens": ["river", "stone"]}
    monkeypatch.setattr(stickytoken, "detect", lambda _: detect(bert_folder, **settings), raising=False)
    exec(compile(code, "README.md", "exec"), {})


def figures_of_models():
    """Available tokens, sticky and topical ones by the page of each model."""
    found = {}
    for path in sorted((ROOT / "docs" / "models").glob("*.md")):
        text = path.read_text("utf-8")
        sticky, topical = re.search(r"(\d+) tokens are sticky, (\d+) topical", text).groups()
        found[path.name] = (int(sticky), int(topical))
    return found


def test_the_table_of_models_is_that_of_their_pages():
    rows = re.findall(r"^\| \[.*\]\(models/(.*?\.md)\).*\| (\d+) \| (\d+) \|$", _faq(), re.MULTILINE)
    assert {name: (int(sticky), int(topical)) for name, sticky, topical in rows} == figures_of_models()


def _faq():
    return (ROOT / "docs" / "faq.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("said", "page", "source"),
    [
        ("17 sticky and 22 topical", "models/all-MiniLM-L6-v2.md", "| trec | 5,871 | 17 | 22 |"),
        ("by 1.6 standard deviations", "method.md", "lifts entries by 1.6 standard deviations"),
        ("texts by only 0.2", "method.md", "texts by only 0.2"),
        ("0.24 and 0.39", "method.md", "is 0.24 and 0.39"),
        ("p = 0.31", "models/all-MiniLM-L6-v2.md", "p = 0.31"),
        ('"whereupon" stands at 99%', "models/all-MiniLM-L6-v2.md", "'whereupon' 99%"),
        ('"functioning" at 21%', "models/all-MiniLM-L6-v2.md", "'functioning' 21%"),
        ("p = 0.1)", "models/all-mpnet-base-v2.md", "p = 0.1)"),
        ("none of twenty such documents", "documents.md", "The scan finds none of the twenty"),
        ("changed by −0.02 and +0.02 points", "repair.md", "STS-B, in points | −0.02 | −0.09 | +0.02"),
        ("94,761 texts", "models/all-MiniLM-L6-v2.md", "94,761 texts"),
        ("about 120,000 short texts", "endpoints.md", "about 120,000 short texts"),
        ('called "wandered" sticky', "benchmarks.md", 'calls "wandered" sticky'),
    ],
)  # fmt: skip
def test_the_figures_of_the_answers_are_those_of_their_sources(said, page, source):
    assert said in flat(_faq())
    assert source in flat((ROOT / "docs" / page).read_text("utf-8"))


def test_the_pictures_of_the_gallery_are_small():
    pictures = list((ROOT / "docs" / "images").glob("gallery-*.png"))
    assert len(pictures) == 9  # for a wide screen, in the dark and for a phone
    assert sum(path.stat().st_size for path in pictures) < 500_000


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 117
