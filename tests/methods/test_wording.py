"""What the wording of verdicts claims, and what it leaves out."""

import polars as pl
import pytest

from naming import says
from stickytoken.methods import wording
from stickytoken.settings.profile import ProfileSettings


def test_an_unusual_vector_is_no_proof_that_somebody_altered_it():
    """Some natural rows are unusual, too: 125 in all-MiniLM-L6-v2."""
    row = {"token": "a", "severity": "mild", "erased": 0.25, "push": 1.0}
    (sentence,) = wording.consequences(row, {"erased": 0.4, "push": 1.5}, None)
    for said in (sentence, wording.GLOSSARY["vector"]):
        assert says(said, "few tokens", "may have been altered", "never trained")


@pytest.mark.parametrize(("documents", "found"), [(64, 0.75), (4, None), (None, None)])
def test_what_queries_find_is_shown_only_of_tokens_in_all_documents(documents, found):
    row = {"token": "a", "erased": 0.1, "erased_low": 0.0, "erased_high": 0.2, "push": 1.0}
    row |= {"push_low": 0.9, "push_high": 1.1, "found": 0.75, "documents": documents}
    row |= {"vector_deviation": None, "verdict": "benign", "severity": None, "confirmed": True}
    table = wording.result_table(ProfileSettings(), pl.DataFrame([row], infer_schema_length=None), 64)
    assert table["found"].to_list() == [found]
    # A push of fewer documents is one that was picked for being large.
    assert ("4 documents" in table["verdict"].item()) is (documents == 4)
