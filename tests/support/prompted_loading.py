"""Load encoders with the options of a prompt spelled out, as the command line has them."""

from dataclasses import fields

from stickytoken.encoders import Prompting, load_encoder


def load_prompted(model, **options):
    """`load_encoder` with the fields of `Prompting` among the options."""
    own = {field.name: options.pop(field.name) for field in fields(Prompting) if field.name in options}
    return load_encoder(model, prompt=Prompting(**own), **options)
