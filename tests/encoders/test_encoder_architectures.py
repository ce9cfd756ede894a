"""Every architecture, pooling and padding side, held against SentenceTransformer.encode itself."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import processors

import tiny
import tiny_architectures as architectures
from stickytoken.encoders import Encoder, Prompting, load_encoder
from stickytoken.errors import EncodingError, InputError

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 0, "atol": 1e-5}
TEXTS = [*tiny.sentences(20), "river", "the river " * 7]
PROMPTS = {"query": "the song: ", "passage": ""}
BY_NAME = {architecture.name: architecture for architecture in architectures.ARCHITECTURES}


@dataclass(frozen=True)
class Case:
    """A stack of modules on an architecture; without one it is the static model."""

    architecture: architectures.Architecture | None
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        name = "static" if self.architecture is None else self.architecture.name
        return "-".join([name, *(f"{value}" if key != "dense" else "dense" for key, value in self.options)])


@dataclass(frozen=True)
class Pair:
    """The library's model and the encoder loaded from the saved copy of it."""

    case: Case
    library: SentenceTransformer
    encoder: Encoder

    def ids(self, text: str) -> list[int]:
        """What the library makes of a text, special tokens included."""
        if self.case.architecture is None:
            return self.library.tokenizer.encode(text, add_special_tokens=False).ids
        return self.library.preprocess([text])["input_ids"][0].long().tolist()

    def readable(self, texts: list[str]) -> list[str]:
        """The texts of which the model sees at least one token."""
        return [text for text in texts if self.ids(text)]

    def expected(self, texts: list[str], **options) -> np.ndarray:
        """The library's vectors: padded batches, unless padding moves what it pads."""
        architecture = self.case.architecture
        moved = (
            architecture is not None
            and architecture.absolute_positions
            and ("padding_side", "left") in self.case.options
        )
        return self.library.encode(texts, batch_size=1 if moved else 8, **options)


# Every architecture once; poolings and padding sides take turns over them.
CASES = [
    *(
        Case(
            architecture,
            (
                ("pooling", architecture.poolings[place % len(architecture.poolings)]),
                ("padding_side", ("left", "right")[place // 2 % 2]),
            ),
        )
        for place, architecture in enumerate(architectures.ARCHITECTURES)
    ),
    Case(BY_NAME["bert"], (("pooling", "max"), ("padding_side", "right"))),
    Case(BY_NAME["roberta"], (("pooling", ("cls", "mean")), ("padding_side", "right"))),
    Case(BY_NAME["gemma2"], (("pooling", "weightedmean"), ("padding_side", "left"))),
    Case(BY_NAME["t5"], (("pooling", "mean"), ("dense", 12), ("normalize", True))),
    Case(None),
]
# One with special tokens on both sides, a causal one with a layer behind it, and one without layers.
FEW = [
    Case(BY_NAME["mpnet"], (("pooling", "mean"), ("padding_side", "right"), ("normalize", True))),
    Case(BY_NAME["qwen3"], (("pooling", "lasttoken"), ("padding_side", "left"), ("dense", 48))),
    Case(None),
]


@pytest.fixture(scope="session")
def backbone(tmp_path_factory):
    """Save the backbone of an architecture, once."""
    root = tmp_path_factory.mktemp("backbones")
    return cache(lambda architecture: architecture.save(root / architecture.name))


@pytest.fixture(scope="session")
def bert(backbone) -> Path:
    return backbone(BY_NAME["bert"])


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request, backbone, tmp_path_factory) -> Pair:
    """One stack, as the library's model and as the encoder."""
    return made(request.param, backbone, tmp_path_factory)


@pytest.fixture(scope="module", params=FEW, ids=str)
def one_of_few(request, backbone, tmp_path_factory) -> Pair:
    return made(request.param, backbone, tmp_path_factory)


def made(case, backbone, tmp_path_factory) -> Pair:
    if case.architecture is None:
        library = architectures.static_model()
    else:
        library = architectures.stacked(backbone(case.architecture), **dict(case.options))
    folder = architectures.saved(library, tmp_path_factory.mktemp("stack") / "model")
    return Pair(case, library, load_encoder(folder, device="cpu"))


def test_the_texts_are_told_apart_by_far_more_than_the_tolerance(pair):
    vectors = pair.encoder.encode(TEXTS)
    differences = np.abs(vectors[:, None] - vectors[None]).max(axis=2)
    assert differences[~np.eye(len(TEXTS), dtype=bool)].min() > 1e-3


def test_encode_equals_the_library_which_pads_its_batches(pair):
    vectors = pair.encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), pair.library.get_embedding_dimension())
    np.testing.assert_allclose(vectors, pair.expected(TEXTS), **CLOSE)


def test_hostile_texts_equal_the_library(pair):
    texts = pair.readable(architectures.HOSTILE_TEXTS)
    assert len(texts) >= 10
    expected = pair.library.encode(texts, batch_size=1)
    np.testing.assert_allclose(pair.encoder.encode(texts), expected, **CLOSE)


def test_a_text_without_any_token_is_refused_by_its_name(pair):
    unreadable = [text for text in architectures.HOSTILE_TEXTS if not pair.ids(text)]
    for text in unreadable:
        with pytest.raises(EncodingError, match="no tokens") as caught:
            pair.encoder.encode(["river", text])
        assert repr(text) in str(caught.value)
    readable_when_empty = pair.case.architecture is not None and not pair.case.architecture.empty
    assert (not unreadable) == readable_when_empty


def test_a_batch_equals_its_texts_one_by_one(one_of_few):
    single = np.vstack([one_of_few.encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(one_of_few.encoder.encode(TEXTS), single, **CLOSE)


def test_the_order_of_the_texts_changes_nothing(one_of_few):
    order = np.random.default_rng(0).permutation(len(TEXTS))
    shuffled = one_of_few.encoder.encode([TEXTS[place] for place in order])
    np.testing.assert_allclose(shuffled, one_of_few.encoder.encode(TEXTS)[order], **CLOSE)


def test_a_text_given_twice_gets_exactly_the_same_vector(one_of_few):
    vectors = one_of_few.encoder.encode([TEXTS[0], TEXTS[1], TEXTS[0]])
    assert np.array_equal(vectors[0], vectors[2])
    assert not np.array_equal(vectors[0], vectors[1])


def test_the_token_budget_changes_nothing(one_of_few):
    expected = one_of_few.encoder.encode(TEXTS)
    for budget in (1, 64, 1_000_000):
        encoder = load_encoder(one_of_few.library, token_budget=budget)
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, **CLOSE)


def test_content_ids_give_exactly_the_vectors_of_their_texts(one_of_few):
    texts = [*TEXTS, *one_of_few.readable(architectures.HOSTILE_TEXTS)]
    ids = [text.ids for text in one_of_few.encoder.tokenize(texts)]
    assert np.array_equal(one_of_few.encoder.encode_ids(ids), one_of_few.encoder.encode(texts))


def test_the_model_is_given_the_special_tokens_of_its_own_template(pair):
    seen: list[list[int]] = []

    def look(_module, arguments) -> None:
        seen.append(arguments[0]["input_ids"].flatten().tolist())

    encoder = load_encoder(pair.library)
    encoder.encode(TEXTS)  # and what is tried before the first texts
    texts = pair.readable([*TEXTS, *architectures.HOSTILE_TEXTS])
    handle = pair.library[0].register_forward_pre_hook(look)
    try:
        for text in texts:
            encoder.encode([text])
    finally:
        handle.remove()
    assert seen == [pair.ids(text) for text in texts]


def test_no_texts_give_an_empty_array_of_the_right_width(one_of_few):
    width = one_of_few.library.get_embedding_dimension()
    for vectors in (one_of_few.encoder.encode([]), one_of_few.encoder.encode_ids([])):
        assert vectors.shape == (0, width)
        assert vectors.dtype == np.float32


def test_the_identity_is_that_of_the_model_in_memory(one_of_few):
    assert load_encoder(one_of_few.library).identity == one_of_few.encoder.identity
    assert one_of_few.encoder.identity.dimension == one_of_few.library.get_embedding_dimension()


@pytest.mark.parametrize("name", [name for name, kind in BY_NAME.items() if kind.absolute_positions])
def test_left_padding_moves_absolute_positions_in_the_library_but_not_here(name, backbone):
    library = architectures.stacked(backbone(BY_NAME[name]), padding_side="left")
    vectors = load_encoder(library).encode(TEXTS)
    assert np.abs(library.encode(TEXTS, batch_size=8) - vectors).max() > 0.1
    np.testing.assert_allclose(library.encode(TEXTS, batch_size=1), vectors, **CLOSE)


@pytest.mark.parametrize("include_prompt", [True, False], ids=["pooled", "left-out"])
@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "qwen2-chat"])
def test_a_prompt_in_front_equals_the_library(name, include_prompt, backbone):
    library = architectures.stacked(backbone(BY_NAME[name]), include_prompt=include_prompt)
    plain = load_encoder(library).encode(TEXTS)
    # Of a single word that merges with the blank of the prompt, nothing may be left to pool.
    texts = [text for text in TEXTS if " " in text][::4]
    for prompt in ("the song: ", "query:", "🙂 ", "mend") if not include_prompt else ("the song: ", "mend"):
        vectors = load_encoder(library, prompt=prompt).encode(texts)
        np.testing.assert_allclose(vectors, library.encode(texts, prompt=prompt, batch_size=1), **CLOSE)
        assert np.abs(vectors - plain[[TEXTS.index(text) for text in texts]]).max() > 1e-2


# --- prompts, widths, precision


def test_the_default_prompt_of_a_model_is_put_in_front(bert, tmp_path):
    library = architectures.stacked(bert, prompts=PROMPTS, default_prompt_name="query")
    encoder = load_encoder(architectures.saved(library, tmp_path / "model"), device="cpu")
    assert encoder.identity.prompt == PROMPTS["query"]
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode(TEXTS), **CLOSE)
    assert np.abs(library.encode(TEXTS) - library.encode(TEXTS, prompt="")).max() > 0.1


def test_an_empty_prompt_takes_the_place_of_the_default_prompt(bert):
    library = architectures.stacked(bert, prompts=PROMPTS, default_prompt_name="query")
    expected = library.encode(TEXTS, prompt="")
    np.testing.assert_allclose(load_encoder(library, prompt="").encode(TEXTS), expected, **CLOSE)
    np.testing.assert_allclose(
        load_encoder(library, prompt=Prompting(prompt_name="passage")).encode(TEXTS), expected, **CLOSE
    )


def test_a_prompt_is_taken_by_its_name(bert, tmp_path):
    library = architectures.stacked(bert, prompts=PROMPTS)
    folder = architectures.saved(library, tmp_path / "model")
    encoder = load_encoder(folder, device="cpu", prompt=Prompting(prompt_name="query"))
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode(TEXTS, prompt_name="query"), **CLOSE)
    assert encoder.identity == load_encoder(library, prompt=PROMPTS["query"]).identity


def test_an_unknown_prompt_name_is_refused_and_the_known_ones_are_named(bert):
    library = architectures.stacked(bert, prompts=PROMPTS)
    with pytest.raises(InputError, match=r"'web'.*\bpassage, query"):
        load_encoder(library, prompt=Prompting(prompt_name="web"))


def test_the_ids_of_the_prompt_stand_in_the_head(bert):
    library = architectures.stacked(bert)
    text = load_encoder(library, prompt="the song: ").tokenize(["river stone"])[0]
    tokenizer = library.tokenizer
    assert list(text.head) == tokenizer("the song: ", add_special_tokens=False).input_ids
    assert [list(word) for word in text.words] == [
        tokenizer(word, add_special_tokens=False).input_ids for word in ("river", "stone")
    ]


def test_the_prompt_of_an_instructor_model_is_read_but_not_pooled(bert, tmp_path):
    pooled = architectures.stacked(bert)
    left_out = architectures.stacked(bert, include_prompt=False)
    folder = architectures.saved(left_out, tmp_path / "model")
    vectors = load_encoder(folder, device="cpu", prompt="the song: ").encode(TEXTS)
    np.testing.assert_allclose(vectors, left_out.encode(TEXTS, prompt="the song: "), **CLOSE)
    assert np.abs(vectors - pooled.encode(TEXTS, prompt="the song: ")).max() > 0.1
    assert np.abs(vectors - left_out.encode(TEXTS)).max() > 0.1


def test_vectors_are_cut_where_the_model_says(bert, tmp_path):
    library = architectures.stacked(bert, truncate_dim=7, normalize=True)
    encoder = load_encoder(architectures.saved(library, tmp_path / "model"), device="cpu")
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), encoder.identity.dimension) == (len(TEXTS), 7)
    np.testing.assert_allclose(vectors, library.encode(TEXTS), **CLOSE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_lower_precision_gives_the_vectors_of_the_library_as_float32(bert, tmp_path, dtype):
    folder = architectures.saved(architectures.stacked(bert, dense=12), tmp_path / "model")
    encoder = load_encoder(folder, device="cpu", dtype=dtype)
    kind = {"dtype": getattr(torch, dtype)}
    expected = SentenceTransformer(str(folder), device="cpu", model_kwargs=kind).encode(TEXTS, batch_size=1)
    assert encoder.identity.dtype == dtype
    assert encoder.encode(TEXTS).dtype == np.float32
    np.testing.assert_allclose(encoder.encode(TEXTS), expected.astype(np.float32), rtol=0, atol=0.05)
    assert np.abs(encoder.encode(TEXTS) - load_encoder(folder, device="cpu").encode(TEXTS)).max() > 1e-5


def test_token_types_are_those_of_the_tokenizer(bert):
    model = architectures.stacked(bert)
    model.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:1 [SEP]:1",
        special_tokens=[("[CLS]", model.tokenizer.cls_token_id), ("[SEP]", model.tokenizer.sep_token_id)],
    )
    np.testing.assert_allclose(load_encoder(model).encode(TEXTS), model.encode(TEXTS), **CLOSE)
