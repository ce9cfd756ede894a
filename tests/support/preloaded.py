"""What a server of processes imports before it forks them, so that none of them imports it again."""

from pathlib import Path

import stickytoken

_LIBRARIES = (
    "torch",
    "transformers.models.bert.modeling_bert",
    "sentence_transformers",
    "scipy.stats",
    "sklearn.linear_model",
    "polars",
    "plotly.graph_objects",
    "typer.testing",
)
# Parts that need libraries which most commands do not.
_APART = {"adapters", "demo"}


def preloaded() -> list[str]:
    """The names of the libraries, and of the modules of stickytoken. To import them computes nothing."""
    folder = Path(stickytoken.__file__).parent
    paths = (path.relative_to(folder).with_suffix("") for path in sorted(folder.rglob("*.py")))
    own = [path.parts for path in paths if path.parts[0] not in _APART and not path.stem.startswith("__")]
    return [*_LIBRARIES, *(".".join(("stickytoken", *parts)) for parts in own)]
