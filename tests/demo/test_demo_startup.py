"""The web app while its model is being loaded: there at once, never empty, honest about what fails."""

import shutil
import threading
from pathlib import Path

import pytest

import planted
from stickytoken.demo.context import Startup, find_runs
from stickytoken.errors import ModelError
from web_app import SHOWN, WIDE, context_of, error, named, open_tab, opened_early, rows, serving_startup

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture
def startup(hostile):
    """An app whose model nobody has loaded yet."""
    _, run, runs = hostile
    return Startup("the model", find_runs([run], runs))


@pytest.fixture
def early(browser, startup):
    """A page of it."""
    with serving_startup(startup) as url, opened_early(browser, url, **WIDE) as visit:
        page, heard = visit
        yield page
        assert heard == []


def test_the_page_is_there_before_the_model_and_the_example_follows(early, startup, hostile):
    answer = early.locator("#try-answer")
    expect(answer).to_contain_text("the model is being loaded")
    expect(early.get_by_role("button", name="Show what happens")).to_be_disabled()
    expect(early.get_by_label("Sentence A")).to_be_disabled()
    open_tab(early, "Explore")
    expect(early.locator("#explore-evidence .card .token").first).to_be_visible()
    assert set(SHOWN[:4]) <= set(rows(early))
    open_tab(early, "Compare")
    expect(early.locator("#compare-answer table").first).to_be_visible()
    open_tab(early, "Try")
    model, run, runs = hostile
    startup.finish(lambda: context_of(model, [run], runs))
    expect(named(early)).to_have_text(SHOWN[0])
    expect(early.get_by_label("Sentence A")).not_to_have_value("")
    early.locator("#try-token").get_by_role("textbox").fill("baba")
    early.get_by_role("button", name="Show what happens").click()
    expect(named(early)).to_have_text("baba")


def test_who_waits_for_a_model_that_cannot_be_loaded_is_told(early, startup):
    expect(early.locator("#try-answer")).to_contain_text("is being loaded")

    def load():
        raise ModelError("it has no <weights>")

    with pytest.raises(ModelError):
        startup.finish(load)
    expect(error(early)).to_contain_text("it has no <weights>")
    expect(early.locator("#try-answer")).not_to_contain_text("being loaded")


def test_nobody_waits_for_a_model_whose_loading_was_stopped(startup):
    told = []

    def wait():
        try:
            startup.context()
        except ModelError as error:
            told.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()

    def load():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        startup.finish(load)
    waiting.join()
    assert told == ["the model was not loaded: start the app again"]


@pytest.mark.slow
def test_a_model_that_turns_out_to_be_broken_ends_the_command_with_one_line(bert_folder, tmp_path):
    model = Path(shutil.copytree(bert_folder, tmp_path / "model"))
    (model / "model.safetensors").write_bytes(b"no weights")
    result = planted.command("demo", "--port", 0, "--model", model, "--folder", tmp_path)
    assert result.exit_code == 1
    assert "serving on" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.stderr
