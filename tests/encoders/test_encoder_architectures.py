"""Every architecture, pooling and padding side, held against SentenceTransformer.encode itself."""

import numpy as np
import pytest
from tokenizers import processors

import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders import Prompting
from stickytoken.errors import EncodingError, InputError

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 0, "atol": 1e-5}
TEXTS = [*tiny.sentences(20), "river", "the river " * 7]
PROMPTS = {"query": "the song: ", "passage": ""}
KINDS = {architecture.name: architecture for architecture in architectures.ARCHITECTURES}
# Every architecture once; poolings and padding sides take turns over them.
STACKS = [
    *(
        (
            kind.name,
            {
                "pooling": kind.poolings[number % len(kind.poolings)],
                "padding_side": ("left", "right")[number // 2 % 2],
            },
        )
        for number, kind in enumerate(architectures.ARCHITECTURES)
    ),
    ("bert", {"pooling": "max", "padding_side": "right"}),
    ("roberta", {"pooling": ("cls", "mean"), "padding_side": "right"}),
    ("gemma2", {"pooling": "weightedmean", "padding_side": "left"}),
    ("t5", {"pooling": "mean", "dense": 12, "normalize": True}),
    ("static", {}),
]


@pytest.mark.parametrize(("name", "options"), STACKS, ids=str)
def test_encode_equals_the_library(name, options, backbone, tmp_path):
    static = name == "static"
    library = architectures.static_model() if static else architectures.stacked(backbone(name), **options)
    encoder = load_encoder(architectures.saved(library, tmp_path / "model"), device="cpu")
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), library.get_embedding_dimension())
    # Padding on the left moves absolute positions in the library's batches, but not here.
    moved = options.get("padding_side") == "left" and KINDS[name].absolute_positions
    padded = library.encode(TEXTS, batch_size=8)
    assert np.allclose(padded, vectors, **CLOSE) is not moved
    np.testing.assert_allclose(vectors, library.encode(TEXTS, batch_size=1) if moved else padded, **CLOSE)
    differences = np.abs(vectors[:, None] - vectors[None]).max(axis=2)
    assert differences[~np.eye(len(TEXTS), dtype=bool)].min() > 1e-3

    hostile = [
        text for text in architectures.HOSTILE_TEXTS if library.preprocess([text])["input_ids"].numel()
    ]
    assert len(hostile) >= 10
    np.testing.assert_allclose(encoder.encode(hostile), library.encode(hostile, batch_size=1), **CLOSE)
    unreadable = set(architectures.HOSTILE_TEXTS).difference(hostile)
    assert bool(unreadable) is (static or KINDS[name].empty)
    for text in unreadable:
        with pytest.raises(EncodingError, match=naming(repr(text), "tokens")):
            encoder.encode(["river", text])


@pytest.mark.parametrize(
    ("name", "include_prompt"), [("bert", True), ("bert", False), ("qwen2", True), ("mistral", False)]
)
def test_a_prompt_in_front_equals_the_library(name, include_prompt, backbone):
    library = architectures.stacked(backbone(name), include_prompt=include_prompt)
    # Of a single word that merges with the blank of the prompt, nothing may be left to pool.
    texts = [text for text in TEXTS if " " in text][::4]
    plain = load_encoder(library).encode(texts)
    for prompt in (
        ("the song: ", "the mend") if include_prompt else ("the song: ", "query:", "🙂 ", "the mend")
    ):
        vectors = load_encoder(library, prompt=prompt).encode(texts)
        np.testing.assert_allclose(vectors, library.encode(texts, prompt=prompt, batch_size=1), **CLOSE)
        assert np.abs(vectors - plain).max() > 1e-2


@pytest.mark.parametrize(
    ("prompt", "expected_prompt"),
    [
        (None, PROMPTS["query"]),
        ("", ""),
        (Prompting(prompt_name="passage"), ""),
        (Prompting(prompt_name="query"), PROMPTS["query"]),
        ("mend: ", "mend: "),
        ("query", PROMPTS["query"]),
    ],
)
def test_the_prompt_is_the_models_default_unless_another_is_asked_for(
    prompt, expected_prompt, backbone, tmp_path
):
    library = architectures.stacked(backbone("bert"), prompts=PROMPTS, default_prompt_name="query")
    encoder = load_encoder(architectures.saved(library, tmp_path / "model"), device="cpu", prompt=prompt)
    assert encoder.identify().prompt == expected_prompt
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode(TEXTS, prompt=expected_prompt), **CLOSE)
    assert encoder.identify() == load_encoder(library, prompt=expected_prompt).identify()


@pytest.mark.parametrize("prompting", [Prompting(prompt_name="web"), Prompting("web")])
def test_an_unknown_prompt_name_names_the_known_ones(prompting, backbone):
    library = architectures.stacked(backbone("bert"), prompts=PROMPTS | {"passage": "passage: "})
    with pytest.raises(InputError, match=naming("'web'", "passage", "query")):
        load_encoder(library, prompt=prompting)


def test_an_unknown_one_of_many_prompts_names_the_closest(backbone):
    prompts = {f"task{number}": f"task {number}: " for number in range(20)} | {"retrieval": "find: "}
    library = architectures.stacked(backbone("bert"), prompts=prompts)
    with pytest.raises(InputError, match=naming("'retreival'", 21, "retrieval")):
        load_encoder(library, prompt="retreival")


def test_a_word_is_no_text_for_a_model_without_prompts(backbone):
    library = architectures.stacked(backbone("bert"))
    for word in ("foo", "query", "prompteol"):
        with pytest.raises(InputError, match=naming(repr(word), "prompts")):
            load_encoder(library, prompt=word)
    assert load_encoder(library, prompt="foo:").prompt == "foo:"


def test_a_saved_prompt_of_one_word_can_be_recorded_and_passed_again(backbone):
    library = architectures.stacked(backbone("bert"), prompts={"query": "search"})
    encoder = load_encoder(library, prompt="query")
    assert encoder.prompt == "search"
    assert load_encoder(library, prompt=encoder.prompt).identify() == encoder.identify()


def test_token_types_are_those_of_the_tokenizer(model):
    model.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:1 [SEP]:1",
        special_tokens=[("[CLS]", model.tokenizer.cls_token_id), ("[SEP]", model.tokenizer.sep_token_id)],
    )
    np.testing.assert_allclose(load_encoder(model).encode(TEXTS), model.encode(TEXTS), **CLOSE)
