"""Tests of the web app need Gradio; without it there is nothing to import."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("gradio") else ["test_*.py"]
