"""The asked precision reaches every module, also those that transformers does not load."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Router

import tiny
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.encoders.loading.load import set_precision
from stickytoken.errors import ModelError

TEXTS = tiny.sentences(20)
HALVES = ("float16", "bfloat16")
# The last digit of a number between 1 and 2.
ROUNDING = {"float16": 2**-10, "bfloat16": 2**-7}


def dense(width: int) -> Dense:
    torch.manual_seed(5)
    return Dense(width, 12)


def static(_folder: Path) -> SentenceTransformer:
    return architectures.static_model()


def static_with_dense(_folder: Path) -> SentenceTransformer:
    modules = [architectures.static_model()[0], dense(architectures.DIMENSION)]
    return SentenceTransformer(modules=modules, device="cpu")


def bert_with_dense(folder: Path) -> SentenceTransformer:
    return architectures.stacked(architectures.bert(folder), dense=12, normalize=True)


def rotary_with_dense(folder: Path) -> SentenceTransformer:
    return architectures.stacked(architectures.qwen3(folder), pooling="lasttoken", dense=12)


def t5_with_dense(folder: Path) -> SentenceTransformer:
    return architectures.stacked(architectures.t5(folder), dense=12)


def router_with_dense(folder: Path) -> SentenceTransformer:
    """The library gives a router's inner modules no precision; the dense layer alone would stay behind."""
    routes = [list(architectures.stacked(architectures.bert(folder), dense=12).children()) for _ in range(2)]
    router = Router.for_query_document(
        query_modules=routes[0], document_modules=routes[1], default_route="document"
    )
    return SentenceTransformer(modules=[router], device="cpu")


STACKS = (static, static_with_dense, bert_with_dense, rotary_with_dense, t5_with_dense, router_with_dense)


@pytest.fixture(scope="module", params=STACKS, ids=lambda stack: stack.__name__)
def folder(request, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("precision")
    return architectures.saved(request.param(root / "backbone"), root / "model")


def precisions(model: torch.nn.Module, *kept: str) -> set[torch.dtype]:
    """Precisions of the weights, but for those of the modules that are named."""
    return {
        weight.dtype for name, weight in model.named_parameters() if not any(part in name for part in kept)
    }


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_every_weight_has_the_asked_precision(folder, dtype):
    encoder = load_encoder(folder, device="cpu", dtype=dtype)
    # T5 overflows in float16 but for its output layers, which transformers keeps in float32.
    assert precisions(encoder._model, ".wo.") == {getattr(torch, dtype)}
    assert encoder.identity.dtype == dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_lower_precision_gives_nearly_the_vectors_of_full_precision(folder, dtype):
    found = load_encoder(folder, device="cpu", dtype=dtype).encode(TEXTS)
    wanted = load_encoder(folder, device="cpu").encode(TEXTS)
    assert found.dtype == np.float32
    error = np.abs(found - wanted).max()
    assert 0 < error < 12 * ROUNDING[dtype]
    # Every number is one that the precision has.
    assert np.array_equal(found, torch.from_numpy(found).to(getattr(torch, dtype)).float().numpy())


@pytest.mark.parametrize("dtype", HALVES)
def test_in_lower_precision_a_batch_equals_its_texts_one_by_one(folder, dtype):
    encoder = load_encoder(folder, device="cpu", dtype=dtype)
    single = np.vstack([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS), single, rtol=0, atol=2 * ROUNDING[dtype])
    narrow = load_encoder(folder, device="cpu", dtype=dtype, token_budget=1)
    np.testing.assert_allclose(narrow.encode(TEXTS), single, rtol=0, atol=2 * ROUNDING[dtype])
    ids = [text.ids for text in encoder.tokenize(TEXTS)]
    assert np.array_equal(encoder.encode_ids(ids), encoder.encode(TEXTS))


@pytest.mark.parametrize("dtype", HALVES)
def test_what_transformers_keeps_in_full_precision_is_left_as_it_is(dtype, tmp_path):
    rotary = architectures.saved(rotary_with_dense(tmp_path / "a"), tmp_path / "rotary")
    tables = [
        table.dtype
        for name, table in load_encoder(rotary, device="cpu", dtype=dtype)._model.named_buffers()
        if "inv_freq" in name
    ]
    assert tables
    assert set(tables) == {torch.float32}
    t5 = architectures.saved(t5_with_dense(tmp_path / "b"), tmp_path / "t5")
    model = load_encoder(t5, device="cpu", dtype=dtype)._model
    kept = {weight.dtype for name, weight in model.named_parameters() if ".wo." in name}
    assert kept == {torch.float32 if dtype == "float16" else torch.bfloat16}


@pytest.mark.parametrize("stack", [static, static_with_dense])
def test_a_file_of_lower_precision_is_read_in_the_full_one(stack, tmp_path):
    half = architectures.saved(stack(tmp_path).half(), tmp_path / "model")
    assert {tensor.dtype for tensor in load_file(half / "model.safetensors").values()} == {torch.float16}
    encoder = load_encoder(half, device="cpu")
    assert precisions(encoder._model) == {torch.float32}
    np.testing.assert_allclose(
        encoder.encode(TEXTS), load_encoder(stack(tmp_path)).encode(TEXTS), rtol=0, atol=ROUNDING["float16"]
    )


def test_the_precision_changes_the_identity_of_a_static_model(tmp_path):
    folder = architectures.saved(static(tmp_path), tmp_path / "model")
    identities = [load_encoder(folder, device="cpu", dtype=dtype).identity for dtype in ("float32", *HALVES)]
    assert len({identity.weights for identity in identities}) == 3
    assert [identity.dtype for identity in identities] == ["float32", *HALVES]


@pytest.fixture
def own_module(tmp_path, monkeypatch) -> Path:
    """A model with a module that computes in float32 whatever it is given."""
    model = bert_with_dense(tmp_path / "backbone")
    folder = architectures.saved(model, tmp_path / "model")
    (folder / "own_module.py").write_text(
        "import torch\n\n\n"
        "class Mixing(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.mixing = torch.eye(12)\n\n"
        "    def forward(self, features):\n"
        "        features['sentence_embedding'] = features['sentence_embedding'] @ self.mixing\n"
        "        return features\n\n"
        "    @classmethod\n"
        "    def load(cls, *args, **kwargs):\n"
        "        return cls()\n"
    )
    path = folder / "modules.json"
    modules = json.loads(path.read_text("utf-8"))
    modules.append({"idx": len(modules), "name": "own", "path": "", "type": "own_module.Mixing"})
    path.write_text(json.dumps(modules), "utf-8")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "code"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


@pytest.mark.parametrize("dtype", HALVES)
def test_a_module_that_does_not_compute_in_the_asked_precision_is_told_when_it_is_loaded(own_module, dtype):
    whole = load_encoder(own_module, device="cpu", trust_remote_code=True)
    assert whole.encode(TEXTS).shape == (20, 12)
    with pytest.raises(ModelError, match=f"does not support {dtype} on cpu .*: use float32") as caught:
        load_encoder(own_module, device="cpu", dtype=dtype, trust_remote_code=True)
    assert repr(str(own_module)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_backbone_that_ignores_the_asked_precision_is_told(tmp_path):
    model = bert_with_dense(tmp_path / "backbone")
    with pytest.raises(
        ModelError, match=r"'mine' cannot be loaded in bfloat16: its BertModel always loads in float32"
    ):
        set_precision(model, "bfloat16", "mine")
