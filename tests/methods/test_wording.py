"""What the wording of verdicts claims, and what it leaves out."""

from naming import says
from stickytoken.methods import wording


def test_an_unusual_vector_is_no_proof_that_somebody_altered_it():
    """Some natural rows are unusual, too: 125 in all-MiniLM-L6-v2."""
    row = {"token": "a", "severity": "mild", "erased": 0.25, "push": 1.0}
    (sentence,) = wording.consequences(row, {"erased": 0.4, "push": 1.5}, None)
    for said in (sentence, wording.GLOSSARY["vector"]):
        assert says(said, "few tokens", "may have been altered", "never trained")
