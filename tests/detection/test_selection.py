"""Which token a user means, and which tokens a run looks at."""

import decimal

import polars as pl
import pytest

from naming import naming
from stickytoken.detection.naming import choose_tokens, parse_token, token_ids
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.vocabulary import Category, Vocabulary

OK, PART, SPECIAL = Category.OK, Category.UNREACHABLE_MULTI_TOKEN, Category.OK_SPECIAL
ENTRIES = [
    (0, "<s>", "<s>", SPECIAL),
    (1, "tip", "tip", OK),
    (2, "▁tip", " tip", OK),
    (3, "▁river", " river", OK),
    (4, "##s", "s", PART),
    (5, "s", "s", OK),
    (6, "Ġa", " a", OK),
    (7, "▁a", " a", OK),
    (8, "x1", "twin", PART),
    (9, "x2", "twin", PART),
    (10, "▁▁", "  ", Category.MEANINGLESS),
    (11, "fern", "▁river", OK),
    (12, "x3", "", Category.MEANINGLESS),
    (13, "Stone", "Stone", OK),
    (20, "12", "12", OK),
    (21, '"', '"', OK),
    (22, "a,b", "a,b", OK),
]
AVAILABLE = [0, 1, 2, 3, 5, 6, 7, 11, 13, 20, 21, 22]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary(*(tuple(column) for column in zip(*ENTRIES, strict=True)))


@pytest.mark.parametrize(
    ("text", "token_id"),
    [
        ("tip", 1),  # the vocabulary string, though "▁tip" reads the same
        (" tip", 2),  # the decoded text
        ("river", 3),  # the decoded text without the space
        ("▁river", 3),  # the vocabulary string before the decoded text of another entry
        ("##s", 4),  # an entry that text cannot produce, by its vocabulary string
        ("<s>", 0),
        ("▁▁", 10),
    ],
)
def test_a_token_is_found_by_vocabulary_string_then_text_then_text_without_spaces(vocabulary, text, token_id):
    assert token_ids(vocabulary, text) == [token_id]


def test_of_several_entries_with_one_text_the_one_that_text_can_produce_is_meant():
    assert token_ids(Vocabulary((0, 1), ("##s", "@s"), ("s", "s"), (PART, OK)), "s") == [1]


@pytest.mark.parametrize(("text", "ids"), [(" a", (6, 7)), ("a", (6, 7)), ("twin", (8, 9))])
def test_an_ambiguous_text_is_refused_with_the_ids(vocabulary, text, ids):
    with pytest.raises(InputError, match=naming(*ids)):
        token_ids(vocabulary, text)


@pytest.mark.parametrize("text", ["", "unheard", "TIP", "stone", "tip ", " river ", "▁"])
def test_an_unknown_text_is_refused_and_the_way_to_the_list_is_told(vocabulary, text):
    with pytest.raises(InputError, match="stickytoken tokens"):
        token_ids(vocabulary, text)


def test_a_name_is_an_id_behind_a_number_sign_or_a_text(vocabulary):
    assert token_ids(vocabulary, [parse_token(name) for name in ("#13", " #7 ", "Stone")]) == [13, 7, 13]
    for name, values in (("stone", ["'stone'"]), ("13", ["'13'", "#13"])):
        with pytest.raises(InputError, match=naming(*values)):
            token_ids(vocabulary, parse_token(name))


def test_without_a_choice_all_available_tokens_are_taken_by_ascending_id(vocabulary):
    chosen = choose_tokens(vocabulary, None, None, 0)
    assert [token.id for token in chosen] == AVAILABLE
    assert chosen[2].text == " tip"


def test_a_sample_is_a_function_of_the_seed_and_every_token_comes_about_equally_often(vocabulary):
    """4 of 12 in 600 samples: 200 times each, standard deviation 11.5."""
    counts = dict.fromkeys(AVAILABLE, 0)
    for seed in range(600):
        ids = [token.id for token in choose_tokens(vocabulary, None, 4, seed)]
        assert ids == sorted(set(ids))
        assert ids == [token.id for token in choose_tokens(vocabulary, None, 4, seed)]
        for token_id in ids:
            counts[token_id] += 1
    assert sum(counts.values()) == 600 * 4
    assert all(150 < count < 250 for count in counts.values())
    assert choose_tokens(vocabulary, [1, 2], 2, 3) == choose_tokens(vocabulary, [1, 2], None, 0)


@pytest.mark.parametrize(
    ("ids", "sample", "message"),
    [
        ([4], None, naming("#4", "UNREACHABLE_MULTI_TOKEN")),
        ([14], None, naming("token id", 14)),
        ([], None, "tokens"),
        (None, 0, naming("sample", 0, 1, 12)),
        (None, 13, naming("sample", 13, 1, 12)),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(vocabulary, ids, sample, message):
    with pytest.raises(InputError, match=message):
        choose_tokens(vocabulary, ids, sample, 0)


def test_one_unreachable_token_does_not_cost_the_others(vocabulary):
    with pytest.warns(StickyTokenWarning, match=naming("#4", "UNREACHABLE_MULTI_TOKEN")):
        assert [token.id for token in choose_tokens(vocabulary, [2, 4, 1], None, 0)] == [1, 2]


def test_a_vocabulary_without_available_entries_is_refused():
    with pytest.raises(InputError, match="vocabulary"):
        choose_tokens(Vocabulary((0,), ("##s",), ("s",), (PART,)), None, None, 0)


@pytest.mark.parametrize(
    ("name", "content", "ids"),
    [
        ("a.txt", "river\ntip\n", [3, 1]),
        ("a.txt", "\n\nriver\n   \ntip", [3, 1]),
        ("a.txt", "\ufeffriver\n", [3]),
        ("a.txt", " tip\ntip\n", [2, 1]),
        ("a.csv", "token_id,token\n13,Stone\n2, tip\n", [13, 2]),
        ("a.csv", "token_id,token\n3,river\n20,12\n6,\n", [3, 20, 6]),
        ("a.csv", "rank,token\n1,river\n2,tip\n", [3, 1]),
        ("a.txt", "#7\n##s\n#3\n", [7, 4, 3]),
        ("a.csv", 'token\n"a,b"\n""""\n', [22, 21]),
        ("a.tsv", "token\tscore\n▁tip\t1\n", [2]),
        ("a.jsonl", '{"token_id": 3}\n{"token_id": 5}\n', [3, 5]),
        ("a.parquet", pl.DataFrame({"token_id": [7, 3], "token": ["▁a", "▁river"], "kind": None}), [7, 3]),
    ],
)
def test_tokens_are_read_from_text_and_tables(vocabulary, write, name, content, ids):
    assert token_ids(vocabulary, write(name, content)) == ids


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "empty"),
        ("a.txt", "tip\nunheard\n", naming("'unheard'")),
        ("a.txt", "a\n", naming(6, 7)),
        ("a.csv", "rank,score\n1,2\n", naming("'token_id'", "'token'", "rank", "score")),
        ("a.csv", "token_id\n3\ntip\n", naming("token_id", "row 2")),
        ("a.csv", "token_id,token\n,tip\n", naming("token_id", "row 1")),
        ("a.csv", "token_id\n3.5\n", naming("token_id", "row 1")),
        ("a.jsonl", '{"token_id": 3.5}\n', naming("token_id", "row 1")),
        ("a.jsonl", '{"token": "tip"}\n{"token": null}\n', "row 2"),
        ("a.csv", "token_id,token\n13,Stone\n1,river\n", naming("row 2", 1, "'river'", "'tip'")),
        ("a.jsonl", '{"token_id": 20, "token": 13}\n', naming("row 1", 20, 13, "'12'")),
    ],
)
def test_a_token_file_that_cannot_be_used_is_refused(vocabulary, write, name, content, message):
    with pytest.raises(InputError, match=message):
        token_ids(vocabulary, write(name, content))


def test_decimal_ids_that_are_not_whole_are_refused(vocabulary, tmp_path):
    path = tmp_path / "ids.parquet"
    decimals = [decimal.Decimal("3"), decimal.Decimal("1.5")]
    pl.DataFrame({"token_id": decimals}).write_parquet(path)
    with pytest.raises(InputError, match=naming("token_id", "row 2")):
        token_ids(vocabulary, path)


def test_a_token_is_found_by_vocabulary_string_and_by_text(finished_run):
    by_string = finished_run.token("river")
    assert by_string.height == 1
    assert by_string.equals(finished_run.token(" river "))
    with pytest.raises(InputError, match=naming("'unheard'")):
        finished_run.token("unheard")
