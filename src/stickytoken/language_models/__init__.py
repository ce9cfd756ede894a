"""Turn decoder language models into sentence encoders, by prompts and token prepending.

`load_encoder` makes an encoder of a language model when it gets a prompt. Nothing else in the package needs
to know that it is one, except the commands that score and tune prompts.
"""
