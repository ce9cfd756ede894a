"""The identity of a run: everything that can change its numbers, and nothing else."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from stickytoken import data, detection
from stickytoken.data import PairCorpus, SentencePair, collect_sentences, corpus_fingerprint, text_kinds
from stickytoken.data.collection import bundled_collection
from stickytoken.detection import IDENTITY_VERSION, _make_record
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.insertion import Insertion, Token
from stickytoken.loading import load_encoder
from stickytoken.machine import Precision, digest
from stickytoken.measurement.resume import differences
from stickytoken.methods import SETTINGS_OF_METHOD
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.std import Scores, StdSettings
from stickytoken.settings.profile import Measuring, ProfileSettings
from stickytoken.vocabulary import categorize

ENCODER = EncoderIdentity(
    weights="aa", tokenizer="bb", modules="cc", prompt="", dtype="float32", max_length=64, dimension=32
)
TOKENS = [Token(5, "the"), Token(9, " a")]
PROFILE = ProfileSettings(insertion=Insertion.IDS)


def parts(model=ENCODER, method="std", chosen=None, texts=("a b", "c d"), tokens=None):
    """Return the identity parts in the record of a run; what its encoder computes doesn't matter."""
    encoder = load_encoder(lambda texts: np.ones((len(texts), 4), np.float32), candidates=["river"])
    corpus = collect_sentences(list(texts), "test")
    vocabulary = categorize(encoder.tokenizer)
    scope = Scope.WHOLE if tokens is None else Scope.NAMED
    tokens = tokens or vocabulary.available
    job = Job(encoder, chosen or StdSettings(), corpus, vocabulary, tokens, scope=scope)
    return _make_record(job, method, model).identity_parts


def other(value):
    if dataclasses.is_dataclass(value):
        return type(value)(*reversed(dataclasses.astuple(value)))
    if isinstance(value, Insertion):
        return Insertion.WORDS
    if isinstance(value, Scores):
        return Scores.ALL
    if isinstance(value, Measuring):
        return Measuring.ALL
    kinds = {bool: lambda: not value, int: lambda: value + 1, float: lambda: value * 0.75 + 0.01}
    kinds |= {str: lambda: f"{value}a", tuple: lambda: (*value, 3), type(None): lambda: Precision.BFLOAT16}
    return kinds[type(value)]()


def changes(whole):
    for field in dataclasses.fields(whole):
        yield field.name, replace(whole, **{field.name: other(getattr(whole, field.name))})


CHANGED = {
    **{
        f"settings.{name} of {method}": (f"settings.{name}", {"method": method, "chosen": changed})
        for method, default in (("std", StdSettings()), ("profile", PROFILE))
        for name, changed in changes(default)
    },
    **{f"encoder.{name}": (f"encoder.{name}", {"model": changed}) for name, changed in changes(ENCODER)},
    "corpus": ("corpus", {"texts": ("a b", "c e")}),
    "tokens": ("tokens", {"tokens": TOKENS}),
}


@pytest.mark.parametrize(("name", "change"), CHANGED.values(), ids=CHANGED)
def test_everything_that_can_change_numbers_changes_the_identity_and_is_named(name, change):
    changed = parts(**change)
    plain = parts(method="profile", chosen=PROFILE) if changed["method"] == "profile" else parts()
    assert digest(changed) != digest(plain)
    for changed_names in (differences(changed, plain), differences(plain, changed)):
        assert changed_names
        assert all(
            changed_name == name or changed_name.startswith(f"{name}.") for changed_name in changed_names
        )


def test_another_version_is_another_identity(monkeypatch):
    plain = parts()
    monkeypatch.setattr(detection, "IDENTITY_VERSION", IDENTITY_VERSION + 1)
    assert differences(plain, parts()) == ["version"]


@pytest.mark.parametrize("settings", [settings_class() for settings_class in SETTINGS_OF_METHOD.values()])
def test_an_identity_equals_itself_after_it_was_written_and_read(settings):
    """Else every setting that JSON spells otherwise would be named as a difference."""
    written = parts(chosen=settings)
    assert differences(written, json.loads(json.dumps(written))) == []


def test_other_packaged_documents_need_another_version_of_the_identity():
    """A run doesn't hash them, so a run of earlier ones could be opened or continued with these."""
    assert (IDENTITY_VERSION, bundled_collection().fingerprint[:16]) == (10, "6cf963a473f59b91")


def test_what_stands_beside_a_corpus_counts_for_a_method_that_uses_topics(monkeypatch):
    plain = collect_sentences(["a b", "c d"], "test")
    others = [
        collect_sentences(["a b", "c d"], "test", topics=["x", "y"]),
        replace(plain, bundled=True),
        collect_sentences(["a b", "c e"], "test"),
    ]
    fingerprints = {corpus_fingerprint(corpus) for corpus in (plain, *others)}
    assert len(fingerprints) == 4
    assert corpus_fingerprint(replace(plain, source="elsewhere")) in fingerprints
    kinds = text_kinds()
    monkeypatch.setattr(data, "text_kinds", lambda: replace(kinds, texts=kinds.texts[:-1]))
    assert corpus_fingerprint(plain) not in fingerprints


def test_values_that_are_easily_confused_have_hashes_of_their_own():
    confusable = [
        1, "1", True, "true", None, "null", "", [], {}, [[]], [1], ["1"], {"a": 1}, {"a": "1"}, {"a": [1]},
        [[1], [2]], [[1, 2]], [[], [1, 2]], ["ab", ""], ["a", "b"], "ab", ["a,b"], 0.1, 0.1 + 2**-56, "0.1",
        "\u00e9", "e\u0301", "\ud800", "\\ud800",
    ]  # fmt: skip
    assert len({digest(value) for value in confusable}) == len(confusable)


def test_the_fingerprint_of_pairs_knows_texts_similarity_and_order():
    pairs = [SentencePair("a", "b", 0.5), SentencePair("c", "d", 0.25)]
    fingerprint = PairCorpus(pairs, "").fingerprint
    assert PairCorpus(list(pairs), "elsewhere").fingerprint == fingerprint
    others = [
        pairs[::-1],
        pairs[:1],
        [SentencePair("b", "a", 0.5), pairs[1]],
        [SentencePair("a", "b", 0.5000001), pairs[1]],
        [SentencePair("a", "bc", 0.5), SentencePair("", "d", 0.25)],
    ]
    fingerprints = {PairCorpus(other, "").fingerprint for other in others}
    assert len(fingerprints) == len(others)
    assert fingerprint not in fingerprints
