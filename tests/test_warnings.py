"""Where a warning says that it comes from: the line that called stickytoken."""

import inspect
import warnings

import planted
import tiny
from naming import says
from stickytoken import detect
from stickytoken.errors import StickyTokenWarning


def test_warnings_name_the_line_that_called_stickytoken(tmp_path):
    """Python shows the same warning once for each line, so a line of stickytoken would hide later ones."""
    backbone = tiny.bert_backbone(tmp_path / "backbone")  # without modules.json
    texts = [*planted.small_corpus().texts, "river " * 30_000]
    texts += [f"{text} {'今' * 3}" for text in planted.small_corpus().texts]
    tokens = ["[unused0]", "river"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StickyTokenWarning)
        call = inspect.currentframe().f_lineno + 1
        detect(str(backbone), sentences=texts, tokens=tokens, settings=planted.SMALL, out=tmp_path / "run")
    messages = [str(warning.message) for warning in caught]
    for name in ("modules.json", "100,000", "characters", "'[unused0]'"):
        assert any(says(message, name) for message in messages), messages
    assert {(warning.filename, warning.lineno) for warning in caught} == {(__file__, call)}
