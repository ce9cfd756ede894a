"""Edits of tokenizers that models in use have, on ten thousand sentences."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import edited_tokenizers as edited
from stickytoken.repairs.tokenizer_edit import ModelEdit, edited_tokenizer, splittable

COUNT = 10_000


@pytest.fixture(scope="module")
def texts(shared):
    lines = [
        line
        for name in ("stsb/test.jsonl", "stsb/dev.jsonl", "trec/train.jsonl", "cranfield/corpus.jsonl")
        for line in (shared / "data" / name).read_text("utf-8").splitlines()
    ]
    values = [value for line in lines for value in json.loads(line).values() if isinstance(value, str)]
    pieces = [piece for value in values for piece in value.split(". ") if len(piece) > 20]
    assert len(pieces) >= COUNT
    return pieces[:COUNT]


def require_the_rest_as_before(folder, edit, texts, target):
    """Edited entries are out of reach, and only texts that held them are tokenized otherwise."""
    ids = {*edit.unreachable, *edit.plain_specials}
    before = edited.auto(folder)(texts)
    written = edited.written(folder, target, edited_tokenizer(folder, edit))
    after = edited.auto(written)(texts)
    assert edited.raw(written)(texts) == after
    template = Counter(edited.auto(folder)([""])[0])
    for old, new in zip(before, after, strict=True):
        if ids & (Counter(old) - template).keys():
            assert not ids & (Counter(new) - template).keys()
        else:
            assert new == old
    return written


@pytest.mark.slow
def test_entries_of_roberta_with_and_without_a_leading_space(shared, texts, tmp_path):
    folder = shared / "tokenizers" / "roberta-base"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tuple(tokenizer.token_to_id(entry) for entry in ("There", "Ġhappy", "ĠThere"))
    more = ["There There", "Therefore. Therefore", "Thereforex", "happy unhappy happily happy"]
    written = require_the_rest_as_before(
        folder, ModelEdit(unreachable=ids), [*texts, *more], tmp_path / "roberta"
    )
    (found, rest) = edited.agreed(written, tmp_path / "again", ["There There <mask>", "Therefore Therefore"])
    assert not set(ids) & set(found)
    assert rest == tokenizer.encode("Therefore Therefore").ids


TOKENIZERS = Path(__file__).parents[3] / "shared" / "tokenizers"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(each.name for each in TOKENIZERS.glob("*")))
def test_entries_and_all_specials_of_every_tokenizer_there_is(name, texts, tmp_path):
    folder = TOKENIZERS / name
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = tokenizer.get_added_tokens_decoder()
    unknown = {token_id for token_id, each in added.items() if each.content in ("<unk>", "[UNK]")}
    used = Counter(token_id for ids in edited.raw(folder)(texts[:1000]) for token_id in ids)
    frequent = [token_id for token_id, _ in used.most_common() if token_id not in added]
    some = frequent[20:60:8] + frequent[-200::40]
    reasons = splittable(folder, some)
    edit = ModelEdit(
        unreachable=tuple(token_id for token_id in some if reasons[token_id] is None),
        plain_specials=tuple(sorted(added.keys() - unknown)),
    )
    assert len(edit.unreachable) >= 5
    written = [f"a {each.content} b{each.content}" for each in added.values()]
    target = require_the_rest_as_before(folder, edit, [*texts[:1000], *written], tmp_path / name)
    edited.agreed(target, tmp_path / "again", written)
