"""An encoder follows its model: a changed model is another model. Several threads share it safely."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import normalizers

import tiny
import tiny_architectures as architectures
from stickytoken.data import Sentences
from stickytoken.detection import detect
from stickytoken.encoders import load_encoder, mean_similarity
from stickytoken.encoders.compute.model_state import computing
from stickytoken.errors import RunError
from stickytoken.inspection import inspector_of
from stickytoken.machine import Precision
from stickytoken.methods.std.plan import StdSettings

TEXTS = tiny.sentences(12)


@pytest.mark.parametrize("name", ["bert", "qwen2"])
def test_a_change_behind_torchs_back_reaches_the_vectors_without_asking_for_the_identity(name, backbone):
    model = architectures.stacked(backbone(name), pooling="lasttoken")
    encoder, inner = load_encoder(model), model[0].model
    layer = inner.encoder.layer[0].attention.self.query if name == "bert" else inner.layers[0].mlp.gate_proj
    before = encoder.encode(TEXTS)
    layer.weight.data.mul_(-1)
    after = encoder.encode(TEXTS)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, load_encoder(model).encode(TEXTS), rtol=0, atol=1e-6)


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


def test_a_changed_model_has_another_mean_similarity_and_another_run(tmp_path):
    model = architectures.static_model()
    encoder, weights = load_encoder(model), model[0].embedding.weight.data
    settings = StdSettings(sentences=40, scoring_pairs=4, validation_pairs=4, copies=2)
    options = {"sentences": Sentences(tuple(tiny.sentences(60)), "test"), "settings": settings, "sample": 12}
    first = detect(encoder, out=tmp_path / "run", **options)
    before = mean_similarity(encoder).value
    weights[7:30] *= -2
    assert abs(mean_similarity(encoder).value - before) > 1e-3
    with pytest.raises(RunError, match="differs in encoder"):
        detect(encoder, out=tmp_path / "run", **options)
    second = detect(encoder, out=tmp_path / "other", **options)
    assert second.record.identity != first.record.identity


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


def test_threads_with_encoder_lower_precision_and_inspector_get_the_vectors_of_one(model):
    encoder = load_encoder(model)
    lower, inspector = encoder.at(Precision.BFLOAT16), inspector_of(encoder)
    ids = [(5, 6, 7), (9, 8)]
    jobs = [
        lambda: encoder.encode_ids(ids),
        lambda: lower.encode_ids(ids),
        lambda: np.stack([each.vector for each in inspector.look(ids, [(0, 0, 0), (0, 0)], 1)]),
    ]
    expected = [job() for job in jobs]
    model.train()
    same = []

    def work(number):
        same.extend(np.array_equal(jobs[number](), expected[number]) for _ in range(15))

    threads = [threading.Thread(target=work, args=(number % 3,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 60
    assert all(module.training for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


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
