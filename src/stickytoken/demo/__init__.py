"""The web app: try a token on two texts, look through a run, explain a token, compare runs."""

import os

from stickytoken.errors import require_package

require_package("gradio", "the web app", "demo")

# Gradio reads these when it is imported; with them it reports to nobody.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
