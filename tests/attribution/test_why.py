"""The similarity of two texts by pairs of tokens, against captum, plain passes and itself."""

import json
from dataclasses import replace

import numpy as np
import pytest

import planted
import tiny
import tiny_architectures as architectures
import tiny_decoders
from captum_oracle import captum_attributions
from hostile import HOSTILE, assert_harmless
from stickytoken import Why, load_encoder, why
from stickytoken.attribution.result import sentences
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import find_prompt
from stickytoken.errors import EncodingError, InputError, ModelError, RunError
from stickytoken.reports.page import similarity_page

FIRST, SECOND = "the river sings near the bridge", "an old doctor mends copper windows"


@pytest.fixture(scope="module")
def found(encoder) -> Why:
    return why(encoder, FIRST, SECOND)


@pytest.fixture(scope="module", params=["deletion", "jacobians"])
def by_method(encoder, request) -> Why:
    return why(encoder, FIRST, SECOND, method=request.param)


def cosine(encoder, first, second):
    one, other = encoder.encode_ids([first, second]).astype(float)
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def test_all_contributions_sum_to_the_cosine_of_the_model(encoder, by_method):
    found = by_method
    one, other = encoder.encode([FIRST, SECOND]).astype(float)
    assert found.similarity == pytest.approx(
        one @ other / np.linalg.norm(one) / np.linalg.norm(other), abs=1e-6
    )
    total = found.matrix.sum() + found.first_reference.sum() + found.second_reference.sum() + found.reference
    assert total == pytest.approx(found.similarity, abs=0.001)
    assert found.completeness_error == pytest.approx(total - found.similarity, abs=1e-5)
    assert found.matrix.dtype == np.float32
    assert found.matrix.shape == (len(found.first.parts), len(found.second.parts))


def test_the_order_of_the_texts_does_not_matter(encoder, by_method):
    found = by_method
    other = why(encoder, SECOND, FIRST, method=found.method)
    np.testing.assert_allclose(other.matrix, found.matrix.T, atol=1e-6)
    np.testing.assert_allclose(other.first_reference, found.second_reference, atol=1e-6)
    assert other.second == found.first
    assert other.similarity == pytest.approx(found.similarity, abs=1e-9)


def test_rows_sum_to_what_captum_attributes_to_the_tokens(encoder):
    found = why(encoder, FIRST, SECOND, method="jacobians")
    direction = encoder.encode([SECOND])[0]
    unit = direction / np.linalg.norm(direction)
    expected = captum_attributions(encoder, encoder.tokenize([FIRST])[0].ids, unit)
    np.testing.assert_allclose(found.matrix.sum(axis=1) + found.first_reference, expected, atol=5e-3)


def test_deletions_are_cosines_of_texts_without_the_part(encoder, found):
    first, second = (list(each.ids) for each in encoder.tokenize([FIRST, SECOND]))
    for place, part in enumerate(found.first.parts):
        changed = cosine(encoder, first[:place] + first[place + 1 :], second) - found.similarity
        assert part.deletion == pytest.approx(changed, abs=1e-6)
    assert why(encoder, "river", SECOND).first.parts[0].deletion is None


def test_words_are_sums_of_their_tokens(encoder):
    by_token = why(encoder, "doctors sing", SECOND, method="jacobians")
    by_word = why(encoder, "doctors sing", SECOND, method="jacobians", words=True)
    assert len(by_word.first.parts) == 2
    sizes = [len(part.token_ids) for part in by_word.first.parts]
    assert sum(sizes) == len(by_token.first.parts) > 2
    assert by_word.matrix.sum() == pytest.approx(by_token.matrix.sum(), abs=1e-3)
    width = [len(part.token_ids) for part in by_word.second.parts]
    expected = np.add.reduceat(by_token.matrix, np.cumsum([0, *sizes[:-1]]), axis=0)
    expected = np.add.reduceat(expected, np.cumsum([0, *width[:-1]]), axis=1)
    np.testing.assert_allclose(by_word.matrix, expected, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    [
        each
        for each in architectures.ARCHITECTURES
        if each.name in ("mpnet", "distilbert", "xlm-roberta", "t5", "qwen3")
    ],
    ids=lambda each: each.name,
)
def test_other_architectures_are_attributed_completely(architecture, tmp_path):
    model = architectures.stacked(
        architecture.save(tmp_path), pooling=architecture.poolings[-1], normalize=True
    )
    found = why(load_encoder(model), "the river sings", "a bird walks", method="jacobians")
    assert abs(found.completeness_error) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize("method", ["deletion", "jacobians"])
def test_a_prompted_language_model_is_attributed_without_its_prompt(method):
    model, tokenizer = tiny_decoders.decoder("qwen2")
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", Reading(find_prompt("prompteol"), None, -1))
    found = why(encoder, FIRST, SECOND, method=method)
    assert abs(found.completeness_error) < 0.005
    assert found.matrix.shape == tuple(len(each.ids) for each in encoder.tokenize([FIRST, SECOND]))


def test_strongest_pairs_are_the_largest_cells(found):
    pairs = found.strongest(5)
    assert [pair.value for pair in pairs] == sorted(found.matrix.ravel().tolist(), reverse=True)[:5]
    for pair in pairs:
        assert found.first.tokens[pair.first] == pair.first_text
        assert found.second.tokens[pair.second] == pair.second_text


@pytest.mark.slow
def test_a_text_beyond_the_context_is_cut_into_spans_and_said(encoder):
    found = why(encoder, "river " * 10_000, SECOND)
    assert found.first.left_out == 10_000 - 62
    assert len(found.first.parts) == 48
    said = " ".join(sentences(found))
    assert "its last 9,938 tokens are left out" in said
    assert "spans of several words" in said
    assert abs(found.completeness_error) < 0.005


def test_equal_texts_are_said_to_be_equal(encoder):
    found = why(encoder, FIRST, FIRST)
    assert found.similarity == pytest.approx(1)
    np.testing.assert_allclose(found.matrix, found.matrix.T, atol=1e-6)
    assert "The two texts are equal" in " ".join(sentences(found))


@pytest.mark.parametrize("text", ["", "  \n", None, 3])
def test_texts_without_words_are_refused(encoder, text):
    with pytest.raises(InputError, match=r"the second text is .*: pass a text with words"):
        why(encoder, FIRST, text)


def test_an_unknown_method_is_refused(encoder):
    with pytest.raises(InputError, match=r"method is 'magic': pass one of deletion, jacobians$"):
        why(encoder, FIRST, SECOND, method="magic")


def test_half_a_surrogate_pair_is_refused(encoder):
    with pytest.raises(EncodingError, match="half a surrogate pair"):
        why(encoder, FIRST, "river \ud800")


def test_an_encoder_of_texts_only_is_refused():
    class Texts:
        tokenizer = tiny.wordpiece_tokenizer()

        def encode(self, texts):
            return np.ones((len(texts), 4), np.float32)

    with pytest.raises(ModelError, match="why needs token ids"):
        why(Texts(), FIRST, SECOND)


def test_sticky_tokens_of_the_run_are_marked_and_deleted(planted_run, planted_folder):
    encoder = load_encoder(planted_folder)
    from stickytoken import open_run

    run = open_run(planted_run)
    sticky = run.sticky["decoded"][0]
    found = why(encoder, f"{FIRST} {sticky}", SECOND, run=planted_run)
    marked = [part.text for part in found.first.parts if part.sticky]
    assert sticky.strip() in marked
    assert found.without_sticky is not None
    assert found.u == run.plan.mean_similarity
    said = sentences(found)[-1]
    assert f"{sticky.strip()!r}" in said
    assert f"stickytoken repair {run.path}" in said
    plain = why(encoder, "a bird", "an old song", run=run)
    assert "no token" not in said
    assert plain.without_sticky is None or any(part.sticky for part in plain.first.parts)


def test_a_page_shows_both_texts_and_marks_sticky_parts_where_there_are_any(found):
    page = similarity_page(found)
    first = page.index("<blockquote>")
    assert FIRST in page[first : page.index("<main")]
    assert SECOND in page[first : page.index("<main")]
    assert ">sticky</th>" not in page
    parts = [replace(part, sticky=place == 0) for place, part in enumerate(found.first.parts)]
    marked = replace(found, first=replace(found.first, parts=tuple(parts)))
    assert "<td>yes</td>" in similarity_page(marked)


def test_a_part_that_is_joined_to_most_others_is_named(found):
    matrix = np.zeros_like(found.matrix)
    matrix[3] = 1
    said = sentences(replace(found, matrix=matrix, model="my model"))[-1]
    name = found.first.tokens[3]
    joined = len(found.second.parts)
    assert said.startswith(f"{joined} of the 10 strongest pairs join {name!r} to {joined} different parts")
    assert said.endswith(f"See: stickytoken probe 'my model' {name}")


def test_a_run_of_another_model_is_refused(planted_run):
    with pytest.raises(RunError, match="was made with another model"):
        why(architectures.static_model(), FIRST, SECOND, run=planted_run)


def test_the_command_prints_words_pairs_and_a_matrix(bert_folder, tmp_path):
    page = tmp_path / "page.html"
    result = planted.command("why", bert_folder, FIRST, SECOND, "--html", page, "--top", 3)
    assert result.exit_code == 0, result.stderr
    assert "The cosine of the two texts is" in result.stdout
    assert "Pairs that raise the cosine most" in result.stdout
    assert "first text in rows, second in columns" in result.stdout
    assert page.read_text("utf-8").startswith("<!doctype html>")
    shown = planted.command(
        "why", bert_folder, FIRST, SECOND, FORCE_COLOR="1", COLORTERM="truecolor", TERM="xterm", COLUMNS="60"
    )
    assert "48;2;255" in shown.stdout


def test_the_command_prints_json(bert_folder):
    result = planted.command(
        "why", bert_folder, FIRST, SECOND, "--words", "--attribute-by", "jacobians", "-f", "json"
    )
    document = json.loads(result.stdout)
    assert document["method"] == "jacobians"
    assert len(document["matrix"]) == len(document["first"]["parts"]) == len(FIRST.split())
    assert len(document["strongest"]) == 10


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (("", SECOND), "the first text is ''"),
        ((FIRST, " "), "the second text is ' '"),
        ((FIRST, SECOND, "--html", "absent/page.html"), "the folder absent does not exist"),
        ((FIRST, SECOND, "--run", "absent"), "no run folder"),
    ],
)
def test_bad_arguments_are_refused_in_a_line(bert_folder, arguments, saying):
    planted.refused("why", bert_folder, *arguments, saying=saying)


def test_a_model_behind_an_endpoint_is_refused_before_any_request():
    planted.refused("why", "openai:some-model", FIRST, SECOND, saying="needs the model itself")


@pytest.mark.slow
def test_hostile_texts_are_shown_and_never_interpreted(encoder, bert_folder):
    text = " ".join(each.replace("\x00", "") for each in HOSTILE)
    result = planted.command("why", bert_folder, text, "the river")
    assert result.exit_code == 0, result.stderr
    assert_harmless(result.stdout)
    page = similarity_page(why(encoder, text, "<img src=x onerror=alert(1)>", words=True))
    assert "<img" not in page
    assert "</script><b>" not in page
    assert_harmless(page)
