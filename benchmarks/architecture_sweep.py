"""Try tiny random models of all text architectures of transformers and modules of sentence-transformers.

Each model is loaded, its vocabulary listed, a few of its tokens measured, some texts embedded and one of its
tokens repaired. Vectors are compared with those of SentenceTransformer.encode.

The models of transformers are made from the default configuration of each architecture, with small sizes and
a tiny tokenizer. Architectures with a head for text generation are also read through a prompt, and compared
with the hidden states that transformers computes for the same prompt. These models are named causal-lm/KIND.
The models of sentence-transformers are named modules/NAME.

    python benchmarks/architecture_sweep.py --out sweep.tsv              # all: an hour or two
    python benchmarks/architecture_sweep.py --out sweep.tsv --only bert clip causal-lm/llama modules/bow
    python benchmarks/architecture_sweep.py --out sweep.tsv --load-only  # vectors alone: a third of the time

The --out file gets one line for each model: its name, what happened, and the largest difference of vectors or
the reason. Models that already have a line in the file are not measured again, so an interrupted sweep can be
continued. When all models have a line, the result is written to results/architecture_sweep.json.
"""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

import stickytoken
from bench import write_json
from stickytoken import load_encoder
from stickytoken.encoders import Prompting
from stickytoken.errors import StickyTokenError
from stickytoken.language_models.prompts import PROMPTS
from sweep import (
    EQUAL_VECTORS,
    SAMPLE,
    SENTENCES,
    TEXTS,
    TOLERANCE,
    DifferentError,
    Row,
    largest_difference,
    outcome,
    run_sweep,
    said,
    tiny,
    tried,
)

tiny_architectures: Any = importlib.import_module("tiny_architectures")
AutoConfig: Any = transformers.AutoConfig
AutoModel: Any = transformers.AutoModel
AutoModelForCausalLM: Any = transformers.AutoModelForCausalLM
_AUTO: Any = importlib.import_module("transformers.models.auto")
IMAGE_PROCESSORS: dict[str, Any] = _AUTO.image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES
FEATURE_EXTRACTORS: dict[str, Any] = _AUTO.feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES


def kinds_in(mapping: Any) -> list[str]:
    """Return the kinds of models that an auto class can make, in the order of its mapping."""
    return list(dict.fromkeys(config.model_type for config in mapping))


# Prefixes of the names of models.
CAUSAL = "causal-lm/"
MODULES = "modules/"
TOKENIZER = tiny.wordpiece_tokenizer()
# Largest number of parameters of a tiny model. Some architectures have parts that no setting shrinks.
LARGEST = 70_000_000
# Texts to read through a prompt. Texts without a full stop at the end are left out, because a prompt adds one
# to them.
PROMPTED_TEXTS = [text for text in TEXTS if text.endswith(".")]

# Names of the settings in the configurations of transformers, keyed by the largest value they may have.
_SETTINGS_BY_SIZE = {
    32: "hidden_size d_model n_embd dim hidden_dim embedding_size emb_dim embedding_dim projection_dim "
    "encoder_hidden_size image_size",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "encoder_heads decoder_heads num_decoder_attention_heads num_encoder_attention_heads attention_heads "
    "num_attn_heads num_experts n_routed_experts num_local_experts moe_num_experts",
    2: "num_key_value_heads n_kv_heads num_kv_heads num_hidden_layers n_layer n_layers num_layers "
    "encoder_layers decoder_layers num_encoder_layers num_decoder_layers layers depth num_experts_per_tok "
    "moe_topk moe_k top_k_experts num_experts_per_token",
    8: "head_dim rotary_dim d_kv attention_head_size d_head qk_nope_head_dim qk_rope_head_dim v_head_dim",
    64: "intermediate_size d_ff ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim d_inner ffn_hidden_size "
    "moe_intermediate_size shared_expert_intermediate_size intermediate_dim mlp_dim d_inner_hidden",
    128: "max_position_embeddings n_positions max_seq_len seq_length max_sequence_length n_ctx "
    "context_length max_source_positions max_target_positions",
    16: "q_lora_rank kv_lora_rank patch_size",
    1: "n_group topk_group",
}
# The largest value of each setting.
SIZES = {setting: size for size, settings in _SETTINGS_BY_SIZE.items() for setting in settings.split()}
# Settings that hold a number of layers.
_NUMBERS_OF_LAYERS = [name for name in _SETTINGS_BY_SIZE[2].split() if "layer" in name or name == "depth"]
# Of these, the settings whose value is the length of lists with one item per layer.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Settings that a small configuration leaves out.
_LEFT_OUT = ("architectures", "transformers_version", "id2label", "label2id", "per_layer_config")
# Dictionaries whose values are not sizes.
_ROTARY = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class Shrinking:
    """How to make a configuration small. Some architectures cannot be built with the smallest sizes.

    Attributes:
        keep_kinds_of_layers: cut lists with an item per layer to two items, and keep ``layer_types``. If
            false, such lists are copied unchanged, and ``layer_types`` is left out.
        keep_widths: shrink only numbers of layers, not widths or numbers of heads.
    """

    keep_kinds_of_layers: bool
    keep_widths: bool


# The ways to shrink a configuration, in the order they are tried.
SHRINKINGS = (
    Shrinking(keep_kinds_of_layers=False, keep_widths=False),
    Shrinking(keep_kinds_of_layers=True, keep_widths=False),
    Shrinking(keep_kinds_of_layers=False, keep_widths=True),
    Shrinking(keep_kinds_of_layers=True, keep_widths=True),
)


def shrunk(config: dict[Any, Any], entries: int, shrinking: Shrinking) -> dict[Any, Any]:
    """Return a copy of a configuration with small sizes, also in nested configurations.

    Args:
        config: the configuration, as a dictionary.
        entries: number of vocabulary entries.
        shrinking: how to make the configuration small.
    """
    layer_count = _layer_count(config)
    small: dict[Any, Any] = {}
    for name, value in config.items():
        if name in _LEFT_OUT:
            continue
        if name == "layer_types" and not shrinking.keep_kinds_of_layers:
            continue
        is_per_layer = isinstance(value, list) and layer_count is not None and len(value) == layer_count
        if isinstance(value, dict) and name not in _ROTARY:
            small[name] = shrunk(value, entries, shrinking)
        elif is_per_layer and shrinking.keep_kinds_of_layers:
            small[name] = _two_layers(value)
        else:
            small[name] = _shrunk_value(name, value, entries, shrinking)
    return small


def _layer_count(config: dict[Any, Any]) -> int | None:
    """Return the number of layers of a configuration, or None if it has no such setting."""
    for name in _LAYERS:
        if isinstance(config.get(name), int):
            count: int = config[name]
            return count
    return None


def _shrunk_value(name: Any, value: Any, entries: int, shrinking: Shrinking) -> Any:
    """Return the value of one setting in a small configuration; the same value if the setting is no size."""
    is_integer = type(value) is int  # not a bool
    is_shrunk = name in SIZES and (name in _NUMBERS_OF_LAYERS or not shrinking.keep_widths)
    small = value
    if name == "vocab_size":
        small = entries
    elif name == "max_position_embeddings":
        small = SIZES[name]
    elif is_shrunk and is_integer:
        small = min(value, SIZES[name])
    elif str(name).endswith("token_id") and is_integer and value >= entries:
        small = 0
    elif name == "pad_token_id" and value is None:
        small = TOKENIZER.pad_token_id
    return small


def _two_layers(per_layer: list[Any]) -> list[Any]:
    """Return the values of two layers, of different kinds if there are any.

    A model that mixes attention with other kinds of layers fails without a layer of attention.
    """
    first = per_layer[0]
    other = next((value for value in per_layer if value != first), first)
    return [first, other]


def has_vocabulary(config: dict[Any, Any]) -> bool:
    """Return whether a configuration, or a configuration nested in it, has a vocabulary size."""
    if "vocab_size" in config:
        return True
    nested_configs = [value for value in config.values() if isinstance(value, dict)]
    return any(has_vocabulary(nested) for nested in nested_configs)


def built(kind: str, entries: int, auto_class: Any) -> Any:
    """Make a tiny random model of an architecture.

    Args:
        kind: name of the architecture in transformers.
        entries: number of vocabulary entries.
        auto_class: the auto class that makes the model, such as ``AutoModel``.

    Returns:
        The model; if it cannot be made, the reason, as a string.
    """
    config = AutoConfig.for_model(kind)
    reasons = []
    for shrinking in SHRINKINGS:
        try:
            small = type(config).from_dict(shrunk(config.to_dict(), entries, shrinking))
            size = parameter_count(auto_class, small)
            if size > LARGEST:
                reasons.append(f"{size:,} parameters")
                continue
            torch.manual_seed(0)
            model = auto_class.from_config(small).eval()
            randomize_embeddings(model)
            require_states(model)
            return model
        except Exception as error:  # noqa: BLE001 - architectures raise many kinds of errors for bad sizes
            reasons.append(said(error))
    return reasons[0]


def parameter_count(auto_class: Any, config: Any) -> int:
    """Return the number of parameters of a model, without allocating memory for them."""
    with torch.device("meta"):
        model = auto_class.from_config(config)
        return sum(parameter.numel() for parameter in model.parameters())


def randomize_embeddings(model: Any) -> None:
    """Fill all embedding tables with larger random values.

    The values of a new model are so small that all texts have almost the same vector.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=0.5)


def require_states(model: Any) -> None:
    """Run the model on one text.

    Raises:
        Exception: whatever the model raises because its sizes do not fit together, or because it needs more
            than text.
    """
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    if hasattr(reader, "get_text_features"):
        reader = reader.get_text_features
    ids = torch.tensor([[7, 8, 9, 10]])
    with torch.inference_mode():
        reader(input_ids=ids, attention_mask=torch.ones_like(ids))


def save_processors(kind: str, folder: Path) -> None:
    """Save the image processor and the feature extractor of a kind of models, if it has them.

    A class that cannot be made without arguments or further packages is left out, with a line on stderr.
    """
    image_processor = IMAGE_PROCESSORS.get(kind)
    if isinstance(image_processor, dict):
        image_processor = image_processor.get("pil") or image_processor.get("torchvision")
    for class_name in (image_processor, FEATURE_EXTRACTORS.get(kind)):
        if not isinstance(class_name, str):
            continue
        try:
            getattr(transformers, class_name)().save_pretrained(folder)
        except Exception as error:  # noqa: BLE001 - the classes raise many kinds of errors
            print(f"{kind}: no {class_name}: {said(error)}", file=sys.stderr)


def save_model(model: Any, tokenizer: Any, kind: str, folder: Path) -> Path:
    """Save a model with its tokenizer and processors in a subfolder, and return the subfolder."""
    model_folder = folder / "model"
    model.save_pretrained(model_folder)
    tokenizer.save_pretrained(model_folder)
    save_processors(kind, model_folder)
    return model_folder


def try_transformers_model(kind: str, folder: Path, *, load_only: bool) -> tuple[str, str]:
    """Try a model of transformers without a head. Return what happened, and the figure or the reason."""
    if not has_vocabulary(AutoConfig.for_model(kind).to_dict()):
        return "no vocabulary", ""
    model = built(kind, len(TOKENIZER), AutoModel)
    if isinstance(model, str):
        return "not built", model
    model_folder = save_model(model, TOKENIZER, kind, folder)
    return tried(model_folder, folder, load_only=load_only)


def try_causal_model(kind: str, folder: Path, *, load_only: bool) -> tuple[str, str]:
    """Try a model with a head for text generation, as a SentenceTransformer and through a prompt.

    Returns:
        The result, and the figures or the reason. If the vectors of the SentenceTransformer are equal, the
        result is that of the prompt.
    """
    tokenizer = tiny_architectures.gemma_tokenizer()
    if not has_vocabulary(AutoConfig.for_model(kind).to_dict()):
        return "no vocabulary", ""
    model = built(kind, len(tokenizer), AutoModelForCausalLM)
    if isinstance(model, str):
        return "not built", model
    model_folder = save_model(model, tokenizer, kind, folder)
    result, detail = tried(model_folder, folder, load_only=True)
    trial = PromptTrial(model_folder, folder)
    prompted_result, prompted_detail = outcome(
        lambda: trial.run(load_only=load_only), lambda: trial.step, model_folder
    )
    if result != EQUAL_VECTORS:
        return result, f"{detail}; through a prompt: {prompted_result}, {prompted_detail}"
    if load_only and prompted_result == "equal":
        prompted_result = EQUAL_VECTORS
    return prompted_result, f"without a prompt {detail}; through a prompt: {prompted_detail}"


@dataclass
class PromptTrial:
    """What is done with one saved model through a prompt.

    Attributes:
        model_folder: folder of the model.
        folder: folder for everything else.
        step: the current step, for the result.
    """

    model_folder: Path
    folder: Path
    step: str = "prompt"

    def run(self, *, load_only: bool) -> str:
        """Read texts through a prompt and its options, and detect sticky tokens.

        Returns:
            The largest difference from the states of transformers, and the options that were refused.

        Raises:
            DifferentError: the vectors differ from the states of transformers.
            StickyTokenError: the model was refused.
        """
        encoder = load_encoder(self.model_folder, device="cpu", prompt="prompteol")
        vectors = encoder.encode(PROMPTED_TEXTS)
        difference = largest_difference(vectors, states_behind_prompt(self.model_folder))
        # "Not at most" instead of "larger", because the difference may be NaN.
        if not difference <= TOLERANCE:
            raise DifferentError(f"{difference:.1e}")
        notes = [f"{difference:.1e}", *self._try_prepending()]
        if not load_only:
            self.step = "detect through a prompt"
            run_folder = self.folder / "prompted"
            stickytoken.detect(encoder, sentences=SENTENCES, sample=SAMPLE, out=run_folder)
        return "; ".join(notes)

    def _try_prepending(self) -> list[str]:
        """Encode texts with token prepending. Return a note if it was refused."""
        self.step = "token prepending"
        try:
            prompting = Prompting("prompteol", token_prepending=True)
            encoder = load_encoder(self.model_folder, device="cpu", prompt=prompting)
            encoder.encode(PROMPTED_TEXTS)
        except StickyTokenError as error:
            note = f"{self.step} refused: {said(error)}"
            return [note.replace(str(self.model_folder), "MODEL")]
        return []


def states_behind_prompt(model_folder: Path) -> NDArray[np.float32]:
    """Return the last hidden state of each prompted text, as transformers computes it, shape (texts, d)."""
    # Load the tokenizer from the folder, because for some kinds of models transformers reads the saved
    # tokenizer with another class, which divides texts differently.
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    prompt = PROMPTS["prompteol"]
    before, after = prompt.split_template(prompt.templates[0], prepending=False)
    model = AutoModel.from_pretrained(model_folder, dtype=torch.float32).eval()
    if hasattr(model, "get_decoder"):
        model = model.get_decoder()
    states = []
    with torch.inference_mode():
        for text in PROMPTED_TEXTS:
            inputs = tokenizer(f"{before}{text}{after}", return_tensors="pt")
            output = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            states.append(output.last_hidden_state[0, -1].float().numpy())
    return np.stack(states)


# Makes a module of sentence-transformers from the number of components of the vectors that it reads.
MakeModule: TypeAlias = Callable[[int], Any]


def stack(*chain: Any, **options: Any) -> SentenceTransformer:
    """Return a model of these modules."""
    return SentenceTransformer(modules=list(chain), device="cpu", **options)


def transformer_and(
    folder: Path, *chain: MakeModule, backbone: str = "bert", **options: Any
) -> SentenceTransformer:
    """Return a model of a Transformer module and further modules.

    Args:
        folder: folder for the files of the backbone.
        *chain: functions that make the further modules. Each gets the dimension of the Transformer module.
        backbone: name of the function of `tiny_architectures` that saves the backbone.
        **options: options of the Transformer module.
    """
    save_backbone = getattr(tiny_architectures, backbone)
    transformer = modules.Transformer(str(save_backbone(folder / "backbone")), **options)
    dimension = transformer.get_embedding_dimension()
    return stack(transformer, *[make_module(dimension) for make_module in chain])


def pooling(mode: str | list[str]) -> MakeModule:
    """Return a function that makes a module with this pooling mode or modes."""
    return lambda dimension: modules.Pooling(dimension, pooling_mode=mode)


def normalize(_dimension: int) -> Any:
    """Return a module that divides vectors by their norms."""
    return modules.Normalize()


def dropout(_dimension: int) -> Any:
    """Return a module that does nothing, except in training."""
    return modules.Dropout(0.3)


def pooled(folder: Path, mode: str, backbone: str) -> SentenceTransformer:
    """Return a model with this backbone and pooling mode."""
    return transformer_and(folder, pooling(mode), backbone=backbone)


def mean_and_dense(folder: Path) -> SentenceTransformer:
    """Return a model with a dense layer behind the pooling."""
    torch.manual_seed(0)
    return transformer_and(folder, pooling("mean"), lambda dimension: modules.Dense(dimension, 24), normalize)


def mean_of_layers(folder: Path) -> SentenceTransformer:
    """Return a model that averages the hidden states of its layers before the pooling."""
    return transformer_and(
        folder,
        lambda dimension: modules.WeightedLayerPooling(dimension, num_hidden_layers=2, layer_start=1),
        pooling("mean"),
        config_kwargs={"output_hidden_states": True},
    )


def static_embedding(_folder: Path) -> SentenceTransformer:
    """Return a model of static token vectors."""
    model: SentenceTransformer = tiny_architectures.static_model()
    return model


def truncated(_folder: Path) -> SentenceTransformer:
    """Return a model of static token vectors that keeps only the first 16 components."""
    model: SentenceTransformer = tiny_architectures.static_model(truncate_dim=16)
    return model


def words_of_texts() -> list[str]:
    """Return the words of the sentences, sorted."""
    return sorted(set(" ".join(SENTENCES).replace(".", "").split()))


WORD_DIMENSION = 32


def word_embeddings(*chain: MakeModule, of_transformers: bool = False) -> SentenceTransformer:
    """Return a model of random word vectors and further modules.

    Args:
        *chain: functions that make the further modules. Each gets the dimension of the word vectors.
        of_transformers: use a tokenizer of transformers instead of one that divides texts at white space.
    """
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    tokenizer: Any
    if of_transformers:
        tokenizer = TOKENIZER
        row_count = len(TOKENIZER)
    else:
        words = words_of_texts()
        tokenizer = WhitespaceTokenizer(vocab=words, stop_words=[])
        row_count = len(words)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn((row_count, WORD_DIMENSION), generator=generator).numpy()
    embeddings = modules.WordEmbeddings(tokenizer, weights)
    torch.manual_seed(0)
    return stack(embeddings, *[make_module(WORD_DIMENSION) for make_module in chain])


def word_weights(_dimension: int) -> Any:
    """Return a module that multiplies the vector of each word by a weight."""
    words = words_of_texts()
    return modules.WordWeights(words, {word: 1 / (1 + rank) for rank, word in enumerate(words)})


def convolution(_folder: Path) -> SentenceTransformer:
    """Return a model of word vectors, a convolution and a pooling."""
    # The convolution has kernels of three sizes, with 16 channels each.
    return word_embeddings(
        lambda dimension: modules.CNN(dimension, 16), lambda _: modules.Pooling(3 * 16, pooling_mode="mean")
    )


def recurrent(_folder: Path) -> SentenceTransformer:
    """Return a model of word vectors, an LSTM with 16 components in each direction, and a pooling."""
    return word_embeddings(lambda dimension: modules.LSTM(dimension, 16), pooling("mean"))


def bag_of_words(_folder: Path, *, dense: bool) -> SentenceTransformer:
    """Return a model that counts words, with or without a dense layer behind it."""
    bag = modules.BoW(words_of_texts())
    if not dense:
        return stack(bag)
    torch.manual_seed(0)
    return stack(bag, modules.Dense(len(bag.vocab), 24))


def router(folder: Path, query: str, document: str) -> SentenceTransformer:
    """Return a model with routes for queries and documents. Each is a backbone or "static"."""
    query_route = route(folder / "query", query)
    document_route = route(folder / "document", document)
    model: SentenceTransformer = tiny_architectures.router(query_route, document_route)
    return model


def route(folder: Path, backbone: str) -> SentenceTransformer:
    """Return a model with this backbone and mean pooling, or of static token vectors if it is "static"."""
    if backbone == "static":
        return static_embedding(folder)
    return transformer_and(folder, pooling("mean"), backbone=backbone)


def with_prompts(folder: Path, *, include_prompt: bool) -> SentenceTransformer:
    """Return a model with a default prompt, whose tokens are pooled or left out."""
    model = transformer_and(
        folder,
        lambda dimension: modules.Pooling(dimension, pooling_mode="mean", include_prompt=include_prompt),
    )
    model.prompts = {"query": "the river ", "document": ""}
    model.default_prompt_name = "query"
    return model


# The models of sentence-transformers: a function for each name, which gets a folder for files of its own.
STACKS: dict[str, Callable[[Path], SentenceTransformer]] = {
    **{
        f"{backbone}-{mode}": partial(pooled, mode=mode, backbone=backbone)
        for backbone in ("bert", "qwen2", "t5")
        for mode in ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    },
    "mean-and-max": lambda folder: transformer_and(folder, pooling(["mean", "max"])),
    "normalize": lambda folder: transformer_and(folder, pooling("mean"), normalize),
    "dense": mean_and_dense,
    "layer-norm": lambda folder: transformer_and(folder, pooling("mean"), modules.LayerNorm),
    "dropout": lambda folder: transformer_and(folder, pooling("mean"), dropout),
    "weighted-layers": mean_of_layers,
    "prompt": partial(with_prompts, include_prompt=True),
    "prompt-not-pooled": partial(with_prompts, include_prompt=False),
    "static": static_embedding,
    "static-truncated": truncated,
    "word-embeddings": lambda _: word_embeddings(pooling("mean")),
    "word-embeddings-of-transformers": lambda _: word_embeddings(pooling("mean"), of_transformers=True),
    "word-weights": lambda _: word_embeddings(word_weights, pooling("mean")),
    "cnn": convolution,
    "lstm": recurrent,
    "bow": partial(bag_of_words, dense=False),
    "bow-dense": partial(bag_of_words, dense=True),
    "router-alike": partial(router, query="bert", document="bert"),
    "router-kinds": partial(router, query="bert", document="roberta"),
    "router-static": partial(router, query="static", document="bert"),
}


def try_modules(name: str, folder: Path, *, load_only: bool) -> tuple[str, str]:
    """Try a model of sentence-transformers. Return what happened, and the figure or the reason."""
    model_folder = folder / "model"
    model = STACKS[name](folder)
    model.save(str(model_folder), create_model_card=False)
    return tried(model_folder, folder, load_only=load_only)


def measure(name: str, folder: Path, options: Namespace) -> tuple[str, str]:
    """Make and try the model with this name. Return what happened, and the figure or the reason."""
    load_only = bool(options.load_only)
    if name.startswith(CAUSAL):
        return try_causal_model(name.removeprefix(CAUSAL), folder, load_only=load_only)
    if name.startswith(MODULES):
        return try_modules(name.removeprefix(MODULES), folder, load_only=load_only)
    return try_transformers_model(name, folder, load_only=load_only)


def write_result(rows: list[Row]) -> None:
    """Write the rows, and how often each result occurs, to results/architecture_sweep.json."""
    counts = Counter(row.result for row in rows)
    write_json("architecture_sweep", counts=dict(counts.most_common()), rows=[asdict(row) for row in rows])


NAMES = [
    *[f"{MODULES}{name}" for name in STACKS],
    *kinds_in(transformers.MODEL_MAPPING),
    *[f"{CAUSAL}{kind}" for kind in kinds_in(transformers.MODEL_FOR_CAUSAL_LM_MAPPING)],
]

if __name__ == "__main__":
    run_sweep(__doc__, NAMES, measure, write_result)
