"""Reports in a real browser, and figures as files."""

import errno
import os
import shutil
import struct
from xml.etree import ElementTree

import polars as pl
import pytest

import planted
import profiled
import stickytoken
from naming import naming
from report_pages import GRAVE, opened, violations, wait_for_plots, wait_until, words_cut_off
from stickytoken import load_encoder, open_run
from stickytoken.errors import InputError, RunError
from stickytoken.reports import save_figures
from stickytoken.reports.cards import MOST_CARDS
from stickytoken.reports.content import read_content
from stickytoken.reports.facts import report_figures
from stickytoken.reports.figures import template
from stickytoken.reports.figures.run import flagged_categories

NO_SPACE = os.strerror(errno.ENOSPC)


@pytest.fixture(scope="module")
def folder(run, explained_run, tmp_path_factory):
    """A run with more flagged tokens than have cards, its report and that of another."""
    run = open_run(shutil.copytree(run.path, tmp_path_factory.mktemp("run") / "run"))
    stickytoken.report(explained_run, out=run.path / "explained.html")
    best = run.tokens["erased"].top_k(MOST_CARDS + 1).min()
    flagged = run.tokens.with_columns(
        verdict=pl.when(pl.col("erased") >= best).then(pl.lit("sticky")).otherwise("verdict")
    )
    planted.replace_tokens(run.path, flagged)
    stickytoken.report(run.path, out=run.path / "report.html")
    return run.path


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("report.html", 390, "dark"),
        ("report.html", 1400, "light"),
        ("explained.html", 390, "light"),
        ("explained.html", 1400, "dark"),
    ],
)
def test_it_is_quiet_and_never_wider_than_the_screen(browser, folder, name, width, scheme):
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with opened(browser, folder / name, **options) as (page, heard):
        wait_for_plots(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(
            "[...document.querySelectorAll('[data-figure]')].every(plot => plot.querySelector('.main-svg')"
            ".getBoundingClientRect().right <= plot.getBoundingClientRect().right + 1)"
        )
        assert words_cut_off(page) == []
        lines = page.evaluate(
            "[...document.querySelectorAll('#tokens td.number')].map(cell => {"
            "const text = document.createRange(); text.selectNodeContents(cell);"
            "return text.getClientRects().length})"
        )
        assert width > 390 or set(lines) <= {1}  # values are whole on a phone, too
        if name == "report.html":
            assert len(lines) > MOST_CARDS
            for first in (".headline", ".card .why", ".card .harm"):  # on the first screen
                assert page.locator(first).first.bounding_box()["y"] < 800
            assert page.locator("details.others").evaluate("each => each.open") == (width > 640)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        levels = [int(level) for level in ground.removeprefix("rgb(").removesuffix(")").split(",")]
        assert (max(levels) < 60) == (scheme == "dark")
        assert violations(page, ("minor", "moderate", *GRAVE)) == []
        assert heard == []


def test_pictures_follow_the_colour_scheme(browser, folder):
    ink = "getComputedStyle(document.querySelector('#figure-erased-distribution .xtitle')).fill"
    with opened(browser, folder / "report.html", color_scheme="light") as (page, heard):
        wait_for_plots(page)
        light = page.evaluate(ink)
        page.emulate_media(color_scheme="dark")
        wait_until(page, f"{ink} !== '{light}'")
        assert heard == []


def lifts_shown(page):
    return page.evaluate(
        "[...document.querySelectorAll('#tokens tbody tr:not([hidden])')]"
        ".map(row => Number(row.cells[4].dataset.value))"
    )


def test_the_table_is_sorted_and_searched_by_keyboard(browser, folder):
    with opened(browser, folder / "report.html", viewport={"width": 1400, "height": 900}) as (page, heard):
        wait_for_plots(page)
        everything = lifts_shown(page)
        assert len(everything) >= 12
        page.focus("#tokens th:nth-child(5) button")
        page.keyboard.press("Enter")
        assert lifts_shown(page) == sorted(everything, reverse=True)
        assert page.get_attribute("#tokens th:nth-child(5)", "aria-sort") == "descending"
        page.keyboard.press("Space")
        assert lifts_shown(page) == sorted(everything)
        page.focus("#search")
        page.keyboard.type("SYMBOL")
        assert 0 < len(lifts_shown(page)) < len(everything)
        assert page.inner_text("#count") == f"{len(lifts_shown(page))} of {len(everything)}"
        page.keyboard.press("Enter")  # of a form that goes nowhere
        page.fill("#search", "no such token")
        assert lifts_shown(page) == []
        page.fill("#search", "")
        page.select_option("#order", label="token")
        assert sorted(lifts_shown(page)) == sorted(everything)
        page.select_option("#order", label="worst first")
        assert lifts_shown(page) == everything
        assert heard == []


def test_without_scripts_words_and_numbers_are_all_there(browser, folder):
    with opened(browser, folder / "report.html", java_script_enabled=False) as (page, heard):
        figures = report_figures(read_content(folder))
        assert page.locator("details.numbers[open] table").count() == len(figures)
        assert page.locator("#tokens tbody tr").first.is_visible()
        assert page.locator(".waiting").first.is_visible()
        assert not page.locator(".tools").is_visible()
        assert heard == []


def test_paper_is_light_and_has_the_numbers_and_no_legend_over_an_axis(browser, folder):
    ink = "getComputedStyle(document.querySelector('.xtitle')).fill"
    red, green, blue = bytes.fromhex(template("light")["layout"]["font"]["color"].removeprefix("#"))
    over = """[...document.querySelectorAll('[data-figure]')].filter(plot => {
        const legend = plot.querySelector('.legend')?.getBoundingClientRect();
        return legend && [...plot.querySelectorAll('.xtitle, .xtick')].some(each => {
            const axis = each.getBoundingClientRect();
            return axis.width && axis.bottom > legend.top + 2 && axis.top < legend.bottom - 2
                && axis.right > legend.left && axis.left < legend.right;
        });
    }).map(plot => plot.dataset.figure)"""
    for name in ("report.html", "explained.html"):
        with opened(browser, folder / name, color_scheme="dark") as (page, heard):
            wait_for_plots(page)
            assert page.evaluate(over) == []
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            assert page.locator("details.numbers:not([open])").count() == 0
            assert page.evaluate(over) == []
            assert page.evaluate(ink) == f"rgb({red}, {green}, {blue})"
            page.emulate_media(media="print")
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert ground == "rgb(255, 255, 255)"
            page.emulate_media(media="screen")
            page.evaluate("dispatchEvent(new Event('afterprint'))")
            assert page.locator("details.numbers[open]").count() == 0
            assert heard == []


def test_a_closed_part_opens_by_its_link_and_is_drawn_then(browser, tmp_path):
    encoder = load_encoder(profiled.planted_model(0))
    clean_run = profiled.detect_in_documents(encoder, tmp_path / "run", sample=10)
    stickytoken.report(clean_run, out=tmp_path / "clean.html")
    with opened(browser, tmp_path / "clean.html") as (page, heard):
        page.get_by_role("link", name="Push of the tokens measured in documents").click()
        wait_until(page, "document.querySelector('#figure-push-distribution .main-svg')?.clientWidth > 300")
        assert heard == []


def test_figures_are_saved_as_png_svg_and_pdf(browser, folder, tmp_path):
    result = planted.command("report", folder, "-f", "json", "--figures", tmp_path / "figures")
    assert result.exit_code == 0, result.stderr
    content = read_content(folder)
    names = {figure.name for figure in [*report_figures(content), flagged_categories(content.tokens)]}
    files = list((tmp_path / "figures").iterdir())
    kinds = ("png", "svg", "pdf")
    assert {path.name for path in files} == {f"{name}.{kind}" for name in names for kind in kinds}
    for path in files:
        if path.suffix == ".png":
            png = path.read_bytes()
            assert png.startswith(b"\x89PNG")
            assert struct.unpack(">I", png[16:20])[0] == 2700
        elif path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF")
        else:
            assert ElementTree.fromstring(path.read_text("utf-8")).tag.endswith("svg")


def test_figures_are_replaced_whole_or_not_at_all(folder, tmp_path, monkeypatch):
    """Nothing is touched before everything is drawn, and a disk that fills up tears no file."""
    figures = report_figures(read_content(folder))[:1]
    old = tmp_path / f"{figures[0].name}.png"
    figures_drawn = []
    old.write_bytes(b"old")

    def full(_):
        raise OSError(errno.ENOSPC, NO_SPACE)

    def draw(plots, paths, **_):
        for path in paths:
            path.write_bytes(b"new")
            figures_drawn.append(path)
            if len(figures_drawn) == 1:
                full(path)

    def contents():
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    monkeypatch.setattr("plotly.io.write_images", draw)
    with pytest.raises(RunError, match=naming(NO_SPACE)):
        save_figures(figures, tmp_path)
    assert contents() == {old.name: b"old"}
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(RunError, match=naming(old)):
            save_figures(figures, tmp_path)
    assert contents() == {old.name: b"old"}
    save_figures(figures, tmp_path)
    assert list(contents().values()) == [b"new"] * 3  # png, svg and pdf


def test_without_a_browser_figures_are_refused_in_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "absent"))
    with pytest.raises(InputError, match=naming("BROWSER_PATH")):
        save_figures(report_figures(read_content(folder))[:1], tmp_path / "figures")
