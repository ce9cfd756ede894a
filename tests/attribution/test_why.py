"""The similarity of two texts by pairs of tokens, against Shapley's formula and plain passes."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import planted
import tiny
import tiny_architectures as architectures
from hostile import HOSTILE, assert_harmless
from naming import naming, says
from stickytoken import attribution, load_encoder, open_run, why
from stickytoken.attribution import summary
from stickytoken.errors import EncodingError, InputError, RunError
from stickytoken.inspection import shapley
from stickytoken.reports.page import similarity_page
from stickytoken.unit_vectors import exact_unit_vectors

FIRST, SECOND = "the river sings near the bridge", "an old doctor mends copper windows"
LONG = "the quiet river opens near the bridge and an old doctor walks behind"


def unit_vector(encoder, ids):
    vector = encoder.encode_ids([ids])[0].astype(float)
    return vector / np.linalg.norm(vector)


def ids_of(encoder, text):
    return list(encoder.tokenize([text])[0].ids)


def test_all_contributions_sum_to_the_cosine_of_the_model_in_either_order(encoder):
    explanation = why(encoder, FIRST, SECOND)
    other = why(encoder, SECOND, FIRST)
    one, two = (unit_vector(encoder, ids_of(encoder, text)) for text in (FIRST, SECOND))
    assert explanation.similarity == pytest.approx(one @ two, abs=1e-6)
    assert explanation.matrix.sum(dtype=float) == pytest.approx(explanation.similarity, abs=1e-6)
    assert explanation.matrix.dtype == np.float32
    assert explanation.matrix.shape == (len(explanation.first.parts), len(explanation.second.parts))
    np.testing.assert_allclose(other.matrix, explanation.matrix.T, atol=1e-6)
    assert other.second == explanation.first
    assert other.similarity == pytest.approx(explanation.similarity, abs=1e-9)


def test_short_texts_have_exact_shapley_values(encoder):
    ids = ids_of(encoder, "the river sings.")
    values = np.zeros((4, encoder.dimension))
    orders = list(permutations(range(len(ids))))
    for order in orders:  # Shapley: the mean over all orders of what a part adds to those before it
        before = np.zeros(encoder.dimension)
        for size, token_index in enumerate(order, 1):
            after = unit_vector(encoder, [ids[index] for index in sorted(order[:size])])
            values[token_index] += (after - before) / len(orders)
            before = after
    explanation = why(encoder, "the river sings.", "the river sings.")
    assert explanation.strongest(3)[0].value == explanation.matrix.max()
    np.testing.assert_allclose(explanation.matrix, values @ values.T, atol=1e-6)
    assert explanation.similarity == pytest.approx(1)
    assert "The two texts are equal" in " ".join(summary(explanation))


@pytest.mark.parametrize(("declared", "notes"), [("dot", 1), ("cosine", 0)])
def test_another_declared_similarity_is_named_once(declared, notes):
    model = architectures.static_model(similarity_fn_name=declared)
    result = why(model, FIRST, SECOND)
    assert result.document()["declared_similarity"] == declared
    assert " ".join(summary(result)).count("compares vectors by dot") == notes


def test_pieces_of_characters_and_blanks_have_their_vocabulary_strings(tmp_path):
    encoder = load_encoder(architectures.stacked(architectures.roberta(tmp_path)))
    entries = encoder.tokenizer.entries
    tokens = why(encoder, "\N{SNOWMAN}  river", SECOND).first.parts
    decoded = [text.strip() for text in encoder.tokenizer.decode_many([token.token_ids for token in tokens])]
    assert {"", "\N{REPLACEMENT CHARACTER}"} <= set(decoded)
    for token, text in zip(tokens, decoded, strict=True):
        odd = not text or "\N{REPLACEMENT CHARACTER}" in text
        assert token.text == (entries[token.token_ids[0]] if odd else text)


def test_random_orders_estimate_the_values_of_longer_texts(encoder, monkeypatch):
    exact = why(encoder, SECOND, "the river sings")
    monkeypatch.setattr(shapley, "MAX_EXACT_PARTS", 0)
    monkeypatch.setattr(shapley, "ENCODED_TEXTS", 4096)
    explanation = why(encoder, SECOND, "the river sings")
    assert not np.array_equal(explanation.matrix, exact.matrix)
    np.testing.assert_allclose(explanation.matrix.sum(axis=1), exact.matrix.sum(axis=1), atol=0.03)


@pytest.mark.parametrize("text", ["river", LONG])
def test_values_of_deletion_sum_to_the_similarity_exactly_every_time(encoder, text):
    explanation = why(encoder, text, SECOND)
    assert explanation.matrix.sum(dtype=float) == pytest.approx(explanation.similarity, abs=1e-6)
    np.testing.assert_array_equal(why(encoder, text, SECOND).matrix, explanation.matrix)
    ids = ids_of(encoder, text)
    second = unit_vector(encoder, ids_of(encoder, SECOND))
    changed = unit_vector(encoder, ids[1:]) @ second - explanation.similarity if ids[1:] else None
    assert explanation.first.parts[0].deletion == (changed and pytest.approx(changed, abs=1e-6))


def test_a_text_can_be_divided_into_words(encoder):
    by_word = why(encoder, "doctors sing", SECOND, words=True)
    assert by_word.first.tokens == ("doctors", "sing")
    doctors, sing = by_word.first.parts
    assert len(doctors.token_ids) > 1
    # Shapley: half of what a word is alone, and half of what it adds to the other word.
    units = [unit_vector(encoder, ids) for ids in (doctors.token_ids, sing.token_ids, by_word.first.ids)]
    expected = [(units[0] + units[2] - units[1]) / 2, (units[1] + units[2] - units[0]) / 2]
    second = unit_vector(encoder, ids_of(encoder, SECOND))
    np.testing.assert_allclose(by_word.matrix.sum(axis=1), np.array(expected) @ second, atol=1e-6)


@pytest.fixture(scope="module")
def prompt_not_pooled(bert_folder):
    """A model that puts a prompt before every text, but averages the states of the text alone."""
    prompt = {"prompts": {"any": "the old river: "}, "default_prompt_name": "any"}
    return tiny.sentence_transformer(bert_folder, include_prompt=False, **prompt)


def encode_units(model, texts):
    return exact_unit_vectors(model.encode(texts).astype(float))


def test_a_prompt_that_is_not_pooled_is_no_part_and_stays_when_parts_are_deleted(prompt_not_pooled):
    explanation = why(prompt_not_pooled, "stone bird sings", SECOND)
    first, second, *shorter = encode_units(
        prompt_not_pooled, ["stone bird sings", SECOND, "bird sings", "stone sings", "stone bird"]
    )
    assert explanation.first.tokens == ("stone", "bird", "sings")
    assert explanation.similarity == pytest.approx(first @ second, abs=1e-6)
    deletions = [part.deletion for part in explanation.first.parts]
    np.testing.assert_allclose(deletions, np.array(shorter) @ second - first @ second, atol=1e-6)
    assert explanation.matrix.sum(dtype=float) == pytest.approx(explanation.similarity, abs=1e-6)
    read_ids = (*explanation.first.kept_prompt, *explanation.first.ids)
    assert list(read_ids) == ids_of(load_encoder(prompt_not_pooled), "stone bird sings")
    assert "prompt" in " ".join(summary(explanation))


def test_words_behind_a_prompt_that_is_not_pooled_have_exact_shapley_values(prompt_not_pooled):
    explanation = why(prompt_not_pooled, "bird sings", SECOND, words=True)
    bird, sings, both, second = encode_units(prompt_not_pooled, ["bird", "sings", "bird sings", SECOND])
    expected = [(bird + both - sings) / 2, (sings + both - bird) / 2]
    np.testing.assert_allclose(explanation.matrix.sum(axis=1), np.array(expected) @ second, atol=1e-6)


def test_sticky_tokens_are_not_deleted_from_a_prompt_that_is_not_pooled(prompt_not_pooled):
    encoder = load_encoder(prompt_not_pooled)
    explanation = why(encoder, "stone river sings", SECOND)
    river = explanation.first.parts[1].token_ids  # the prompt has it, too
    changed = attribution._measure_similarity_without_sticky(
        encoder, explanation.first, explanation.second, frozenset(river)
    )
    first, second = encode_units(prompt_not_pooled, ["stone sings", SECOND])
    assert changed == pytest.approx(first @ second, abs=1e-6)


def test_a_prompt_that_is_pooled_is_divided(bert_folder):
    encoder = load_encoder(SentenceTransformer(str(bert_folder), device="cpu"), prompt="the old ")
    explanation = why(encoder, "bird sings", SECOND)
    assert explanation.first.tokens == ("the", "old", "bird", "sings")
    assert not explanation.first.kept_prompt
    assert says(" ".join(summary(explanation)), "the old ")


def test_a_token_without_an_embedding_is_refused_as_it_is_when_encoding(bert_folder):
    model = SentenceTransformer(str(bert_folder), device="cpu")
    model.tokenizer.add_tokens(["zebra"])  # the matrix gets no row for it
    encoder = load_encoder(model)
    token_id = model.tokenizer.convert_tokens_to_ids("zebra")
    assert token_id == len(model[0].model.get_input_embeddings().weight)
    for call in (lambda text: encoder.encode([text]), lambda text: why(encoder, FIRST, text)):
        with pytest.raises(EncodingError, match=naming("zebra", token_id)):
            call("an old zebra walks")
    # Behind what the model reads, it is left out as any other token.
    longest = "river " * (encoder.max_length - 2)
    explanation = why(encoder, FIRST, f"{longest} zebra walks")
    assert explanation.second.ids == encoder.tokenize([longest])[0].ids
    assert explanation.second.left_out == 2


def test_spans_are_named_whether_they_have_spaces_or_not(encoder, monkeypatch):
    monkeypatch.setattr(attribution, "_MAX_PARTS", 8)
    long = why(encoder, "bcdfghjkmnpq", "a bird")  # a single word
    assert (long.first.joined, long.second.joined) == (True, False)
    (note,) = [line for line in summary(long) if "span" in line]
    assert says(note, "first")


def test_texts_are_encoded_as_by_encode_or_with_a_run_as_its_documents(tmp_path):
    prompts = {"query": "song market: ", "document": "garden copper: "}
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "backbone"), prompts=prompts)
    run = planted.detect_thirty(load_encoder(model), tmp_path / "run")
    for result, encode, prompt in (
        (why(model, FIRST, SECOND), model.encode, ""),
        (why(model, FIRST, SECOND, run=run), model.encode_document, prompts["document"]),
    ):
        expected = model.similarity(encode([FIRST]), encode([SECOND])).item()
        assert result.similarity == pytest.approx(expected, abs=1e-5)
        assert result.prompt == result.document()["prompt"] == prompt
        named = [line for line in summary(result) if says(line, "documents", prompts["document"])]
        assert len(named) == bool(prompt)


def test_a_part_that_is_joined_to_most_others_is_named(encoder):
    explanation = why(encoder, FIRST, SECOND)
    matrix = np.zeros_like(explanation.matrix)
    matrix[3] = 1
    last_sentence = summary(replace(explanation, matrix=matrix, model="my model"))[-1]
    name = explanation.first.tokens[3]
    joined = len(explanation.second.parts)
    assert last_sentence.startswith(
        f"{joined} of the 10 strongest pairs join {name!r} to {joined} different parts"
    )
    assert last_sentence.endswith(f"See: stickytoken probe 'my model' {name}")


def test_sticky_tokens_of_the_run_are_marked_and_deleted(planted_run, planted_folder):
    encoder = load_encoder(planted_folder)
    run = open_run(planted_run)
    sticky = run.sticky["decoded"][0].strip()
    explanation = why(encoder, f"{FIRST} {sticky}", SECOND, run=planted_run)
    assert sticky in [token.text for token in explanation.first.parts if token.sticky]
    other_ids = [
        token_id for token in explanation.first.parts if not token.sticky for token_id in token.token_ids
    ]
    other = unit_vector(encoder, ids_of(encoder, SECOND))
    assert explanation.without_sticky == pytest.approx(unit_vector(encoder, other_ids) @ other, abs=1e-6)
    last_sentence = summary(explanation)[-1]
    assert repr(sticky) in last_sentence
    assert f"stickytoken show {run.path}" in last_sentence
    with pytest.raises(RunError, match=naming(run.path)):
        why(architectures.static_model(), FIRST, SECOND, run=planted_run)


def test_words_in_one_span_with_a_sticky_token_are_not_deleted(planted_run, planted_folder):
    encoder = load_encoder(planted_folder)
    sticky = open_run(planted_run).sticky["token_id"].to_list()
    text = f"{LONG} {planted.PLANTED} " * 6
    explanation = why(encoder, text, SECOND, run=planted_run)
    assert len(explanation.first.parts) < len(explanation.first.ids)  # the parts are spans
    other_ids = [token_id for token_id in ids_of(encoder, text) if token_id not in sticky]
    sticky_count = len(explanation.first.ids) - len(other_ids)
    other = unit_vector(encoder, ids_of(encoder, SECOND))
    assert explanation.without_sticky == pytest.approx(unit_vector(encoder, other_ids) @ other, abs=1e-6)
    last_sentence = summary(explanation)[-1]
    assert f" {planted.PLANTED!r}" in last_sentence
    assert f"these {sticky_count} tokens, the cosine is {explanation.without_sticky:.3f}" in last_sentence


@pytest.mark.parametrize(
    ("second", "options", "kind", "saying"),
    [
        ("  \n", {}, InputError, naming("second", r"\n'")),
        (None, {}, InputError, naming("second", None)),
        (SECOND, {"progress": 3}, InputError, naming("progress", 3)),
        ("river \ud800", {}, EncodingError, naming(r"'river \ud800'")),
    ],
)
def test_bad_input_is_refused(encoder, second, options, kind, saying):
    with pytest.raises(kind, match=saying):
        why(encoder, FIRST, second, **options)


def test_the_command_prints_words_pairs_and_a_matrix(bert_folder, tmp_path):
    page = tmp_path / "page.html"
    colours = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm", "COLUMNS": "60"}
    result = planted.command("why", bert_folder, FIRST, SECOND, "--html", page, "--top", 3, **colours)
    assert result.exit_code == 0, result.stderr
    for phrase in ("The cosine of the two texts is", "Pairs that raise the cosine most", "48;2;255"):
        assert phrase in result.stdout
    assert max(line.count("48;2;") for line in result.stdout.splitlines()) == 5  # cells in 60 columns
    assert page.read_text("utf-8").startswith("<!doctype html>")
    document = planted.document(planted.command("why", bert_folder, FIRST, SECOND, "--words", "-f", "json"))
    assert len(document["matrix"]) == len(document["first"]["parts"]) == len(FIRST.split())
    assert len(document["strongest"]) == 10
    planted.assert_refused(
        "why", bert_folder, FIRST, SECOND, "--html", "absent/a.html", saying=naming("absent")
    )
    planted.assert_refused("why", "openai:some-model", FIRST, SECOND, saying=naming("openai:some-model"))


@pytest.mark.slow
def test_hostile_texts_are_shown_and_never_interpreted(encoder, bert_folder):
    text = " ".join(name.replace("\x00", "") for name in HOSTILE)
    result = planted.command("why", bert_folder, text, "the river")
    assert result.exit_code == 0, result.stderr
    assert_harmless(result.stdout)
    page = similarity_page(why(encoder, text, "<img src=x onerror=alert(1)>", words=True))
    assert "<img" not in page
    assert "</script><b>" not in page
    assert_harmless(page)


@pytest.mark.parametrize("again", [False, True])
def test_copies_of_a_sticky_token_are_one_part_to_a_reader(encoder, again):
    second = f"an old bridge{' mends' * again} windows"
    explanation = why(encoder, "the river sings" + " bridge" * 3, second, words=True)

    def marked(text, token):
        parts = []
        for part in text.parts:
            sticky_tokens = (token,) * len(part.token_ids) if part.text == token else ()
            parts.append(replace(part, sticky=bool(sticky_tokens), sticky_tokens=sticky_tokens))
        return replace(text, parts=tuple(parts))

    texts = {"first": marked(explanation.first, "bridge"), "second": marked(explanation.second, "mends")}
    explanation = replace(explanation, **texts, without_sticky=explanation.similarity - 0.25)
    grouped = explanation.grouped()
    assert grouped.first.tokens == ("the", "river", "sings", "bridge ×3")
    assert grouped.second.tokens == explanation.second.tokens
    np.testing.assert_allclose(grouped.matrix[3], explanation.matrix[3:].sum(axis=0), rtol=1e-6)
    assert grouped.matrix.sum() == pytest.approx(explanation.matrix.sum(), abs=1e-6)
    # What is gained without all of them is known only where nothing else is sticky.
    assert grouped.first.parts[3].deletion == (None if again else pytest.approx(-0.25))
    page = similarity_page(explanation)
    assert "bridge ×3" in page
    assert "<td>yes</td>" in page
