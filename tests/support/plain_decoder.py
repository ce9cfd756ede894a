"""Token prepending written out: a decoder's layers called one by one, one unpadded prompt, no hooks.

Masks, windows, positions, the copy and the choice of the state are done here; only what is inside a layer is
the model's own.
"""

import torch


def attention_mask(size: int, window: int | None) -> torch.Tensor:
    """What is added to attention: 0 for a token and those before it, inside the window if there is one."""
    place = torch.arange(size)
    distance = place[:, None] - place[None, :]
    seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]


def windows(config) -> list[int | None]:
    """The window of each layer."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def prompt_states(model, ids, *, start=0, stop=0, place=None):
    """States of all tokens of one prompt: the embedding, after each layer, the last one with the final norm.

    Args:
        model: the base decoder.
        ids: the prompt.
        start: first layer before which the placeholder's state becomes the last token's.
        stop: first later layer before which it does not.
        place: of the placeholder; None without.

    Returns:
        A list of (tokens, d), one more than layers.
    """
    kind, config = model.config.model_type, model.config
    positions = torch.arange(len(ids))[None]
    states = model.get_input_embeddings()(torch.tensor([ids]))
    if kind == "gpt2":
        states, layers = states + model.wpe(positions), model.h
    elif kind == "opt":
        model = getattr(model, "decoder", model)
        positioned = torch.nn.Embedding.forward(model.embed_positions, positions + 2)
        states, layers = model.project_in(states) + positioned, model.layers
    else:
        layers = model.layers
    found = []
    for number, (layer, window) in enumerate(zip(layers, windows(config), strict=True)):
        if place is not None and start <= number < stop:
            states = states.clone()
            states[0, place] = states[0, -1]
        found.append(states[0])
        mask = attention_mask(len(ids), window)
        if kind in ("gpt2", "opt"):
            states = layer(states, attention_mask=mask)
        else:
            chosen = (config.layer_types[number],) if kind == "gemma3_text" else ()
            rotation = model.rotary_emb(states, positions, *chosen)
            states = layer(states, attention_mask=mask, position_embeddings=rotation, position_ids=positions)
    if kind == "gpt2":
        states = model.ln_f(states)
    elif kind == "opt":
        states = model.project_out(model.final_layer_norm(states))
    else:
        states = model.norm(states)
    return [*found, states[0]]
