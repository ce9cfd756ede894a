"""The web app: try a token on two texts, look through a run, explain a token, compare runs."""

from stickytoken.errors import require_package

require_package("gradio", "the web app", "demo")
