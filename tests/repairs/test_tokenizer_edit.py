"""Entries that text no longer reaches, for all kinds of vocabularies."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

import edited_tokenizers as edited
import tiny
import tiny_architectures as architectures
from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit import ModelEdit, edited_tokenizer, read_pipeline, splittable

TEXTS = [*tiny.sentences(200), *architectures.HOSTILE_TEXTS]
KINDS = {
    "wordpiece": architectures.bert,
    "unigram": architectures.xlm_roberta,
    "unigram that matches its specials": architectures.t5,
    "byte-level": architectures.roberta,
    "byte-level of the bare class": architectures.modernbert,
    "sentencepiece merges": architectures.gemma2,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function that saves each kind once."""
    folders = {}

    def save(kind):
        if kind not in folders:
            folders[kind] = KINDS[kind](tmp_path_factory.mktemp("tokenizer"))
        return folders[kind]

    return save


def added_ids(folder):
    return {each["id"] for each in read_pipeline(folder).loaded["added_tokens"]}


def contents(folder, ids):
    """The ids of the text itself, without those that stand around every text."""
    (template,) = edited.auto(folder)([""])
    return [set(Counter(each) - Counter(template)) for each in ids]


def used_entries(folder, count):
    """Entries that the texts are made of and that can be made unreachable."""
    used = Counter(token_id for ids in edited.auto(folder)(tiny.sentences(200)) for token_id in ids)
    ids = [token_id for token_id, _ in used.most_common() if token_id not in added_ids(folder)]
    return [token_id for token_id, reason in splittable(folder, ids[:60]).items() if reason is None][:count]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_out_of_reach_and_other_texts_stay(kind, saved, tmp_path):
    folder = saved(kind)
    before = edited.auto(folder)(TEXTS)
    ids = used_entries(folder, 3)
    assert len(ids) == 3
    for number, chosen in enumerate(((ids[0],), tuple(ids))):
        files = edited_tokenizer(folder, ModelEdit(unreachable=chosen))
        target = edited.written(folder, tmp_path / str(number), files)
        after = edited.agreed(target, tmp_path / f"{number} again", TEXTS)
        holding = [place for place, each in enumerate(before) if set(chosen) & set(each)]
        assert holding
        assert not any(set(chosen) & set(each) for each in after)
        changed = [place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        assert changed == holding


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_become_plain_text_one_by_one(kind, saved, tmp_path):
    folder = saved(kind)
    before = edited.auto(folder)(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    added = sorted(added_ids(folder) - {tokenizer.unk_token_id})  # unknown characters stay unknown
    for token_id in (added[0], added[-1]):
        files = edited_tokenizer(folder, ModelEdit(plain_specials=(token_id,)))
        target = edited.written(folder, tmp_path / str(token_id), files)
        written = tokenizer.convert_ids_to_tokens(token_id)
        texts = [*TEXTS, written, f"a {written} b", f"{written}{written}", f"[unreachable {token_id}]"]
        after = edited.raw(target)(texts)
        assert edited.auto(target)(texts) == after
        assert not any(token_id in each for each in contents(target, after))
        for old, new, content in zip(before, after, contents(folder, before), strict=False):
            assert old == new or token_id in content


@pytest.mark.parametrize("kind", ["wordpiece", "unigram that matches its specials"])
def test_a_template_still_adds_what_is_plain_in_text(kind, saved, tmp_path):
    folder = saved(kind)
    (template,) = edited.auto(folder)([""])
    files = edited_tokenizer(folder, ModelEdit(plain_specials=tuple(set(template))))
    target = edited.written(folder, tmp_path / "plain", files)
    assert edited.agreed(target, tmp_path / "again", [""]) == [template]


def test_all_special_tokens_with_the_padding_become_plain_text(saved, tmp_path):
    folder = saved("wordpiece")
    ids = tuple(sorted(added_ids(folder)))
    files = edited_tokenizer(folder, ModelEdit(plain_specials=ids))
    target = edited.written(folder, tmp_path / "plain", files)
    tokenizer = AutoTokenizer.from_pretrained(target)
    batch = tokenizer(["the river", "[PAD] [CLS] the river"], padding=True)
    assert batch["input_ids"][0][-1] == tokenizer.pad_token_id == ids[0]
    assert not {*ids} - {tokenizer.convert_tokens_to_ids("[UNK]")} & set(batch["input_ids"][1][1:-1])
    assert sum(batch["attention_mask"][0]) < sum(batch["attention_mask"][1])
    (content,) = contents(target, edited.auto(target)([tokenizer.pad_token]))
    assert ids[0] not in content


def test_only_files_that_change_are_returned_and_older_ones_keep_step(tmp_path):
    folder = architectures.bert(tmp_path / "bert")
    vocabulary = read_pipeline(folder).document["model"]["vocab"]
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n", "utf-8")
    river = vocabulary["river"]
    files = edited_tokenizer(folder, ModelEdit(unreachable=(river,)))
    assert set(files) == {"tokenizer.json", "vocab.txt"}
    lines = files["vocab.txt"].decode().split("\n")
    assert len(lines) == len(entries) + 1
    assert [place for place, (a, b) in enumerate(zip(lines, entries, strict=False)) if a != b] == [river]


def test_merges_beside_the_tokenizer_keep_step(tmp_path):
    folder = architectures.roberta(tmp_path / "roberta")
    model = read_pipeline(folder).document["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    lines = [" ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), "utf-8")
    (token_id,) = used_entries(folder, 1)
    files = edited_tokenizer(folder, ModelEdit(unreachable=(token_id,)))
    merges = json.loads(files["tokenizer.json"])["model"]["merges"]
    assert files["merges.txt"].decode() == "\n".join(
        ["#version: 0.2", *(" ".join(each) for each in merges), ""]
    )


def test_a_tokenizer_without_its_file_is_converted(tmp_path):
    folder = architectures.bert(tmp_path / "bert")
    vocabulary = read_pipeline(folder).document["model"]["vocab"]
    river = vocabulary["river"]
    before = edited.auto(folder)(TEXTS)
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n", "utf-8")
    (folder / "tokenizer.json").unlink()
    target = edited.written(
        folder, tmp_path / "converted", edited_tokenizer(folder, ModelEdit(unreachable=(river,)))
    )
    after = edited.agreed(target, tmp_path / "again", TEXTS)
    assert all((river in old) == (old != new) for old, new in zip(before, after, strict=True))


def test_a_tokenizer_of_words_alone_is_edited(tmp_path):
    folder = architectures.saved(architectures.static_model(), tmp_path / "static")
    river = read_pipeline(folder).document["model"]["vocab"]["river"]
    ((name, content),) = edited_tokenizer(folder, ModelEdit(unreachable=(river,))).items()
    assert (folder / name).is_file()
    assert river not in Tokenizer.from_str(content.decode()).encode("the river").ids


# What is refused.


def test_reasons_are_given_for_what_cannot_be_unreachable(saved):
    folder = saved("wordpiece")
    vocabulary = read_pipeline(folder).document["model"]["vocab"]
    reasons = splittable(folder, [vocabulary["##q"], vocabulary["river"]])
    assert list(reasons.values()) == ["without it, its text would be unknown", None]


def test_an_entry_that_many_are_built_from_is_kept(saved):
    folder = saved("sentencepiece merges")
    ids = sorted(read_pipeline(folder).loaded["model"]["vocab"].values())
    reasons = [reason for reason in splittable(folder, ids[260:330]).values() if reason]
    assert any("other entries are built from it, such as" in reason for reason in reasons)


def test_a_vocabulary_that_spaces_reach_has_no_safe_name(tmp_path):
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), (" ", -1.0), ("a a", -2.0)], unk_id=0))
    reason = "spaces reach the vocabulary, so that a text could hold any name it is given"
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert splittable(tmp_path, [3]) == {3: reason}
    # A later step brings back what an earlier one replaced.
    steps = [normalizers.Replace(" ", "_"), normalizers.Replace("_", " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert splittable(tmp_path, [3]) == {3: reason}


def test_a_tokenizer_in_python_is_refused(tmp_path):
    folder = architectures.byt5(tmp_path / "byt5")
    with pytest.raises(RepairError, match="a ByT5Tokenizer, written in Python: only fast"):
        edited_tokenizer(folder, ModelEdit(unreachable=(5,)))


@given(
    st.text(alphabet="ab", min_size=1, max_size=6), st.sets(st.text(alphabet="ab", min_size=1, max_size=3))
)
def test_an_entry_of_a_unigram_is_splittable_if_some_cut_of_it_is(tmp_path_factory, entry, others):
    def cut(rest):
        return not rest or any(rest.startswith(other) and cut(rest[len(other) :]) for other in others)

    others = others - {entry}
    tokenizer = Tokenizer(models.Unigram([(name, -1.0) for name in ("<unk>", entry, *others)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("unigram")
    tokenizer.save(str(folder / "tokenizer.json"))
    reason = splittable(folder, [1])[1]
    assert (reason is None) is cut(entry)
