"""An encoder follows its model: a changed model is another model. Several threads share it safely."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import normalizers

import tiny
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.encoders.compute.model_state import computing
from stickytoken.inspection import inspector_of
from stickytoken.machine import Precision

TEXTS = tiny.sentences(12)


def test_a_pipeline_changed_in_place_is_read_with_the_next_identity(model):
    encoder = load_encoder(model)
    before = encoder.identity
    model.tokenizer.backend_tokenizer.normalizer = normalizers.Replace("river", "stone")
    again = load_encoder(model)
    assert encoder.identity == again.identity != before
    assert encoder.content_ids(["river"]) == again.content_ids(["river"]) == again.content_ids(["stone"])


def test_longest_input_prompt_and_width_are_followed(backbone):
    model = architectures.stacked(backbone("bert"), prompts={"query": "the song: "})
    encoder, fixed = load_encoder(model), load_encoder(model, prompt="mend: ")
    identities = [encoder.identity]
    changes = [
        lambda: setattr(model, "max_seq_length", 20),
        lambda: setattr(model, "default_prompt_name", "query"),
        lambda: model.prompts.update(query="a bird: "),
        lambda: setattr(model, "truncate_dim", 8),
    ]
    for change in changes:
        change()
        identities.append(encoder.identity)
        assert identities[-1] == load_encoder(model).identity
        np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-5)
    assert len(set(identities)) == 5
    assert (encoder.max_length, encoder.prompt, encoder.dimension) == (20, "a bird: ", 8)
    assert (fixed.identity.prompt, fixed.identity.dimension) == ("mend: ", 8)


# --- one at a time

USES = {
    "encode": lambda own: own.encoder.encode(TEXTS[:2]),
    "a lower precision": lambda own: own.lower.encode(TEXTS[:2]),
    "dimension": lambda own: load_encoder(own.encoder.model).dimension,
    "identity": lambda own: own.encoder.identity,
    "look": lambda own: own.inspector.look([(5, 6)], [(0, 1)], 2),
    "differentiate": lambda own: own.inspector.differentiating().__enter__(),
    "the backbone alone": lambda own: computing(own.encoder.model[0].model).__enter__(),
}


@pytest.mark.parametrize("use", list(USES))
def test_everything_that_uses_a_model_waits_for_the_other_thread(use, model):
    encoder = load_encoder(model)
    own = SimpleNamespace(
        encoder=encoder, lower=encoder.at(Precision.BFLOAT16), inspector=inspector_of(encoder)
    )
    started, done = threading.Event(), threading.Event()

    def other():
        started.set()
        USES[use](own)
        done.set()

    with computing(model):
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        started.wait()
        assert not done.wait(0.3)
    thread.join(60)
    assert done.is_set()


def test_torchs_flag_of_onednn_is_left_as_it_was_by_overlapping_computations(backbone):
    first, second = (architectures.stacked(backbone("bert")) for _ in range(2))
    before = torch.backends.mkldnn.enabled
    inside, leave = threading.Event(), threading.Event()

    def longer():
        with computing(second):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=longer)
    with computing(first):
        thread.start()
        inside.wait()
    assert torch.backends.mkldnn.enabled is False
    leave.set()
    thread.join()
    assert torch.backends.mkldnn.enabled == before
