"""How settings and texts are written on a page."""

import pytest

from stickytoken.reports.templating import commands, cosine, flowing, plain


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([], "–"),
        ({}, "–"),
        (None, "–"),
        ("", "(empty)"),
        ([8, 4], "8, 4"),
        ({"token_prepending": True, "layer": -1}, "token prepending: yes, layer: -1"),
        (-0.00158148, "−0.00158148"),
    ],
)
def test_a_setting_is_never_blank_and_has_words_for_a_name(value, shown):
    assert plain(value) == shown


def test_a_text_with_line_breaks_is_one_paragraph():
    assert flowing("Team,\n\nthe client \r\n has\tpulled") == "Team, the client has\tpulled"


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("run `detect A` again", "run <code>detect A</code> again"),
        ("`a` and `<b>`", "<code>a</code> and <code>&lt;b&gt;</code>"),
        ("a name ` <b>", "a name ` &lt;b&gt;"),
        ("`\u202e`", r"<code>\u202e</code>"),
    ],
)
def test_commands_in_a_sentence_are_code_and_nothing_else_is(sentence, shown):
    assert commands(sentence) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0004, "0.000"), (-0.0004, "0.000"), (-0.0281, "−0.028"), (None, "–")]
)
def test_a_change_near_zero_is_a_number_without_a_sign(value, shown):
    assert cosine(value, 3) == shown
