"""The one face of all tokenizers, held against the calls of transformers itself."""

import json

import numpy as np
import pytest
import transformers
from hypothesis import HealthCheck, given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoTokenizer

import saved_models
import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders import load_tokenizer
from stickytoken.encoders.files.tokenizer_loading import GENERIC_TYPES
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import ModelError
from stickytoken.vocabulary import categorize

BUILDERS = {
    "bert": architectures.bert_tokenizer,
    "mpnet": architectures.mpnet_tokenizer,
    "roberta": architectures.roberta_tokenizer,
    "modernbert": architectures.modernbert_tokenizer,
    "qwen": lambda: architectures.qwen_tokenizer(closing=True),
    "xlm-roberta": architectures.xlm_roberta_tokenizer,
    "t5": architectures.t5_tokenizer,
    "mistral": architectures.mistral_tokenizer,
    "gemma": architectures.gemma_tokenizer,
    "byt5": architectures.byt5_tokenizer,
}
ORIGINALS = {name: build() for name, build in BUILDERS.items()}
ADAPTED = {name: HuggingFaceTokenizer(original) for name, original in ORIGINALS.items()}
# What has offsets, so that its words can be told apart.
FAST = [name for name in BUILDERS if name != "byt5"]
# Decoding gives back every character.
LOSSLESS = ["roberta", "modernbert", "qwen", "mistral", "gemma", "byt5"]
TEXTS = [*tiny.sentences(10), *architectures.HOSTILE_TEXTS, "river " * 200]
PROMPTS = ["", "the song: ", "query:", "  ", "mend", "🙂 "]
names = pytest.mark.parametrize("name", list(BUILDERS))


def plain(name: str, text: str) -> list[int]:
    return ORIGINALS[name].encode(text, add_special_tokens=False, truncation=False)


@names
def test_encoding_equals_that_of_transformers_without_special_tokens(name):
    assert ADAPTED[name].encode_many(TEXTS) == [plain(name, text) for text in TEXTS]


@names
def test_decoding_equals_that_of_transformers_without_clean_up(name):
    generator = np.random.default_rng(0)
    ids = [
        generator.integers(len(ORIGINALS[name]), size=size).tolist() for size in (0, 1, 1, 1, 2, 5, 30) * 10
    ]
    options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    assert ADAPTED[name].decode_many(ids) == [ORIGINALS[name].decode(row, **options) for row in ids]


@names
def test_entries_are_the_vocabulary_by_ascending_id_and_special_ids_all_but_the_cls_role(name):
    original = ORIGINALS[name]
    entries = ADAPTED[name].entries
    assert list(entries) == sorted(entries)
    assert entries == {
        token_id: token if isinstance(token, str) else token.decode("utf-8", "backslashreplace")
        for token, token_id in original.get_vocab().items()
    }
    expected = {*original.all_special_ids}
    if original.cls_token_id not in (original.bos_token_id, original.eos_token_id):
        expected.discard(original.cls_token_id)
    assert expected
    assert ADAPTED[name].special_ids == expected


@pytest.mark.parametrize("library", ["transformers", "tokenizers"])
def test_special_tokens_without_a_role_are_marked_and_added_words_are_not(bert_folder, library):
    """Published categories leave the former out, so `special_ids` follows transformers."""
    original = AutoTokenizer.from_pretrained(bert_folder)
    original.add_tokens([AddedToken("<start_of_turn>", special=True)])
    original.add_tokens(["stickium"])
    roleless, added = original.convert_tokens_to_ids(["<start_of_turn>", "stickium"])
    assert roleless not in original.all_special_ids
    tokenizer = HuggingFaceTokenizer(original if library == "transformers" else original.backend_tokenizer)
    assert tokenizer.marked_ids == {*original.all_special_ids, roleless}
    assert tokenizer.added_ids == {added}
    assert (roleless in tokenizer.special_ids) == (library == "tokenizers")


@names
@pytest.mark.parametrize("prompt", PROMPTS)
def test_head_and_words_together_are_the_ids_of_prompt_and_text(name, prompt):
    texts = ADAPTED[name].tokenize(TEXTS, prompt)
    assert [list(text.ids) for text in texts] == [plain(name, prompt + text) for text in TEXTS]
    assert all(word for text in texts for word in text.words)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(
    ("prompt", "text"), [("mar", "ket stone on the road"), ("Bi", "RD  mends it on roads")]
)
def test_a_token_over_the_border_of_prompt_and_text_belongs_to_the_first_word(name, prompt, text):
    expected_ids = plain(name, prompt + text)
    tokenized = ADAPTED[name].tokenize([text], prompt)[0]
    assert list(tokenized.ids) == expected_ids
    assert len(tokenized.words) == len(text.split()) == 5


@pytest.mark.parametrize("name", [name for name in FAST if name in LOSSLESS])
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    words=st.lists(
        st.sampled_from([*tiny.WORDS, "café", "река", "🙂", "don't", "42"]), min_size=1, max_size=9
    )
)
def test_each_word_decodes_to_the_word_that_it_stands_for(name, words):
    for prompt in ("", "the song: "):
        text = ADAPTED[name].tokenize([" ".join(words)], prompt)[0]
        assert [decoded.strip() for decoded in ADAPTED[name].decode_many(text.words)] == words
        assert ADAPTED[name].decode_many([text.head])[0].strip() == prompt.strip()


def test_fingerprints_tell_tokenizers_apart_and_survive_saving_and_use(tmp_path):
    fingerprints = {name: adapted.fingerprint for name, adapted in ADAPTED.items()}
    other = HuggingFaceTokenizer(architectures.qwen_tokenizer(closing=False)).fingerprint
    assert len({*fingerprints.values(), other}) == len(fingerprints) + 1
    for name, build in BUILDERS.items():
        fresh = build()
        # Neither padding nor truncation of the original reaches the copy.
        fresh(["the", "the river"], padding=True, truncation=True, max_length=3)
        adapted = HuggingFaceTokenizer(fresh)
        assert adapted.encode_many(TEXTS[:5]) == ADAPTED[name].encode_many(TEXTS[:5])
        assert adapted.fingerprint == fingerprints[name]
        fresh.save_pretrained(tmp_path / name)
        assert load_tokenizer(tmp_path / name).fingerprint == fingerprints[name]


@pytest.mark.parametrize("name", GENERIC_TYPES)
def test_a_generic_tokenizer_is_that_of_transformers_but_loads_without_its_models(
    name, tmp_path, monkeypatch
):
    original = ORIGINALS[name]
    roles = ("bos", "cls", "eos", "mask", "pad", "sep", "unk")
    special = {f"{role}_token": getattr(original, f"{role}_token") for role in roles}
    generic = transformers.TokenizersBackend(tokenizer_object=original.backend_tokenizer, **special)
    generic.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(auto) is transformers.TokenizersBackend
    expected = HuggingFaceTokenizer(auto)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", None)
    loaded = load_tokenizer(tmp_path)
    for attribute in ("fingerprint", "entries", "special_ids", "unknown_id"):
        assert getattr(loaded, attribute) == getattr(expected, attribute), attribute
    assert categorize(loaded) == categorize(expected)


def test_special_tokens_in_a_text_are_split_where_the_tokenizer_says_so():
    vocabulary = architectures.bert_tokenizer().get_vocab()
    original = transformers.BertTokenizer(vocab=vocabulary, split_special_tokens=True)
    adapted = HuggingFaceTokenizer(original)
    expected = original("the [SEP] river", add_special_tokens=False).input_ids
    assert vocabulary["[SEP]"] not in expected
    assert adapted.encode_many(["the [SEP] river"]) == [expected]
    assert adapted.fingerprint != ADAPTED["bert"].fingerprint


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(ModelError, match=naming("Tokenizer")):
        categorize(HuggingFaceTokenizer(Tokenizer(models.WordLevel({}, unk_token="?"))))


def test_a_python_tokenizer_without_an_unknown_entry_is_named(tmp_path):
    (tmp_path / "vocab.json").write_text('{"<pad>": 0, "a": 1}', encoding="utf-8")
    tokenizer = transformers.MgpstrTokenizer(
        str(tmp_path / "vocab.json"), unk_token="?", bos_token="?", eos_token="?", pad_token="<pad>"
    )
    adapted = HuggingFaceTokenizer(tokenizer)
    assert adapted.encode_many(["aa"]) == [[1, 1]]
    with pytest.raises(ModelError, match=naming("MgpstrTokenizer", "'ab'")):
        adapted.encode_many(["ab"])


def test_a_tokenizer_that_needs_more_than_a_text_is_replaced_by_its_backend():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river"]
    tokenizer = transformers.LayoutLMv2Tokenizer(vocab={word: number for number, word in enumerate(words)})
    assert HuggingFaceTokenizer(tokenizer).encode_many(["The river, the"]) == [[5, 6, 1, 5]]


def test_a_folder_with_only_tokenizer_json_serves_the_tokenizer(tmp_path):
    tokenizer = architectures.roberta_tokenizer()
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded.entries == HuggingFaceTokenizer(tokenizer).entries
    assert loaded.encode_many(["the river"]) == [tokenizer("the river", add_special_tokens=False).input_ids]


@pytest.mark.parametrize("content", ["not json", '["a"]', '[{"type": "x"}]', '[{"path": 3}]', "null"])
def test_the_tokenizer_of_a_static_model_is_found_by_its_list_of_modules(content, tmp_path):
    folder = saved_models.static_in_a_folder(tmp_path / "static")
    encoder = load_encoder(folder, device="cpu")
    assert load_tokenizer(folder).encode_many(TEXTS) == encoder.tokenizer.encode_many(TEXTS)
    (folder / "modules.json").write_text(content, "utf-8")
    with pytest.raises(ModelError, match=naming("modules.json")):
        load_tokenizer(folder)
