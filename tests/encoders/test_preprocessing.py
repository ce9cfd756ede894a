"""One reading of text everywhere: that of the tokenizer as sentence-transformers sets it up."""

import json
from itertools import groupby

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CLIPTokenizer, PreTrainedTokenizerFast

import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.data import load_sentences
from stickytoken.data.readability import drop_indistinguishable
from stickytoken.encoders import load_tokenizer
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import ModelError
from stickytoken.repairs.result import _tokenize_function
from stickytoken.vocabulary import Category, categorize

TEXTS = ["The RIVER is cold", "a Café [MASK] here", "river", "NIGHT"]
TOKENIZERS = {
    "wordpiece": tiny.wordpiece_tokenizer,
    "cased byte-level": architectures.roberta_tokenizer,
    "unigram": architectures.xlm_roberta_tokenizer,
}


def settings_written(folder, **settings):
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


def saved_model(folder, tokenizer=None, rows=None):
    tokenizer = tokenizer or tiny.wordpiece_tokenizer()
    backbone = tiny.bert_backbone(folder / "backbone", tokenizer=tokenizer)
    if rows is not None:
        backbone = with_fewer_rows(backbone, rows)
    tiny.sentence_transformer(backbone).save(str(folder / "model"))
    return folder / "model"


def with_fewer_rows(backbone, rows):
    from transformers import AutoModel

    model = AutoModel.from_pretrained(backbone)
    model.resize_token_embeddings(rows)
    model.save_pretrained(backbone)
    return backbone


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"processor_kwargs": {"split_special_tokens": True}},
        {"tokenizer_args": {"model_max_length": 9}, "max_seq_length": 7},
    ],
    ids=str,
)
def test_a_tokenizer_alone_reads_as_that_of_the_model(kind, settings, tmp_path):
    folder = settings_written(saved_model(tmp_path, TOKENIZERS[kind]()), **settings)
    library = SentenceTransformer(str(folder), device="cpu")
    alone = load_tokenizer(folder)
    assert alone.fingerprint == HuggingFaceTokenizer(library.tokenizer).fingerprint
    assert categorize(alone).categories == categorize(load_encoder(folder, device="cpu").tokenizer).categories
    features = [library.preprocess([text])["input_ids"][0].tolist() for text in TEXTS]
    of_whole_texts = _tokenize_function(folder, route=None)(TEXTS)
    if "max_seq_length" in settings:  # the model reads the beginning and its closing token
        read = [ids[: len(inputs) - 1] for ids, inputs in zip(of_whole_texts, features, strict=True)]
        assert read == [inputs[:-1] for inputs in features]
        assert of_whole_texts != features
    else:
        assert of_whole_texts == features


def clip_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(letter + "</w>" for letter in alphabet), "ri", "ver</w>", "river</w>"]
    vocabulary = {
        piece: token_id for token_id, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])
    }
    merges = [("r", "i"), ("v", "er</w>"), ("ri", "ver</w>")]
    vocabulary["er</w>"] = len(vocabulary)
    return CLIPTokenizer(vocab=vocabulary, merges=[("e", "r</w>"), *merges], model_max_length=77)


def slow_counts(tokenizer):
    """Entries that the tokenizer's own decode and encode give back."""
    ids_found = set()
    for token_id in tokenizer.get_vocab().values():
        text = tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if text.strip() and tokenizer(text.strip(), add_special_tokens=False)["input_ids"] == [token_id]:
            ids_found.add(token_id)
    return ids_found


def test_entries_that_end_words_are_those_that_their_own_text_produces():
    tokenizer = clip_tokenizer()
    available = {token.id for token in categorize(HuggingFaceTokenizer(tokenizer)).available}
    assert available == slow_counts(tokenizer)
    assert tokenizer.convert_tokens_to_ids("river</w>") in available


class Shouting(PreTrainedTokenizerFast):
    """A class that changes in Python what its pipeline reads."""

    def encode(self, text, **options):
        return super().encode(text.replace("quiet", "river"), **options)


def test_a_class_that_reads_otherwise_than_its_pipeline_is_asked_itself():
    tokenizer = Shouting(tokenizer_object=tiny.wordpiece_tokenizer().backend_tokenizer, unk_token="[UNK]")
    adapted = HuggingFaceTokenizer(tokenizer)
    assert adapted.encode_many(["quiet"]) == adapted.encode_many(["river"])


def bpe(unknown=None, **options):
    vocabulary = {entry: token_id for token_id, entry in enumerate(["[UNK]", "a", "b", "."])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=unknown, **options))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return HuggingFaceTokenizer(tokenizer)


def wordpiece_of_accents():
    return HuggingFaceTokenizer(tiny.wordpiece_tokenizer())


@pytest.mark.parametrize(
    ("tokenizer", "texts", "share"),
    [
        (bpe(), ["река a.", "b город b."], 9 / 14),
        (bpe("[UNK]"), ["река a.", "b город b."], 9 / 14),
        (bpe("[UNK]", fuse_unk=True), ["река a.", "b город b."], 9 / 14),
        (bpe(), ["a b.", "b."], 0),
        (wordpiece_of_accents(), ["the rive\u0301r", "the ríver"], 0),
        (HuggingFaceTokenizer(architectures.roberta_tokenizer()), ["река 東京 🙂", "the river"], 0),
    ],
)
def test_characters_that_a_tokenizer_drops_are_unknown(tokenizer, texts, share):
    assert drop_indistinguishable(load_sentences([*texts]), tokenizer).unknown == pytest.approx(share)


def test_entries_without_a_row_are_unreachable_and_the_others_are_measured(tmp_path):
    tokenizer = tiny.wordpiece_tokenizer(words=["zzone", "zztwo"])
    rows = len(tokenizer) - 2
    folder = saved_model(tmp_path, tokenizer, rows)
    encoder = load_encoder(folder, device="cpu")
    for vocabulary_found in (categorize(encoder.tokenizer), categorize(load_tokenizer(folder))):
        assert vocabulary_found.categories[rows:] == (Category.UNREACHABLE_SINGLE_TOKEN,) * 2
        assert max(token.id for token in vocabulary_found.available) < rows
    assert encoder.encode(["the river"]).shape == (1, 32)


def test_a_prompt_that_a_chat_template_puts_apart_is_named(tmp_path):
    tokenizer = tiny.wordpiece_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} . {% endfor %}"
    backbone = tiny.bert_backbone(tmp_path / "backbone", tokenizer=tokenizer)
    model = tiny.sentence_transformer(backbone)
    if "message" not in model[0].modalities:
        pytest.skip("this release of sentence-transformers reads the model as plain text")
    with pytest.raises(ModelError, match=naming("'the song: '", "chat template")):
        load_encoder(model, prompt="the song: ")


class DroppingTransformer(Transformer):
    def preprocess(self, inputs, prompt=None, **options):
        return super().preprocess([text.replace("[MASK]", "") for text in inputs], prompt=prompt, **options)


class DroppingModel(SentenceTransformer):
    def preprocess(self, inputs, prompt=None, **options):
        return super().preprocess([text.replace("[MASK]", "") for text in inputs], prompt=prompt, **options)


class ShorteningModel(SentenceTransformer):
    """Reads each word of a row of equal ones once."""

    def preprocess(self, inputs, prompt=None, **options):
        texts = [" ".join(word for word, _ in groupby(text.split())) for text in inputs]
        return super().preprocess(texts, prompt=prompt, **options)


@pytest.mark.parametrize("prompt", ["", "the song: "])
@pytest.mark.parametrize("own_class", [DroppingTransformer, DroppingModel, ShorteningModel])
def test_a_model_that_rewrites_some_texts_is_refused(own_class, prompt, tmp_path):
    model = SentenceTransformer(str(saved_model(tmp_path)), device="cpu")
    own = model[0] if issubclass(own_class, Transformer) else model
    own.__class__ = own_class
    with pytest.raises(ModelError, match=naming("tokens of the text")):
        load_encoder(model, prompt=prompt)


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_a_model_with_a_method_of_its_own_is_refused_and_its_function_is_read(method, tmp_path):
    def drop_special(self, texts, **options):
        cleaned_texts = [text.replace("[MASK]", "") for text in texts]
        return getattr(SentenceTransformer, method)(self, cleaned_texts, **options)

    model = SentenceTransformer(str(saved_model(tmp_path)), device="cpu")
    model.__class__ = type("Own", (SentenceTransformer,), {method: drop_special})
    with pytest.raises(ModelError, match=naming("Own", method, "tokenizer")):
        load_encoder(model)
    encoder = load_encoder(getattr(model, method), tokenizer=model.tokenizer)
    with_copies, without = encoder.encode(["[MASK] [MASK] the river", "the river"])
    assert np.allclose(with_copies, without, rtol=0, atol=1e-6)
