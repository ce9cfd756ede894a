"""The web app: try a token on two texts, look through a run, see why two texts are similar."""

from stickytoken.errors import require_package

require_package("gradio", "the web app", "demo")
