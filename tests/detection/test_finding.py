"""Find the run of a model."""

import pytest

from naming import naming
from stickytoken.detection.finding import find_run
from stickytoken.errors import InputError


def test_an_endpoint_without_a_run_over_its_vocabulary_may_have_one_over_candidates(tmp_path):
    with pytest.raises(InputError, match=naming("openai:mini", "folder of a run", "candidates")):
        find_run("openai:mini", tmp_path)
