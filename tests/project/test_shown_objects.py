"""What Python and notebooks show of an encoder, a vocabulary, sentences and a run."""

import numpy as np
import polars as pl
import pytest

import word_bag
from stickytoken import analyze_vocabulary, load_encoder, load_sentences
from stickytoken.errors import InputError


def test_what_is_shown_of_an_object_is_short(encoder, small_run):
    vocabulary = analyze_vocabulary(encoder)
    own = load_encoder(word_bag.WordBag())
    assert repr(own) == f"<TextEncoder: {own.name} on cpu>"
    shown = [repr(each) for each in (encoder, small_run, vocabulary, load_sentences())]
    assert shown[0] == "<SentenceTransformerEncoder: " + f"{encoder.name} on cpu>"
    assert shown[1].startswith(f"<Run: {encoder.name}, std, ")
    assert "95 tokens sticky" in shown[1]
    assert shown[2] == "<Vocabulary: 125 entries, 95 available>"
    assert shown[3] == "<Sentences: 1,680 from the bundled corpus on 64 topics>"


def test_a_notebook_shows_hostile_tokens_as_text(small_run, monkeypatch):
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    tokens = small_run.tokens.with_columns(token=pl.lit(hostile), verdict=pl.lit("sticky"))
    monkeypatch.setattr(small_run, "tokens", tokens)
    page = small_run._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e" in page
    assert "<script" not in page
    assert page.isprintable()
    assert page.count("<tr>") == 21
    assert "75 more in" in page
    titles = ["id", "token", "category", *(column.title for column in small_run.method.listed), "verdict"]
    assert "".join(f"<th>{title}</th>" for title in titles) in page


def test_a_run_gives_the_row_of_a_token_by_id_or_text(small_run):
    row = small_run.tokens.row(7, named=True)
    assert small_run.token(np.int64(row["token_id"])).to_dicts() == [row]
    assert row in small_run.token(row["token"]).to_dicts()
    for wrong in (10**6, 1.5, None, True, ["river"]):
        with pytest.raises(InputError):
            small_run.token(wrong)
