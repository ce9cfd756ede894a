"""Texts are cut so that the model reads them whole, together with the copies that they get."""

import pytest

import planted
import tiny
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders.fitting import fit_texts
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion


def test_ids_are_cut_where_the_model_would_cut_and_text_behind_a_word(encoder):
    texts = [" ".join((tiny.WORDS * 4)[:words]) for words in (200, 54, 55)]
    fitted_texts = fit_texts(encoder, texts, 8, Insertion.IDS, "t")
    assert [(len(text.content.ids), text.cut) for text in fitted_texts] == [
        (54, True),
        (54, False),
        (54, True),
    ]
    assert fitted_texts[0].content.ids == encoder.tokenize(texts[:1])[0].ids[:54]
    assert encoder.fits((*fitted_texts[0].content.ids, *(5,) * 8))
    without_limit = load_encoder(planted.planted_model(3))
    assert not fit_texts(without_limit, texts, 8, Insertion.IDS, "t")[0].cut
    (fitted_text,) = fit_texts(encoder, texts[:1], 8, Insertion.TEXT, "t")
    assert fitted_text.cut
    assert texts[0].startswith(f"{fitted_text.text} ")
    longer = texts[0][: texts[0].index(" ", len(fitted_text.text) + 1)]
    sizes = [len(text.ids) for text in encoder.tokenize([fitted_text.text, longer])]
    assert sizes[0] == len(fitted_text.content.ids) <= 54 < sizes[1]


@pytest.mark.parametrize("beginning", ["", "river "])
def test_text_without_spaces_is_cut_behind_a_character(encoder, beginning):
    """In Chinese, Japanese and Thai, a whole paragraph is one word."""
    paragraph = beginning + "\N{CJK UNIFIED IDEOGRAPH-6F22}\N{CJK UNIFIED IDEOGRAPH-5B57}" * 200
    (fitted_text,) = fit_texts(encoder, [paragraph], 8, Insertion.TEXT, "t")
    assert fitted_text.cut
    assert len(fitted_text.content.ids) == 54
    assert paragraph.startswith(fitted_text.text)


def test_copies_that_leave_no_room_for_a_text_are_refused(encoder):
    fit_texts(encoder, ["a river"], 61, Insertion.IDS, "sts")
    with pytest.raises(InputError, match=naming("copies", 62)):
        fit_texts(encoder, ["a river"], 62, Insertion.IDS, "sts")
