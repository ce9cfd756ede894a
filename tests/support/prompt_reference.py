"""Prompts written out: hooks on bare transformers, one sentence at a time, no padding, nothing reused."""

import copy

import numpy as np
import torch

SENTENCES = ("the old river.", "a bird", "", "the quiet winter night walks under the glass", 'Is it "old"?')
CLEANED = ("the old river.", "a bird.", "", "the quiet winter night walks under the glass.", "Is it 'old'.")
AUXILIARY = 'The irrelevant information of this sentence : "{}" means in one word:"'
# Where each type of model mixes the outputs of its heads; elsewhere in self_attn.o_proj.
PLACES = {
    **dict.fromkeys(("opt", "lfm2"), "self_attn.out_proj"),
    **dict.fromkeys(("bloom", "falcon"), "self_attention.dense"),
    **dict.fromkeys(("gpt2", "openai-gpt"), "attn.c_proj"),
    "gpt_neox": "attention.dense",
    "gptj": "attn.out_proj",
}


def by_rule(own, other, settings, heads):
    own, other = own.double().numpy(), other.double().numpy()
    difference = own - other

    def scaled(part, like):
        return part * np.linalg.norm(like) / (np.linalg.norm(part) + 1e-7)

    if settings.rule == "scaled":
        return settings.strength * difference
    if settings.rule == "norm":
        return scaled(difference, own)
    if settings.rule == "scaled_norm":
        return settings.strength * scaled(difference, own)
    pieces = zip(np.split(difference, heads), np.split(own, heads), strict=True)
    return np.concatenate([scaled(part, like) for part, like in pieces])


def through_transformers(model, tokenizer, reading):
    """The vectors of `SENTENCES`. The model has a row for the placeholder."""
    own = copy.deepcopy(tokenizer)
    own.add_tokens(["<PST>"])
    placeholder, span, contrast = own.convert_tokens_to_ids("<PST>"), reading.prepending, reading.contrast
    base = model.get_decoder()
    layers = next(getattr(base, name) for name in ("layers", "h") if hasattr(base, name))

    def run(text):
        ids = own(text)["input_ids"]
        ids = ids[:-1] if ids[-1] == own.eos_token_id else ids
        wrapped = layers[span.start : span.exit] if placeholder in ids else []
        for layer in wrapped:
            layer.forward = copying(layer.forward, ids.index(placeholder))
        tensor = torch.tensor([ids])
        try:
            return model(
                input_ids=tensor,
                attention_mask=torch.ones_like(tensor),
                output_hidden_states=True,
                use_cache=False,
            ).hidden_states
        finally:
            for layer in wrapped:
                del layer.forward

    def vector(template, sentence):
        pieces = reading.prompt.pieces(template, prepending=span is not None)
        if contrast is None:
            return run(sentence.join(pieces))[reading.layer][0, -1].numpy()
        path = PLACES.get(model.config.model_type, "self_attn.o_proj")
        projection, seen = layers[contrast.layer].get_submodule(path), []

        def replace(_, args):
            values = args[0].clone()
            new = by_rule(values[0, -1], seen[0], contrast, model.config.num_attention_heads)
            values[0, -1] = torch.from_numpy(new).to(values)
            return (values, *args[1:])

        handle = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, -1].clone()))
        run(AUXILIARY.format(sentence))
        handle.remove()
        handle = projection.register_forward_pre_hook(replace)
        try:
            return run(sentence.join(pieces))[reading.layer][0, -1].numpy()
        finally:
            handle.remove()

    with torch.inference_mode():
        templates = reading.prompt.templates
        return np.stack([np.mean([vector(each, text) for each in templates], axis=0) for text in CLEANED])


def copying(forward, place):
    """The forward pass of a layer, the placeholder's state replaced by the last token's."""

    def run(*args, **kwargs):
        states = (args[0] if args else kwargs.pop("hidden_states")).clone()
        states[0, place] = states[0, -1].clone()
        return forward(states, *args[1:], **kwargs)

    return run
