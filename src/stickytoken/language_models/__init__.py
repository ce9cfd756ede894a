"""Turn decoder language models into sentence encoders, by prompts and token prepending.

`load_encoder` makes an encoder of a language model when it gets a prompt. Except for the commands that score
and tune prompts, nothing else in the package needs to know that an encoder is a language model.
"""
