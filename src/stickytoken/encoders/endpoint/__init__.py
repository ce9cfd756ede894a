"""Models behind an OpenAI-compatible endpoint, as encoders of texts.

`discovery` finds out what a server does, `answers` keeps everything it answered, `encoder` puts both
together, and `rehearsal` counts what a measurement would send, before anything is paid for.
"""
