"""Contrastive prompting written out: hooks on bare transformers, one sentence at a time, no padding."""

import copy

import numpy as np
import torch

SENTENCES = ("the old river.", "a bird", "", "the quiet winter night walks under the glass", 'Is it "old"?')
CLEANED = ("the old river.", "a bird.", "", "the quiet winter night walks under the glass.", "Is it 'old'.")
AUXILIARY = 'The irrelevant information of this sentence : "{}" means in one word:"'
PROMPTS = {
    "prompteol": ['This sentence : "{}" means in one word:"'],
    "ck": [
        'After thinking step by step , this sentence : "{}" means in one word:"',
        "The essence of a sentence is often captured by its main subjects and actions, while descriptive "
        "terms provide additional but less central details. With this in mind , this sentence : "
        '"{}" means in one word:"',
    ],
}
# Where each family mixes the outputs of its heads.
PLACES = {
    "opt": "self_attn.out_proj",
    "gpt2": "attn.c_proj",
    "bloom": "self_attention.dense",
    "gpt-neox": "attention.dense",
    "falcon": "self_attention.dense",
    "falcon, alibi": "self_attention.dense",
    "opt, post-norm": "self_attn.out_proj",
    "gpt-neox, serial": "attention.dense",
    "gpt-j": "attn.out_proj",
    "openai-gpt": "attn.c_proj",
    "lfm2": "self_attn.out_proj",
}


def by_rule(own, other, settings, heads):
    """The published formulas, with NumPy in double precision."""
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


def layers_of(model):
    base = model.get_decoder()
    return next(getattr(base, name) for name in ("layers", "h") if hasattr(base, name))


def through_transformers(name, model, tokenizer, reading, prompt):
    """Each sentence in each prompt alone, unpadded, with hooks of its own."""
    own = copy.deepcopy(tokenizer)
    own.add_tokens(["<PST>"])
    placeholder, span, contrast = own.convert_tokens_to_ids("<PST>"), reading.prepending, reading.contrast
    layers = layers_of(model)
    projection = layers[contrast.layer].get_submodule(PLACES.get(name, "self_attn.o_proj"))

    def ids_of(template, sentence):
        ids = own(template.format(sentence))["input_ids"]
        return torch.tensor([ids[:-1] if ids[-1] == own.eos_token_id else ids])

    def run(ids):
        return model(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True, use_cache=False
        )

    def vector(template, sentence):
        seen = []
        handle = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, -1].clone()))
        run(ids_of(AUXILIARY, sentence))
        handle.remove()

        def replace(_, args):
            values = args[0].clone()
            new = by_rule(values[0, -1], seen[0], contrast, model.config.num_attention_heads)
            values[0, -1] = torch.from_numpy(new).to(values)
            return (values, *args[1:])

        ids = ids_of(template if span is None else template.replace(': "{}', ': <PST> "{}'), sentence)
        handles = [projection.register_forward_pre_hook(replace)]
        wrapped = [] if span is None else layers[span.start : span.exit]
        for layer in wrapped:
            place = ids[0].tolist().index(placeholder)
            layer.forward = copying(layer.forward, place)
        try:
            return run(ids).hidden_states[reading.layer][0, -1].numpy()
        finally:
            handles[0].remove()
            for layer in wrapped:
                del layer.forward

    with torch.inference_mode():
        return np.stack(
            [np.mean([vector(template, text) for template in PROMPTS[prompt]], axis=0) for text in CLEANED]
        )


def copying(forward, place):
    def run(states, *args, **kwargs):
        states = states.clone()
        states[0, place] = states[0, -1].clone()
        return forward(states, *args, **kwargs)

    return run
