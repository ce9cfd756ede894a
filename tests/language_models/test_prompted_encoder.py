"""A prompted model as an encoder and as a module of sentence-transformers: options, files, input."""

import json
import pickle

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules import Normalize

import planted
import profiled
import tiny
import tiny_decoders
from naming import naming, says
from prompted_loading import encoder_of, encoder_that_merges_quotes, load_prompted, read
from stickytoken import analyze_vocabulary, load_encoder, why
from stickytoken.data import collect_sentences
from stickytoken.detection.run_folder import LoadingRecord
from stickytoken.encoders import Prompting
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import content_limit
from stickytoken.errors import EncodingError, InputError, ModelError, StickyTokenWarning
from stickytoken.insertion import Insertion, Placement, Token, copies_as_ids
from stickytoken.language_models.encoder import CausalPromptEncoder
from stickytoken.language_models.module import CausalPrompt
from stickytoken.measurement.ray_engine import ShardWorker
from stickytoken.unit_vectors import exact_unit_vectors

LONG = "the river stone " * 20
SENTENCES = [*tiny.sentences(6), "", 'is it "the old" bird?', "the bird"]
READING = {"prompt": "prompteol", "token_prepending": True, "start": 1, "exit": 3, "layer": 3}


def stacked(prompt="prompteol", *, kind="qwen2", normalize=False, **options):
    module = CausalPrompt(*tiny_decoders.decoder(kind), **READING | {"prompt": prompt} | options)
    return SentenceTransformer(modules=[module, *([Normalize()] if normalize else [])], device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoders.saved_decoder(tmp_path_factory.mktemp("qwen2") / "tiny-qwen2")


@pytest.fixture(scope="module")
def encoder(folder):
    return load_prompted(folder, device="cpu", **READING)


def test_layers_are_found_behind_a_head_that_does_not_run():
    import transformers

    model, tokenizer = tiny_decoders.decoder("opt")
    language_model = transformers.OPTForCausalLM(model.config)
    language_model.model, language_model.lm_head = model, None
    vectors, alone = (
        CausalPromptEncoder(model_form, tokenizer, "tiny", read(span=(1, 3)))
        for model_form in (language_model, model)
    )
    assert np.array_equal(vectors.encode(SENTENCES), alone.encode(SENTENCES))


def test_copies_stand_inside_the_quotation():
    encoder = encoder_that_merges_quotes(span=(1, 3))
    tokenizer = encoder.user_tokenizer
    (carrier,) = encoder.tokenize(["the old river"])
    assert carrier.tail == (tokenizer.convert_tokens_to_ids('."'),)
    bird = tokenizer(" bird")["input_ids"][-1]
    probe = copies_as_ids(Token(bird, tokenizer.decode([bird])), carrier, Placement.SUFFIX, 3)
    filled_prompt = tokenizer.decode(encoder.prompted.prompts[0].fill(probe)).replace(" ", "")
    copies = tokenizer.decode([bird] * 3).replace(" ", "")
    assert filled_prompt.endswith(f'"theoldriver{copies}."meansinoneword:"')
    assert np.isfinite(encoder.encode_ids([probe])).all()


def test_the_quotation_around_a_truncated_text_is_closed():
    encoder = encoder_that_merges_quotes(max_length=60)
    (whole,) = encoder.tokenize([LONG])
    (cut,) = fit_texts(encoder, [LONG], 8, Insertion.IDS, "texts")
    limit = content_limit(encoder) - 8
    assert cut.cut
    assert cut.content.ids == (*whole.ids[: limit - 1], encoder.user_tokenizer.convert_tokens_to_ids('."'))
    filled_prompt = encoder.user_tokenizer.decode(encoder.prompted.prompts[0].fill(cut.content.ids))
    assert filled_prompt.endswith('." means in one word:"')


def test_why_reads_a_long_text_as_the_prompt_with_a_shorter_one():
    encoder = encoder_that_merges_quotes(max_length=60)
    words = LONG.split()
    while not encoder.fits(encoder.content_ids([" ".join(words)])[0]):
        words.pop()
    explanation = why(encoder, LONG, "the bird")
    assert [explanation.first.ids] == [tuple(ids) for ids in encoder.content_ids([" ".join(words)])]
    first, second = exact_unit_vectors(encoder.encode([" ".join(words), "the bird"]))
    assert explanation.similarity == pytest.approx(first @ second, abs=1e-6)
    assert explanation.first.left_out == len(encoder.content_ids([LONG])[0]) - len(explanation.first.ids)


def test_copies_that_leave_no_room_beside_the_quotation_are_refused():
    encoder = encoder_that_merges_quotes(max_length=60)
    room = content_limit(encoder) - 2  # for a word and the end of the quotation
    assert len(fit_texts(encoder, [LONG], room, Insertion.IDS, "texts")[0].content.ids) == 2
    with pytest.raises(InputError, match=naming("copies", room + 1)):
        fit_texts(encoder, [LONG], room + 1, Insertion.IDS, "texts")


def test_the_vocabulary_says_which_tokens_would_break_the_quotation(folder, encoder):
    plain = analyze_vocabulary(load_encoder(folder, device="cpu", prompt="Word: {sentence}:"))
    inside = analyze_vocabulary(encoder)
    categories = zip(inside.tokens, inside.categories, plain.categories, strict=True)
    assert [entry for entry in categories if entry[1] != entry[2]] == [
        ('"', "UNREACHABLE_SINGLE_TOKEN", "OK")
    ]
    assert "<PST>" not in inside.tokens


def test_what_can_change_the_vectors_is_in_the_identity(folder, encoder):
    def identity(**changes):
        return load_prompted(folder, device="cpu", **READING | changes).identify()

    assert identity() == identity(token_budget=1) == encoder.identify()
    assert identity(exit=4) == identity(exit=99)
    vectors = [
        identity(start=0),
        identity(exit=2),
        identity(layer=2),
        identity(prompt="cot"),
        identity(max_length=200),
        identity(token_prepending=False, start=None, exit=None),
    ]
    assert len({encoder.identify(), *vectors}) == 7


def test_it_can_be_pickled_and_has_no_layers_of_no_texts(encoder):
    copied = pickle.loads(pickle.dumps(encoder))
    assert np.array_equal(copied.encode(SENTENCES[:2]), encoder.encode(SENTENCES[:2]))
    assert encoder.encode_layers([], [1, -1]).shape == (0, 2, encoder.dimension)


def test_an_empty_sentence_is_encoded_and_one_with_the_placeholder_too(encoder):
    vectors = encoder.encode(["", "the <PST> bird", "the bird"])
    assert np.isfinite(vectors).all()
    assert np.abs(vectors[1] - vectors[2]).max() > 1e-3
    assert np.isfinite(encoder.encode(["a <PST> bird", "<PST>"])).all()


def test_what_the_model_cannot_read_is_named(folder, encoder):
    with pytest.raises(EncodingError, match=naming("'the river the river", "prompt", 512)):
        encoder.encode(["the river " * 400])
    assert not encoder.fits(encoder.content_ids(["the river " * 400])[0])
    for ids in ((5, 4000), (-1,)):
        with pytest.raises(EncodingError, match=naming(ids[-1])):
            encoder.encode_ids([ids])
        assert not encoder.fits(ids)
    with pytest.raises(EncodingError, match=naming(r"'a \ud800 b.'")):
        encoder.encode(["fine", "a \ud800 b"])
    with pytest.raises(EncodingError, match=naming("tokens", "echo")):
        load_encoder(folder, device="cpu", prompt="echo").encode_ids([()])


def test_a_text_must_fit_into_the_longest_prompt():
    longest = max(prompt.length(0) for prompt in encoder_of(read("metaeol")).prompted.prompts)
    encoder = encoder_of(read("metaeol"), max_length=longest + 5)
    token = encoder.content_ids(["river"])[0][0]
    assert encoder.encode_ids([[token] * 5]).shape == (1, tiny_decoders.DIMENSION)
    with pytest.raises(EncodingError, match=naming("prompt", longest + 6, longest + 5)):
        encoder.encode_ids([[token] * 6])
    with pytest.raises(EncodingError, match=naming("'the river the river", 512)):
        encoder.sentence_transformer().encode(["the river " * 400])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"start": 3, "exit": 3}, naming("start", "exit", 3)),
        ({"start": 4, "exit": 9}, naming(4, "0 to 3")),
        ({"start": -1}, naming("start", -1, 0)),
        ({"layer": -6}, naming(-6, "1 to 4", "-1 to -4")),
        ({"layer": 0}, naming("layer 0", "1 to 4", "-1 to -4")),
        ({"prompt": "echo"}, naming("echo")),
        ({"prompt_name": "query"}, naming("prompt", "'query'")),
        ({"token_prepending": False, "start": 1}, naming("start", "token prepending")),
        ({"max_length": 10}, naming("prompt", 10)),
    ],
)
def test_options_that_cannot_be_met_are_refused_in_one_line(folder, options, reason):
    with pytest.raises(InputError, match=reason) as caught:
        load_prompted(folder, **{"device": "cpu", "prompt": "prompteol", "token_prepending": True} | options)
    assert "\n" not in str(caught.value)


def test_what_is_no_language_model_with_a_template_is_loaded_as_before(bert_folder, folder, tmp_path):
    with pytest.raises(InputError, match=naming("token_prepending")):
        load_prompted(bert_folder, prompt="prompteol", token_prepending=True)
    with pytest.raises(InputError, match=naming("'ke'")):
        load_encoder(bert_folder, device="cpu", prompt="ke")
    assert load_encoder(bert_folder, device="cpu", prompt="{sentence} ").prompt == "{sentence} "
    with pytest.warns(StickyTokenWarning, match=naming(repr(str(folder)))):
        encoder = load_encoder(folder, device="cpu", prompt="query: ")
    assert not isinstance(encoder, CausalPromptEncoder)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match=naming(repr(str(tmp_path)))):
        load_encoder(tmp_path, prompt="prompteol")


def test_a_mistyped_prompt_of_a_language_model_names_the_known_ones(folder):
    with pytest.raises(InputError, match=naming("'prompteool'", "ck", "cot", "prompteol")):
        load_encoder(folder, prompt="prompteool")


@pytest.mark.parametrize(
    ("kind", "prompt", "options"),
    [
        ("qwen2", "prompteol", {}),
        ("gpt2", "prompteol", {}),
        ("qwen2", "echo", {"token_prepending": False, "start": None, "exit": None}),
    ],
)
def test_the_module_gives_the_encoder_s_vectors_whatever_the_batch(kind, prompt, options):
    model = stacked(prompt, kind=kind, **options)
    encoder = load_encoder(model)
    assert isinstance(encoder, CausalPromptEncoder)
    expected = encoder.encode(SENTENCES)
    for batch_size in (1, 4, 32):
        prompted = model.encode(SENTENCES, batch_size=batch_size)
        assert np.abs(prompted - expected).max() < 1e-5 * max(1, np.abs(expected).max())
    assert model.get_embedding_dimension() == tiny_decoders.DIMENSION
    # A prompt of the library goes in front of the sentence.
    prompted = model.encode(["river"], prompt="the old ")
    whole_text = model.encode(["the old river"])
    assert np.array_equal(prompted, whole_text)


@pytest.mark.parametrize(("prompt", "span"), [("echo", None), ('A: "{sentence}" is', (1, 2))])
def test_a_reading_is_saved_and_recorded_with_its_options(folder, tmp_path, prompt, span):
    reading = read(prompt, span, 3)
    record = LoadingRecord.model_validate(reading.prompting.as_options())
    encoder = load_encoder(folder, device="cpu", prompt=record.prompting)
    assert encoder.reading == reading
    encoder.sentence_transformer().save(str(tmp_path), create_model_card=False)
    listed = json.loads((tmp_path / "modules.json").read_text("utf-8"))
    assert listed[0]["type"] == "stickytoken.encoders.causal_module.CausalPrompt"  # what is on disk stays
    assert "<PST>" not in (tmp_path / "tokenizer.json").read_text("utf-8")
    loaded = load_encoder(tmp_path, device="cpu")
    assert loaded.identify() == encoder.identify()
    np.testing.assert_allclose(loaded.encode(SENTENCES[:4]), encoder.encode(SENTENCES[:4]), atol=1e-5)


def test_what_a_loaded_model_cannot_meet_is_refused(tmp_path):
    model = stacked()
    with pytest.raises(InputError, match=naming("loaded")):
        load_encoder(model, prompt=Prompting(layer=2))
    model.save(str(tmp_path), create_model_card=False)
    for options in ({"prompt": "cot"}, {"token_prepending": True}):
        with pytest.raises(InputError, match=naming(repr(str(tmp_path)))):
            load_prompted(tmp_path, device="cpu", **options)
    (tmp_path / "causal_prompt_config.json").write_text("{")
    with pytest.raises(ModelError, match=naming("causal_prompt_config.json")):
        load_encoder(tmp_path, device="cpu")
    with pytest.raises(InputError, match=naming("Normalize, Normalize")):
        load_encoder(SentenceTransformer(modules=[model[0], Normalize(), Normalize()], device="cpu"))
    with pytest.raises(InputError, match=naming(8)):
        load_encoder(SentenceTransformer(modules=[model[0]], device="cpu", truncate_dim=8))
    with pytest.raises(InputError, match=naming("tuple")):
        model[0].preprocess([("a", "b")])


def test_it_is_evaluated_moves_and_trains_like_any_module():
    model = stacked()
    evaluator = EmbeddingSimilarityEvaluator(SENTENCES[:5], SENTENCES[1:6], [0.1, 0.5, 0.3, 0.9, 0.2])
    assert all(np.isfinite(value) for value in evaluator(model).values())
    features = model.preprocess(SENTENCES[:2])
    model.train()
    model(features)["sentence_embedding"].sum().backward()
    assert model[0].model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
    model.double()
    assert model.encode(SENTENCES[:2]).dtype == np.float64


@pytest.mark.slow
def test_what_follows_a_run_reads_its_model_as_the_run_did(folder, tmp_path):
    corpus = collect_sentences(tiny.sentences(200), "test")
    encoder = load_prompted(folder, device="cpu", **READING)
    run = profiled.detect_profile(encoder, tmp_path / "run", sentences=corpus, sample=12)
    record = json.loads((run.path / "run.json").read_text())
    loading = record["model"]["loading"]
    given = READING | {
        "dtype": "float32",
        "prompt": loading["prompt"],
        "layer_choice": "chosen by the user",
    }
    assert {name: value for name, value in loading.items() if value is not None or name in given} == given
    few = ("--set", "carriers=3", "--set", "benign=3", "--set", "attribution=false")
    arguments = ["explain", run.path, run.tokens["token"][0], "--device", "cpu", *few]
    moved = folder.rename(tmp_path / "moved")
    refused = planted.command(*arguments, "--format", "json")
    assert refused.exit_code == 1
    assert says(refused.stderr, "--model")
    explained = planted.command(*arguments, "--model", moved, "--format", "json")
    assert explained.exit_code == 0, explained.stderr
    assert json.loads(explained.stdout)["tokens"]
    other = planted.command(*arguments, "--model", moved, "--set", "prompt=cot")
    assert other.exit_code == 1
    assert says(other.stderr, "different model")
    moved.rename(folder)


@pytest.mark.parametrize(
    "options",
    [
        READING,
        {"prompt": "metaeol", "token_prepending": True, "max_length": 300, "token_budget": 64},
        {"prompt": 'A title: "*sent 0*" is about', "layer": 2, "dtype": "bfloat16"},
    ],
)
def test_a_worker_loads_the_same_encoder(folder, options):
    encoder = load_prompted(folder, device="cpu", **options)
    assert ShardWorker(encoder.spec, "cpu", 1).load().identity == encoder.identify()
