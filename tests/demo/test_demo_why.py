"""Why in the web app: what its tab computes, and the tab in a real browser."""

import pytest

from stickytoken.errors import InputError
from stickytoken.measurement.engine import ignore_progress
from web_app import ATTACKS, SHOWN, context_of, error, open_tab, saved_bert

FIRST, SECOND = "the river sings near the bridge", "an old doctor walks"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """The tab of a tiny BERT without a run."""
    from stickytoken.demo._explain import WhySimilar
    from stickytoken.demo.context import Startup

    context = context_of(saved_bert(tmp_path_factory.mktemp("why")))
    startup = Startup(context.model.name, context.library)
    startup.finish(lambda: context)
    return WhySimilar(startup)


@pytest.mark.parametrize("method", ["deletion", "jacobians"])
def test_every_method_answers_with_pairs_a_matrix_and_deletions(tab, method):
    (page,) = tab.answered(FIRST, SECOND, method, False, ignore_progress)
    assert "The cosine of the two texts is" in page
    assert page.count("<table") == 4
    assert "river" in page
    # No token is known to be sticky, and numbers near zero are numbers.
    assert ">sticky</th>" not in page
    assert "&lt; 0.001" not in page


def test_the_example_has_copies_of_a_token_behind_the_first_text(tab):
    first, second = tab.example_texts()
    *_, before_last, last = first.split()
    assert before_last == last
    assert second != first
    assert tab.opened(ignore_progress) == tab.opened(ignore_progress)


@pytest.mark.parametrize(
    ("values", "saying"),
    [
        (("", SECOND, "deletion"), "the first text is empty"),
        ((FIRST, None, "deletion"), "the second text is empty"),
        ((FIRST, "a " * 600, "deletion"), "the second text has 1,200 characters"),
        ((FIRST, SECOND, "magic"), "the method is unknown: choose one of deletion, jacobians$"),
        ((FIRST, SECOND, ["deletion"]), "the method is unknown"),
    ],
)
def test_bad_values_are_refused(tab, values, saying):
    with pytest.raises(InputError, match=saying):
        tab.answered(*values, False, ignore_progress)


def test_a_visitor_asks_about_two_hostile_texts(page):
    expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
    panel = open_tab(page, "Why")
    answer = page.locator("#why-answer")
    expect(answer.locator(".headline")).to_be_visible(timeout=60_000)
    panel.get_by_role("textbox", name="First text").fill(f"baba {ATTACKS[0]}")
    panel.get_by_role("textbox", name="Second text").fill("laga lara")
    panel.get_by_role("button", name="Show why").click()
    expect(answer).to_contain_text(SHOWN[0])
    panel.get_by_role("textbox", name="Second text").fill(" ")
    panel.get_by_role("button", name="Show why").click()
    expect(error(page)).to_contain_text("the second text is empty: write a sentence")
