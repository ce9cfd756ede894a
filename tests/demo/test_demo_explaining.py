"""Explanations in the web app: the figures of the report, within its limits."""

import pytest

from stickytoken import load_encoder
from stickytoken.demo._explain import FIGURES, chosen_settings, deviation_figure, explain_on, figures_of
from stickytoken.demo.context import SharedModel, named_token
from stickytoken.errors import InputError
from stickytoken.explanation.files import read_explanation
from stickytoken.reports.figures.explanation import explanation_figures


@pytest.fixture(scope="module")
def river(shared_model):
    """A token of a tiny BERT, explained without attribution."""
    settings = chosen_settings(3, 2, 3, "suffix", attribution=False)
    return explain_on(
        shared_model, named_token(shared_model.vocabulary, "river"), None, settings, lambda step: None
    )


def test_figures_of_an_explanation_are_those_that_the_report_draws(river, tmp_path):
    (folder,) = river.write(tmp_path)
    stored = read_explanation(folder)
    content = river.content(stored.token.token_id)
    assert content.record == stored.record
    assert all(table.equals(stored.tables[name]) for name, table in content.tables.items())
    drawn = figures_of(river)
    assert len(drawn) == FIGURES
    for own, reported in zip(drawn[1:], explanation_figures(stored), strict=True):
        if own is None:
            assert reported.name.endswith("attribution")
        else:
            assert (own.name, own.alt, own.plot) == (reported.name, reported.alt, reported.plot)


def test_a_token_that_was_not_explained_has_no_content(river):
    with pytest.raises(InputError, match="token id 3 was not explained: ask for one of"):
        river.content(3)


def test_all_measures_stand_on_one_scale_at_their_furthest_layer(river):
    figure = deviation_figure(river.measures, "river")
    places = {row[0]: row for row in figure.table.rows}
    assert set(places) == set(river.measures["measure"])
    for name, row in places.items():
        far = river.measures.filter(measure=name)["deviations"].abs().max()
        assert far is None or abs(row[figure.table.columns.index("deviations")]) == far
    marks = [mark for trace in figure.plot.data for mark in trace.x]
    known = [row for row in figure.table.rows if row[figure.table.columns.index("deviations")] is not None]
    assert sorted(marks) == sorted(round(row[-2], 3) for row in known)


def test_what_a_static_model_does_not_have_is_not_drawn(planted_profile):
    shared_model = SharedModel(load_encoder(planted_profile[0]))
    token = shared_model.vocabulary.available[-1]
    settings = chosen_settings(3, 2, 3, "suffix", attribution=False)
    found = explain_on(shared_model, token, None, settings, lambda step: None)
    titles = [figure.title for figure in figures_of(found) if figure is not None]
    assert titles[0] == "All measures"
    assert not any("Attention" in title for title in titles)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("'a' (3): sticky: 0.34 SD. Over 8 texts.", ("'a' (3): sticky: 0.34 SD.", "Over 8 texts.")),
        ("'. b' (3): sticky. More.", ("'. b' (3): sticky.", "More.")),
        ("'a' (3) differs.", ("'a' (3) differs.", "")),
    ],
)
def test_the_answer_is_the_first_sentence_whatever_the_token(text, parts):
    from stickytoken.demo._explain import first_sentence

    assert first_sentence(text, text.index("' (") + 1) == parts
