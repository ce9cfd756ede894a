"""Explore, Explain and Compare in a real browser, as a visitor uses them."""

import pytest

from web_app import TOKEN, drawn, error, first_cells, open_tab, rows

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


def choose(page, field, text):
    """Choose the one entry of a list that holds a text, by keyboard."""
    field.focus()
    field.press("Control+a")
    page.keyboard.type(text)
    options = page.get_by_role("option")
    expect(options).to_have_count(1)
    expect(options).to_contain_text(text)
    field.press("ArrowDown")
    field.press("Enter")
    expect(options).to_have_count(0)


# Explore.


def looked_at(page):
    """The token whose evidence is shown."""
    return page.locator("#explore-evidence .card .token").first


def test_the_table_is_filtered_and_a_token_shows_its_evidence(page):
    panel = open_tab(page, "Explore")
    expect(looked_at(page)).to_be_visible()
    assert "pair" in page.inner_text("#explore-evidence").lower()
    everything = page.inner_text("#explore-count")
    search = panel.get_by_label("Search")
    search.fill("baba")
    expect(page.locator("#explore-count")).not_to_have_text(everything)
    cell = first_cells(page).get_by_text("baba", exact=True)
    cell.first.click()
    expect(looked_at(page)).to_have_text("baba")
    assert all("baba" in row.lower() for row in rows(page))
    search.fill("")
    expect(page.locator("#explore-count")).to_have_text(everything)


def test_a_token_is_chosen_by_keyboard(page):
    panel = open_tab(page, "Explore")
    choose(page, panel.get_by_label("Token to show"), "laga (")
    expect(looked_at(page)).to_have_text("laga")


def test_a_run_that_is_not_finished_is_shown_as_far_as_it_got(page):
    assert "1 folder could not be read as a run" in page.inner_text("#welcome")
    assert "newer" in page.locator("#welcome").text_content()
    panel = open_tab(page, "Explore")
    run = panel.get_by_label("Run", exact=True)
    usual = run.input_value()
    everything = page.inner_text("#explore-count")
    choose(page, run, "half (not finished)")
    expect(page.locator("#explore-about")).to_contain_text("not finished")
    assert "to continue it" in page.inner_text("#explore-about")
    expect(page.locator("#explore-count")).to_contain_text("0 tokens")
    choose(page, run, usual)
    expect(page.locator("#explore-count")).to_have_text(everything)


# Explain.


def titles(panel):
    """Titles of the figures that are shown."""
    return panel.locator(".figure").filter(visible=True).locator("h3")


def test_a_token_is_explained_with_the_figures_of_the_report(bert_page):
    panel = open_tab(bert_page, "Explain")
    headline = bert_page.locator("#explain-answer .headline")
    expect(headline).to_be_visible(timeout=60_000)
    panel.get_by_role("textbox", name=TOKEN).fill("river")
    panel.get_by_role("button", name="Explain").click()
    expect(headline).to_contain_text("'river'", timeout=60_000)
    without = [
        "All measures",
        "Attention that the copies receive, by layer",
        "Attention that the copies receive, by layer and head",
        "Drift of the hidden states, by layer",
        "What the copies contribute to the sentence vector",
        "The row of the embedding matrix",
    ]
    attributed = "One pair's similarity, token by token"
    open_tab(bert_page, "Explore")
    open_tab(bert_page, "Explain")
    expect(titles(panel)).to_have_text(without)
    drawn(bert_page, 2 + len(without))
    assert "Nearest embeddings" in bert_page.inner_text("#explain-tables")
    panel.get_by_label("Attribution").check()
    panel.get_by_role("button", name="Explain").click()
    expect(titles(panel)).to_have_text([*without[:5], attributed, without[5]], timeout=60_000)
    expect(bert_page.locator("#explain-tables")).to_contain_text("Similarity as a sum over tokens")


def test_a_model_without_attention_is_explained_without_it(page):
    panel = open_tab(page, "Explain")
    answer = page.locator("#explain-answer")
    expect(answer.locator(".headline")).to_be_visible(timeout=60_000)
    expect(answer).to_contain_text("it has no attention and no layers")
    expect(titles(panel).first).to_have_text("All measures")
    expect(titles(panel).filter(has_text="Attention")).to_have_count(0)
    panel.get_by_role("textbox", name=TOKEN).fill("volcano")
    panel.get_by_role("button", name="Explain").click()
    expect(error(page)).to_contain_text("the vocabulary has no token 'volcano'")
    expect(titles(panel)).to_have_count(0)


# Compare.


def test_two_runs_are_compared(page):
    panel = open_tab(page, "Compare")
    answer = page.locator("#compare-answer")
    expect(answer.locator("table").first).to_be_visible()
    first, beside = panel.get_by_label("Run", exact=True), panel.get_by_label("Compared with")
    usual = first.input_value()
    choose(page, beside, "half (not finished)")
    expect(error(page)).to_contain_text("is not finished")
    choose(page, beside, "second")
    expect(answer).to_contain_text("Agreement")
    expect(titles(panel)).to_have_text(["The worst token of each run", "Sticky tokens, run by run"])
    choose(page, first, "second")
    expect(error(page)).to_contain_text("choose two")
    expect(titles(panel)).to_have_count(0)
    expect(answer.locator("table")).to_have_count(0)
    choose(page, first, usual)
    expect(answer).to_contain_text("Agreement")
