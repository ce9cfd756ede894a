"""An encoder follows its model: a changed model is another model, for its identity and for its vectors."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tiny
import tiny_architectures as architectures
from stickytoken.corpora import Sentences
from stickytoken.detection import detect
from stickytoken.encoders import load_encoder, mean_similarity
from stickytoken.encoders.model_state import computing, exclusive
from stickytoken.errors import RunError
from stickytoken.inspection import inspector_of
from stickytoken.machine import Precision
from stickytoken.methods.std.settings import StdSettings

TEXTS = tiny.sentences(12)


def made(kind, tmp_path):
    """An encoder, some weights of its model, the user's tokenizer, and how to make the encoder again."""
    if kind == "static":
        model = architectures.static_model()
        weights = model[0].embedding
    elif kind == "bert":
        model = architectures.stacked(architectures.bert(tmp_path / "bert"))
        weights = model[0].model.encoder.layer[0].attention.self.query
    else:
        known = {own.name: own for own in architectures.ARCHITECTURES}
        model = architectures.stacked(known["qwen2"].save(tmp_path / "qwen"), pooling="lasttoken")
        weights = model[0].model.layers[0].mlp.gate_proj
    return load_encoder(model), weights, model.tokenizer, lambda: load_encoder(model)


@pytest.mark.parametrize("kind", ["bert", "last token"])
def test_a_change_behind_torchs_back_reaches_the_vectors_without_asking_for_the_identity(kind, tmp_path):
    encoder, module, _, again = made(kind, tmp_path)
    encoder.encode(TEXTS)
    module.weight.data.mul_(-1)
    np.testing.assert_allclose(encoder.encode(TEXTS), again().encode(TEXTS), rtol=0, atol=1e-6)


def test_a_pipeline_changed_in_place_is_read_with_the_next_identity(tmp_path):
    from tokenizers import normalizers

    encoder, _, tokenizer, again = made("bert", tmp_path)
    before = encoder.identity
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("river", "stone")
    assert encoder.identity == again().identity != before
    assert encoder.content_ids(["river"]) == again().content_ids(["river"]) == again().content_ids(["stone"])


def test_longest_input_prompt_and_width_are_followed(tmp_path):
    model = architectures.stacked(architectures.bert(tmp_path / "bert"), prompts={"query": "the song: "})
    encoder = load_encoder(model)
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


def test_another_encoder_of_the_same_model_notices_too(tmp_path):
    encoder, _, _, again = made("bert", tmp_path)
    fixed = load_encoder(encoder.model, prompt="the song: ")
    fixed.encode(TEXTS)
    with torch.no_grad():
        encoder.model[0].model.get_input_embeddings().weight.mul_(2)
    assert fixed.identity.prompt == "the song: "
    assert fixed.identity.weights == again().identity.weights


def test_the_mean_similarity_is_computed_again(tmp_path):
    encoder, module, _, _ = made("static", tmp_path)
    before = mean_similarity(encoder).value
    module.weight.data.abs_()
    assert mean_similarity(encoder).value > before + 0.05


def test_a_run_of_a_changed_model_is_another_run(tmp_path):
    encoder, module, _, _ = made("static", tmp_path)
    settings = StdSettings(sentences=40, scoring_pairs=4, validation_pairs=4, copies=2)
    options = {"sentences": Sentences(tuple(tiny.sentences(60)), "test"), "settings": settings, "sample": 12}
    first = detect(encoder, out=tmp_path / "run", **options)
    module.weight.data[7:30] *= -2
    with pytest.raises(RunError, match="differs in encoder"):
        detect(encoder, out=tmp_path / "run", **options)
    second = detect(encoder, out=tmp_path / "other", **options)
    assert second.record.identity != first.record.identity


# --- lower precisions


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.INT8])
@pytest.mark.parametrize("through_data", [False, True])
def test_a_lower_precision_follows_the_weights(precision, through_data, tmp_path):
    encoder, module, _, again = made("bert", tmp_path)
    try:
        lower = encoder.at(precision)
    except Exception as error:  # noqa: BLE001 - a processor without the instructions
        pytest.skip(str(error))
    before = lower.encode(TEXTS)
    with torch.no_grad():
        weight = module.weight.data if through_data else module.weight
        weight.mul_(1.5)
    assert encoder.identity.weights != ""  # what a run asks first
    after = encoder.at(precision).encode(TEXTS)
    np.testing.assert_array_equal(after, again().at(precision).encode(TEXTS))
    assert np.abs(after - before).max() > 1e-4


# --- one at a time


def test_a_lock_is_shared_by_all_that_use_the_same_weights(tmp_path):
    encoder, *_ = made("bert", tmp_path)
    waiting, entered = threading.Event(), threading.Event()

    def other():
        waiting.set()
        with exclusive(encoder.model[0].model):  # the backbone alone
            entered.set()

    with computing(encoder.model):
        thread = threading.Thread(target=other)
        thread.start()
        waiting.wait()
        assert not entered.wait(0.2)
    thread.join()
    assert entered.is_set()


USES = {
    "encode": lambda own: own.encoder.encode(TEXTS[:2]),
    "a lower precision": lambda own: own.lower.encode(TEXTS[:2]),
    "dimension": lambda own: load_encoder(own.encoder.model).dimension,
    "identity": lambda own: own.encoder.identity,
    "look": lambda own: own.inspector.look([(5, 6)], [(0, 1)], 2),
    "differentiate": lambda own: own.inspector.differentiating().__enter__(),
}


@pytest.mark.parametrize("use", list(USES))
def test_everything_that_uses_a_model_waits_for_the_other_thread(use, tmp_path):
    encoder, *_ = made("bert", tmp_path)
    own = SimpleNamespace(
        encoder=encoder, lower=encoder.at(Precision.BFLOAT16), inspector=inspector_of(encoder)
    )
    started, done = threading.Event(), threading.Event()

    def other():
        started.set()
        USES[use](own)
        done.set()

    with computing(encoder.model):
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        started.wait()
        assert not done.wait(0.3)
    thread.join(60)
    assert done.is_set()


def test_two_threads_with_encoder_lower_precision_and_inspector_get_the_vectors_of_one(tmp_path):
    encoder, *_ = made("bert", tmp_path)
    lower, inspector = encoder.at(Precision.BFLOAT16), inspector_of(encoder)
    ids = [(5, 6, 7), (9, 8)]
    jobs = [
        lambda: encoder.encode_ids(ids),
        lambda: lower.encode_ids(ids),
        lambda: np.stack([each.vector for each in inspector.look(ids, [(0, 0, 0), (0, 0)], 1)]),
    ]
    expected = [job() for job in jobs]
    encoder.model.train()
    wrong, failed = [], []

    def work(number):
        for _ in range(15):
            try:
                found = jobs[number]()
            except Exception as error:  # noqa: BLE001 - reported below
                failed.append(error)
                return
            if not np.array_equal(found, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number % 3,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, failed) == ([], [])
    assert all(module.training for module in encoder.model.modules())
    assert not any("forward" in vars(module) for module in encoder.model.modules())


def test_torchs_flag_of_onednn_is_left_as_it_was_by_overlapping_computations(tmp_path):
    first, second = (made("bert", tmp_path / name)[0] for name in ("one", "two"))
    before = torch.backends.mkldnn.enabled
    inside, leave = threading.Event(), threading.Event()

    def longer():
        with computing(second.model):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=longer)
    with computing(first.model):
        thread.start()
        inside.wait()
    assert torch.backends.mkldnn.enabled is False
    leave.set()
    thread.join()
    assert torch.backends.mkldnn.enabled == before
