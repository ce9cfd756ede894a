"""Integrated gradients by captum, to compare attributions with."""

import torch
from captum.attr import LayerIntegratedGradients

from stickytoken.inspection.module_embedding import backbone_of


def captum_attributions(encoder, ids, direction):
    """What the content tokens add to the product of a text's vector with a direction."""
    model, features = encoder.model, encoder.features([tuple(ids)])
    content = slice(1, 1 + len(ids))

    def score(input_ids):
        repeated = {
            key: value.expand(len(input_ids), -1) if torch.is_tensor(value) else value
            for key, value in features.items()
        }
        return model({**repeated, "input_ids": input_ids})["sentence_embedding"] @ torch.tensor(direction)

    baseline = features["input_ids"].clone()
    baseline[:, content] = model.tokenizer.pad_token_id
    gradients = LayerIntegratedGradients(score, backbone_of(model.eval()).get_input_embeddings())
    attributed = gradients.attribute(features["input_ids"], baselines=baseline, n_steps=100)
    return attributed.sum(dim=-1)[0, content].detach().numpy()
