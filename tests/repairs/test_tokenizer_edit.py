"""Entries that text no longer reaches, for all kinds of vocabularies, and those of models in use."""

import json
import random
import shutil
from collections import Counter

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import tiny
import tiny_architectures as architectures
from naming import naming, says
from shared_fixtures import SHARED
from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit import (
    ModelEdit,
    edit_tokenizer,
    read_pipeline,
    reasons_against_splitting,
)

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
    folders = {}

    def save(kind):
        if kind not in folders:
            folders[kind] = KINDS[kind](tmp_path_factory.mktemp("tokenizer"))
        return folders[kind]

    return save


def written(source, target, files):
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copyfile(file, target / file.name)
    for name, content in files.items():
        (target / name).write_bytes(content)
    return target


def raw(folder):
    """A function that reads texts as inference servers do: by tokenizer.json alone."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def auto(folder, kind=AutoTokenizer):
    tokenizer = kind.from_pretrained(folder)
    return lambda texts: tokenizer(list(texts))["input_ids"]


def agreed(folder, again, texts):
    """Read texts in every way, before and after the tokenizer is saved again; all must agree."""
    AutoTokenizer.from_pretrained(folder).save_pretrained(again)
    shutil.copyfile(folder / "config.json", again / "config.json")
    ids_found = raw(folder)(texts)
    for read in (auto(folder), auto(folder, PreTrainedTokenizerFast), raw(again), auto(again)):
        assert read(texts) == ids_found
    return ids_found


def added_ids(folder):
    return {added_token["id"] for added_token in read_pipeline(folder).loaded["added_tokens"]}


def contents(folder, ids):
    """The ids of the text itself, without those that stand around every text."""
    (template,) = auto(folder)([""])
    return [set(Counter(ids_of_text) - Counter(template)) for ids_of_text in ids]


def used_entries(folder, count):
    used = Counter(token_id for ids in auto(folder)(tiny.sentences(200)) for token_id in ids)
    ids = [token_id for token_id, _ in used.most_common() if token_id not in added_ids(folder)]
    return [
        token_id for token_id, reason in reasons_against_splitting(folder, ids[:60]).items() if reason is None
    ][:count]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_out_of_reach_and_other_texts_stay(kind, saved, tmp_path):
    folder = saved(kind)
    before = auto(folder)(TEXTS)
    ids = used_entries(folder, 3)
    assert len(ids) == 3
    for number, chosen in enumerate(((ids[0],), tuple(ids))):
        files = edit_tokenizer(folder, ModelEdit(unreachable=chosen))
        target = written(folder, tmp_path / str(number), files)
        after = agreed(target, tmp_path / f"{number} again", TEXTS)
        holding = [index for index, ids_of_text in enumerate(before) if set(chosen) & set(ids_of_text)]
        assert holding
        assert not any(set(chosen) & set(ids_of_text) for ids_of_text in after)
        changed = [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        assert changed == holding


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_become_plain_text_one_by_one(kind, saved, tmp_path):
    folder = saved(kind)
    before = auto(folder)(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    added = sorted(added_ids(folder) - {tokenizer.unk_token_id})  # unknown characters stay unknown
    for token_id in (added[0], added[-1]):
        files = edit_tokenizer(folder, ModelEdit(plain_specials=(token_id,)))
        target = written(folder, tmp_path / str(token_id), files)
        name = tokenizer.convert_ids_to_tokens(token_id)
        texts = [*TEXTS, name, f"a {name} b", f"{name}{name}", f"[unreachable {token_id}]"]
        after = raw(target)(texts)
        assert auto(target)(texts) == after
        assert not any(token_id in content for content in contents(target, after))
        for old, new, content in zip(before, after, contents(folder, before), strict=False):
            assert old == new or token_id in content


def test_all_special_tokens_with_the_padding_become_plain_text_and_stay_in_the_template(saved, tmp_path):
    folder = saved("wordpiece")
    ids = tuple(sorted(added_ids(folder)))
    target = written(folder, tmp_path / "plain", edit_tokenizer(folder, ModelEdit(plain_specials=ids)))
    assert agreed(target, tmp_path / "again", [""]) == auto(folder)([""])
    tokenizer = AutoTokenizer.from_pretrained(target)
    batch = tokenizer(["the river", "[PAD] [CLS] the river"], padding=True)
    assert batch["input_ids"][0][-1] == tokenizer.pad_token_id == ids[0]
    assert not {*ids} - {tokenizer.convert_tokens_to_ids("[UNK]")} & set(batch["input_ids"][1][1:-1])
    assert sum(batch["attention_mask"][0]) < sum(batch["attention_mask"][1])
    (content,) = contents(target, auto(target)([tokenizer.pad_token]))
    assert ids[0] not in content


# Texts that the tokenizers read without an added "covid" or "☃", unless one of these is a vocabulary entry.
OTHER_SPELLINGS = ["Covid in winter", "COVID", "ｃｏｖｉｄ", "the covidriver", "rivercovid", "a☃b", "a ☃☃ b"]


def with_added(folder, target, *names):
    """A copy of a folder whose tokenizer finds these words before all else, but only whole and as written."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(name, single_word=True, special=True) for name in names])
    tokenizer.save_pretrained(target)
    shutil.copyfile(folder / "config.json", target / "config.json")
    return target


def assert_plain_and_others_as_before(folder, target, names):
    """Repair the tokens of these names; no text without them may be read otherwise."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tuple(tokenizer.convert_tokens_to_ids(list(names)))
    edited = written(folder, target / "new", edit_tokenizer(folder, ModelEdit(plain_specials=ids)))
    others = [*TEXTS, *OTHER_SPELLINGS, "covid", "a covid b", "☃", "<q> a"]
    texts = [*(text for text in others if not set(ids) & set(tokenizer.encode(text))), *names]
    before, after = auto(folder)(texts), agreed(edited, target / "again", texts)
    assert before[: -len(names)] == after[: -len(names)]
    assert not any(set(ids) & set(ids_of_text) for ids_of_text in after)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_added_token_behind_one_that_becomes_plain_text_stays_outside_the_vocabulary(
    kind, saved, tmp_path
):
    folder = with_added(saved(kind), tmp_path / "added", "<doc>", "covid", "☃", "<d>")
    assert_plain_and_others_as_before(folder, tmp_path, ["<doc>"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", ["<q>", "covid", "☃"])
def test_an_added_token_before_one_that_becomes_plain_text_stays_if_no_other_text_produces_it(
    kind, before, saved, tmp_path
):
    folder = with_added(saved(kind), tmp_path / "added", before, "<doc>")
    # Merges never produce a word without merges, but a single character needs none. WordPiece looks up words
    # and signs, and Unigram anything.
    refused = {"wordpiece": ("covid", "☃"), "sentencepiece merges": ("☃",)}
    if kind.startswith("unigram") or before in refused.get(kind, ()):
        with pytest.raises(RepairError, match=naming("'<doc>'", f"'{before}'", "plain-specials")):
            assert_plain_and_others_as_before(folder, tmp_path / "one", ["<doc>"])
    else:
        assert_plain_and_others_as_before(folder, tmp_path / "one", ["<doc>"])
    assert_plain_and_others_as_before(folder, tmp_path / "both", [before, "<doc>"])


@pytest.mark.parametrize("before", ["<q>", "covid"])
def test_a_tokenizer_that_looks_up_whole_words_finds_no_added_token_that_it_divides(before, saved, tmp_path):
    folder = with_added(saved("byte-level of the bare class"), tmp_path / "added", before, "<doc>")
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text("utf-8"))
    document["model"]["ignore_merges"] = True
    path.write_text(json.dumps(document), "utf-8")
    if before == "covid":
        with pytest.raises(RepairError, match=naming("'<doc>'", "'covid'")):
            assert_plain_and_others_as_before(folder, tmp_path / "one", ["<doc>"])
    else:
        assert_plain_and_others_as_before(folder, tmp_path / "one", ["<doc>"])


def test_only_files_that_change_are_returned_older_ones_keep_step_or_are_converted(tmp_path):
    folder = architectures.bert(tmp_path / "bert")
    vocabulary = read_pipeline(folder).document["model"]["vocab"]
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n", "utf-8")
    river = vocabulary["river"]
    before = auto(folder)(TEXTS)
    files = edit_tokenizer(folder, ModelEdit(unreachable=(river,)))
    assert set(files) == {"tokenizer.json", "vocab.txt"}
    lines = files["vocab.txt"].decode().split("\n")
    assert len(lines) == len(entries) + 1
    assert [
        line_number for line_number, (a, b) in enumerate(zip(lines, entries, strict=False)) if a != b
    ] == [river]
    (folder / "tokenizer.json").unlink()
    files = edit_tokenizer(folder, ModelEdit(unreachable=(river,)))
    after = agreed(written(folder, tmp_path / "new", files), tmp_path / "again", TEXTS)
    assert all((river in old) == (old != new) for old, new in zip(before, after, strict=True))


def test_merges_beside_the_tokenizer_keep_step(tmp_path):
    folder = architectures.roberta(tmp_path / "roberta")
    model = read_pipeline(folder).document["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    lines = [" ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), "utf-8")
    (token_id,) = used_entries(folder, 1)
    files = edit_tokenizer(folder, ModelEdit(unreachable=(token_id,)))
    lines = [" ".join(pair) for pair in json.loads(files["tokenizer.json"])["model"]["merges"]]
    assert files["merges.txt"].decode().split("\n") == ["#version: 0.2", *lines, ""]


def test_reasons_are_given_for_what_cannot_be_unreachable(saved):
    folder = saved("wordpiece")
    vocabulary = read_pipeline(folder).document["model"]["vocab"]
    reasons = reasons_against_splitting(folder, [vocabulary["##q"], vocabulary["river"]])
    first, second = reasons.values()
    assert says(first, "unknown")
    assert second is None
    folder = saved("sentencepiece merges")
    ids = sorted(read_pipeline(folder).loaded["model"]["vocab"].values())
    reasons = [reason for reason in reasons_against_splitting(folder, ids[260:330]).values() if reason]
    assert any("other entries" in reason for reason in reasons)
    folder = saved("byte-level")
    ids = sorted(read_pipeline(folder).loaded["model"]["vocab"].values())
    # Half of them would leave other words without merges, which are looked up as a whole.
    assert 80 <= list(reasons_against_splitting(folder, ids).values()).count(None) <= 100


def test_an_entry_inside_an_entry_that_begins_words_stays(tmp_path):
    # Without "iver", the word "rivers" would be read as "r", "i", "ver", "s" instead of "river", "s".
    merges = [("e", "r"), ("v", "er"), ("i", "ver"), ("Ġ", "r"), ("Ġr", "iver")]
    pieces = [*pre_tokenizers.ByteLevel.alphabet(), *("".join(pair) for pair in merges)]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("a rivers").tokens == ["a", "Ġriver", "s"]
    reasons = reasons_against_splitting(tmp_path, [vocabulary["iver"], vocabulary["Ġriver"]])
    first, second = reasons.values()
    assert says(first, "'Ġriver'")
    assert second is None


def test_a_vocabulary_that_spaces_reach_has_no_safe_name(tmp_path):
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), (" ", -1.0), ("a a", -2.0)], unk_id=0))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert says(reasons_against_splitting(tmp_path, [3])[3], "spaces")
    # A later step brings back what an earlier one replaced.
    steps = [normalizers.Replace(" ", "_"), normalizers.Replace("_", " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert says(reasons_against_splitting(tmp_path, [3])[3], "spaces")


def test_a_tokenizer_in_python_is_refused(tmp_path):
    folder = architectures.byt5(tmp_path / "byt5")
    with pytest.raises(RepairError, match=naming("ByT5Tokenizer")):
        edit_tokenizer(folder, ModelEdit(unreachable=(5,)))


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
    assert (reasons_against_splitting(folder, [1])[1] is None) is cut(entry)


@pytest.fixture(scope="module")
def english(shared):
    lines = [
        line
        for name in ("stsb/test.jsonl", "stsb/dev.jsonl", "trec/train.jsonl", "cranfield/corpus.jsonl")
        for line in (shared / "data" / name).read_text("utf-8").splitlines()
    ]
    values = [value for line in lines for value in json.loads(line).values() if isinstance(value, str)]
    pieces = [piece for value in values for piece in value.split(". ") if len(piece) > 20]
    return random.Random(0).sample(pieces, 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(tokenizer_folder.name for tokenizer_folder in (SHARED / "tokenizers").glob("*"))
)
def test_entries_and_all_specials_of_every_tokenizer_there_is(name, shared, english, tmp_path):
    folder = shared / "tokenizers" / name
    added = Tokenizer.from_file(str(folder / "tokenizer.json")).get_added_tokens_decoder()
    unknown = {
        token_id for token_id, added_token in added.items() if added_token.content in ("<unk>", "[UNK]")
    }
    used = Counter(token_id for ids in raw(folder)(english) for token_id in ids)
    frequent = [token_id for token_id, _ in used.most_common() if token_id not in added]
    some = frequent[20:60:8] + frequent[-200::40]
    reasons = reasons_against_splitting(folder, some)
    edit = ModelEdit(
        unreachable=tuple(token_id for token_id in some if reasons[token_id] is None),
        plain_specials=tuple(sorted(added.keys() - unknown)),
    )
    assert len(edit.unreachable) >= 8
    named = [f"a {added_token.content} b{added_token.content}" for added_token in added.values()]
    texts = [*english, *named]
    ids = {*edit.unreachable, *edit.plain_specials}
    before = auto(folder)(texts)
    target = written(folder, tmp_path / name, edit_tokenizer(folder, edit))
    after = agreed(target, tmp_path / "again", texts)
    template = Counter(auto(folder)([""])[0])
    for old, new in zip(before, after, strict=True):  # only texts that held them are tokenized otherwise
        if ids & (Counter(old) - template).keys():
            assert not ids & (Counter(new) - template).keys()
        else:
            assert new == old
