"""What a run says about tokens and about its model, and where results go without a name."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from stickytoken.detection.run import is_run, model_difference, require_same_model
from stickytoken.detection.run_folder import flagged_ids
from stickytoken.errors import RunError
from stickytoken.measurement.store import default_folder, folder_name

IDENTITY = "0123456789abcdef" * 4


def test_sticky_and_topical_tokens_are_flagged_in_the_order_of_the_rows(small_run):
    tokens = pl.DataFrame(
        {"token_id": [9, 2, 5, 7, 1], "verdict": ["topical", "benign", "sticky", None, "sticky"]}
    )
    assert flagged_ids(tokens) == [9, 5, 1]
    assert set(flagged_ids(small_run.tokens)) == set(small_run.sticky["token_id"])


def other(encoder, **changes):
    """An encoder of which nothing but its identity is looked at."""
    return SimpleNamespace(name="other", identity=replace(encoder.identity, **changes))


def test_another_model_is_refused_by_what_differs(small_run, encoder):
    changed = other(encoder, prompt="query: ", max_length=None)
    assert model_difference(small_run.record, changed.identity) == ["max_length", "prompt"]
    with pytest.raises(RunError, match=r"another model than 'other' \(they differ in max_length, prompt\)"):
        require_same_model(small_run, changed)


@pytest.mark.parametrize("parts", [{}, {"encoder": None}, {"encoder": "all-MiniLM-L6-v2"}])
def test_a_run_that_does_not_say_which_model_it_looked_at_is_refused(small_run, encoder, parts):
    record = small_run.record.model_copy(update={"identity_parts": parts})
    assert model_difference(record, encoder.identity) is None
    with pytest.raises(RunError, match="does not record its model: run the detection again"):
        require_same_model(SimpleNamespace(record=record, path=small_run.path), encoder)


def test_a_folder_with_a_run_is_told_from_a_model(small_run, bert_folder, tmp_path):
    assert is_run(small_run.path)
    assert not is_run(bert_folder)
    assert not is_run(tmp_path / "missing")


@pytest.mark.parametrize(
    ("model", "stem"),
    [
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("organisation/model.v1", "model.v1"),
        ("./models/a model; rm -rf *", "a-model-rm-rf"),
        ("..", "model"),
        ("/", "model"),
    ],
)
def test_results_go_to_a_folder_that_names_model_kind_and_identity(model, stem):
    assert default_folder(model, "std", IDENTITY) == Path("runs", f"{stem}-std-0123456789ab")
    assert folder_name("impact", IDENTITY) == "impact-0123456789ab"
