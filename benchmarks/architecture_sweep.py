"""Load, list, detect, embed and repair every text model that transformers and sentence-transformers build.

Models of transformers are made from their default configuration, shrunk, with random weights and a tiny
tokenizer. Those with a head for text generation are read a second time, as saved with their head, and through
a prompt. Models of sentence-transformers are made of each of its modules. Vectors are compared with those of
SentenceTransformer.encode, and those of prompts with the states of transformers' own model. One line per
model: what happened, and the figure or the reason. Run it in parts on a small machine:

    python benchmarks/architecture_sweep.py --out sweep.tsv              # all: an hour or two
    python benchmarks/architecture_sweep.py --out sweep.tsv --only bert clip causal-lm/llama modules/bow
    python benchmarks/architecture_sweep.py --out sweep.tsv --load-only  # vectors alone: a third of the time

An --out file is continued: what it holds is not measured again. When every model has a line, the result is
written to results/architecture_sweep.json.
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
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

import stickytoken
from bench import write_json
from stickytoken.encoders import Prompting, load_encoder
from stickytoken.encoders.prompted import PROMPTS
from stickytoken.errors import StickyTokenError
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


CAUSAL = "causal-lm/"
MODULES = "modules/"
TOKENIZER = tiny.wordpiece_tokenizer()
# Parameters; some architectures have parts that no setting shrinks.
LARGEST = 70_000_000
# Sentences that end with a full stop. A prompt adds one to other texts.
PROMPTED_TEXTS = [text for text in TEXTS if text.endswith(".")]

_NAMES_OF_SIZES = {
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
SIZES = {name: size for size, names in _NAMES_OF_SIZES.items() for name in names.split()}
_NUMBERS_OF_LAYERS = [name for name in _NAMES_OF_SIZES[2].split() if "layer" in name or name == "depth"]
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_LEFT_OUT = ("architectures", "transformers_version", "id2label", "label2id", "per_layer_config")
_ROTARY = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class Shrinking:
    """How a configuration is made small. Some architectures demand what the smallest sizes break.

    Attributes:
        keep_kinds_of_layers: Cut lists with an item per layer instead of leaving them out.
        keep_widths: Change neither widths nor numbers of heads.
    """

    keep_kinds_of_layers: bool
    keep_widths: bool


SHRINKINGS = tuple(
    Shrinking(keep_kinds_of_layers, keep_widths)
    for keep_widths in (False, True)
    for keep_kinds_of_layers in (False, True)
)


def shrunk(config: dict[Any, Any], entries: int, how: Shrinking) -> dict[Any, Any]:
    """Return a configuration with small sizes and a vocabulary of this size."""
    layers = next((config[name] for name in _LAYERS if isinstance(config.get(name), int)), None)
    small: dict[Any, Any] = {}
    for name, value in config.items():
        if name in _LEFT_OUT or (name == "layer_types" and not how.keep_kinds_of_layers):
            continue
        is_per_layer = isinstance(value, list) and layers is not None and len(value) == layers
        is_shrunk = name in SIZES and (not how.keep_widths or name in _NUMBERS_OF_LAYERS)
        if isinstance(value, dict) and name not in _ROTARY:
            small[name] = shrunk(value, entries, how)
        elif is_per_layer and how.keep_kinds_of_layers:
            small[name] = _two_layers(value)
        elif name == "vocab_size":
            small[name] = entries
        elif name == "max_position_embeddings":
            small[name] = SIZES[name]
        elif is_shrunk and type(value) is int:
            small[name] = min(value, SIZES[name])
        elif str(name).endswith("token_id") and type(value) is int and value >= entries:
            small[name] = 0
        elif name == "pad_token_id" and value is None:
            small[name] = TOKENIZER.pad_token_id
        else:
            small[name] = value
    return small


def _two_layers(per_layer: list[Any]) -> list[Any]:
    """Return the values of two layers, of different kinds if there are any.

    A model that mixes attention with other kinds of layers fails without a layer of attention.
    """
    first = per_layer[0]
    other = next((value for value in per_layer if value != first), first)
    return [first, other]


def has_vocabulary(config: dict[Any, Any]) -> bool:
    inside = [value for value in config.values() if isinstance(value, dict)]
    return "vocab_size" in config or any(has_vocabulary(value) for value in inside)


def built(kind: str, entries: int, auto_class: Any) -> Any:
    """Return a tiny random model with a vocabulary of this size, or the reason why there is none."""
    config = AutoConfig.for_model(kind)
    reasons = []
    for how in SHRINKINGS:
        try:
            small = type(config).from_dict(shrunk(config.to_dict(), entries, how))
            with torch.device("meta"):
                size = sum(weight.numel() for weight in auto_class.from_config(small).parameters())
            if size > LARGEST:
                reasons.append(f"{size:,} parameters")
                continue
            torch.manual_seed(0)
            model = auto_class.from_config(small).eval()
            # Fresh tables are so small that all texts are alike.
            for module in model.modules():
                if isinstance(module, torch.nn.Embedding):
                    torch.nn.init.normal_(module.weight, std=0.5)
            require_states(model)
            return model
        except Exception as error:  # noqa: BLE001 - every configuration is validated in a way of its own
            reasons.append(said(error))
    return reasons[0]


def require_states(model: Any) -> None:
    """Raise what the model raises for a text, if its sizes do not fit together or it needs more than text."""
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    if hasattr(reader, "get_text_features"):
        reader = reader.get_text_features
    ids = torch.tensor([[7, 8, 9, 10]])
    with torch.inference_mode():
        reader(input_ids=ids, attention_mask=torch.ones_like(ids))


def save_processors(kind: str, folder: Path) -> None:
    """Save what a model of images or sound reads them with, where the class can be made without more."""
    images = IMAGE_PROCESSORS.get(kind)
    if isinstance(images, dict):
        images = images.get("pil") or images.get("torchvision")
    for name in (images, FEATURE_EXTRACTORS.get(kind)):
        if isinstance(name, str):
            try:
                getattr(transformers, name)().save_pretrained(folder)
            except Exception as error:  # noqa: BLE001 - needs packages or arguments
                print(f"{kind}: no {name}: {said(error)}", file=sys.stderr)


def saved(model: Any, tokenizer: Any, kind: str, folder: Path) -> Path:
    """Save a model with its tokenizer and processors in a subfolder, and return that."""
    place = folder / "model"
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    save_processors(kind, place)
    return place


def of_transformers(kind: str, folder: Path, *, load_only: bool) -> tuple[str, str]:
    """Try a model of transformers without a head."""
    if not has_vocabulary(AutoConfig.for_model(kind).to_dict()):
        return "no vocabulary", ""
    model = built(kind, len(TOKENIZER), AutoModel)
    if isinstance(model, str):
        return "not built", model
    place = saved(model, TOKENIZER, kind, folder)
    return tried(place, folder, load_only=load_only)


def of_causal_lm(kind: str, folder: Path, *, load_only: bool) -> tuple[str, str]:
    """Try a model with a head for text generation: as a SentenceTransformer, and through a prompt."""
    tokenizer = tiny_architectures.gemma_tokenizer()
    if not has_vocabulary(AutoConfig.for_model(kind).to_dict()):
        return "no vocabulary", ""
    model = built(kind, len(tokenizer), AutoModelForCausalLM)
    if isinstance(model, str):
        return "not built", model
    place = saved(model, tokenizer, kind, folder)
    result, detail = tried(place, folder, load_only=True)
    step = "prompt"

    def run_prompts() -> str:
        nonlocal step
        encoder = load_encoder(place, device="cpu", prompt="prompteol")
        difference = largest_difference(encoder.encode(PROMPTED_TEXTS), states_behind_prompt(place))
        if not difference <= TOLERANCE:
            raise DifferentError(f"{difference:.1e}")
        notes = [f"{difference:.1e}"]
        for step, option in (("token prepending", "token_prepending"), ("contrast", "contrast")):
            options: dict[str, Any] = {option: True}
            try:
                load_encoder(place, device="cpu", prompt=Prompting("prompteol", **options)).encode(
                    PROMPTED_TEXTS
                )
            except StickyTokenError as error:
                notes.append(f"{step} refused: {said(error)}".replace(str(place), "MODEL"))
        if not load_only:
            step = "detect through a prompt"
            out = folder / "prompted"
            stickytoken.detect(encoder, sentences=SENTENCES, sample=SAMPLE, out=out, evidence=False)
        return "; ".join(notes)

    prompted_result, prompted_detail = outcome(run_prompts, lambda: step, place)
    if result == EQUAL_VECTORS:
        if load_only and prompted_result == "equal":
            prompted_result = EQUAL_VECTORS
        return prompted_result, f"without a prompt {detail}; through a prompt: {prompted_detail}"
    return result, f"{detail}; through a prompt: {prompted_result}, {prompted_detail}"


def states_behind_prompt(place: Path) -> NDArray[np.float32]:
    """Return the last state of each prompt, as transformers computes it, shape (sentences, d)."""
    # Some model types read a saved tokenizer with a class of their own, which divides texts differently.
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    before, after = PROMPTS["prompteol"].pieces(PROMPTS["prompteol"].templates[0], prepending=False)
    model = AutoModel.from_pretrained(place, dtype=torch.float32).eval()
    model = model.get_decoder() if hasattr(model, "get_decoder") else model
    states = []
    with torch.inference_mode():
        for text in PROMPTED_TEXTS:
            inputs = tokenizer(f"{before}{text}{after}", return_tensors="pt")
            output = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            states.append(output.last_hidden_state[0, -1].float().numpy())
    return np.stack(states)


def stack(*chain: Any, **options: Any) -> SentenceTransformer:
    return SentenceTransformer(modules=list(chain), device="cpu", **options)


def transformer_and(
    folder: Path, *chain: Callable[[int], Any], backbone: str = "bert", **options: Any
) -> SentenceTransformer:
    """Return a model of a Transformer and further modules, each made from the number of components."""
    saved = getattr(tiny_architectures, backbone)(folder / "backbone")
    transformer = modules.Transformer(str(saved), **options)
    width = transformer.get_embedding_dimension()
    return stack(transformer, *[make(width) for make in chain])


def pooling(mode: str | list[str]) -> Callable[[int], Any]:
    return lambda width: modules.Pooling(width, pooling_mode=mode)


def mean_and_dense(folder: Path) -> SentenceTransformer:
    torch.manual_seed(0)
    return transformer_and(
        folder, pooling("mean"), lambda width: modules.Dense(width, 24), lambda _: modules.Normalize()
    )


def mean_of_layers(folder: Path) -> SentenceTransformer:
    return transformer_and(
        folder,
        lambda width: modules.WeightedLayerPooling(width, num_hidden_layers=2, layer_start=1),
        pooling("mean"),
        config_kwargs={"output_hidden_states": True},
    )


def static_embedding(folder: Path) -> SentenceTransformer:
    model: SentenceTransformer = tiny_architectures.static_model()
    return model


def truncated(folder: Path) -> SentenceTransformer:
    model: SentenceTransformer = tiny_architectures.static_model(truncate_dim=16)
    return model


def words_of_texts() -> list[str]:
    return sorted(set(" ".join(SENTENCES).replace(".", "").split()))


def word_embeddings(*chain: Callable[[int], Any], of_transformers: bool = False) -> SentenceTransformer:
    """Return a model of word vectors and further modules, each made from the number of components."""
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    words = words_of_texts()
    tokenizer: Any = TOKENIZER if of_transformers else WhitespaceTokenizer(vocab=words, stop_words=[])
    rows = len(TOKENIZER) if of_transformers else len(words)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn((rows, 32), generator=generator).numpy()
    embeddings = modules.WordEmbeddings(tokenizer, weights)
    torch.manual_seed(0)
    return stack(embeddings, *[make(32) for make in chain])


def word_weights(_: int) -> Any:
    words = words_of_texts()
    return modules.WordWeights(words, {word: 1 / (1 + rank) for rank, word in enumerate(words)})


def bag_of_words(*, dense: bool) -> SentenceTransformer:
    bag = modules.BoW(words_of_texts())
    torch.manual_seed(0)
    return stack(bag, modules.Dense(len(bag.vocab), 24)) if dense else stack(bag)


def router(folder: Path, query: str, document: str) -> SentenceTransformer:
    """Return a model with routes for queries and documents, each a backbone or static."""

    def chain(side: str, backbone: str) -> SentenceTransformer:
        if backbone == "static":
            model: SentenceTransformer = tiny_architectures.static_model()
            return model
        return transformer_and(folder / side, pooling("mean"), backbone=backbone)

    model: SentenceTransformer = tiny_architectures.router(chain("query", query), chain("document", document))
    return model


def with_prompts(folder: Path, *, include_prompt: bool) -> SentenceTransformer:
    """Return a model with a default prompt."""
    model = transformer_and(
        folder, lambda width: modules.Pooling(width, pooling_mode="mean", include_prompt=include_prompt)
    )
    model.prompts = {"query": "the river ", "document": ""}
    model.default_prompt_name = "query"
    return model


STACKS: dict[str, Callable[[Path], SentenceTransformer]] = {
    **{
        f"{backbone}-{mode}": partial(
            lambda folder, mode, backbone: transformer_and(folder, pooling(mode), backbone=backbone),
            mode=mode,
            backbone=backbone,
        )
        for backbone in ("bert", "qwen2", "t5")
        for mode in ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    },
    "mean-and-max": lambda folder: transformer_and(folder, pooling(["mean", "max"])),
    "normalize": lambda folder: transformer_and(folder, pooling("mean"), lambda _: modules.Normalize()),
    "dense": mean_and_dense,
    "layer-norm": lambda folder: transformer_and(folder, pooling("mean"), modules.LayerNorm),
    "dropout": lambda folder: transformer_and(folder, pooling("mean"), lambda _: modules.Dropout(0.3)),
    "weighted-layers": mean_of_layers,
    "prompt": partial(with_prompts, include_prompt=True),
    "prompt-not-pooled": partial(with_prompts, include_prompt=False),
    "static": static_embedding,
    "static-truncated": truncated,
    "word-embeddings": lambda _: word_embeddings(pooling("mean")),
    "word-embeddings-of-transformers": lambda _: word_embeddings(pooling("mean"), of_transformers=True),
    "word-weights": lambda _: word_embeddings(word_weights, pooling("mean")),
    "cnn": lambda _: word_embeddings(lambda width: modules.CNN(width, 16), lambda _: pooling("mean")(48)),
    "lstm": lambda _: word_embeddings(lambda width: modules.LSTM(width, 16), pooling("mean")),
    "bow": lambda _: bag_of_words(dense=False),
    "bow-dense": lambda _: bag_of_words(dense=True),
    "router-alike": partial(router, query="bert", document="bert"),
    "router-kinds": partial(router, query="bert", document="roberta"),
    "router-static": partial(router, query="static", document="bert"),
}


def of_modules(name: str, folder: Path, *, load_only: bool) -> tuple[str, str]:
    """Try a model of sentence-transformers."""
    place = folder / "model"
    STACKS[name](folder).save(str(place), create_model_card=False)
    return tried(place, folder, load_only=load_only)


def measured(name: str, folder: Path, options: Namespace) -> tuple[str, str]:
    """Return what happened to a model, and the figure or the reason."""
    load_only = bool(options.load_only)
    if name.startswith(CAUSAL):
        return of_causal_lm(name.removeprefix(CAUSAL), folder, load_only=load_only)
    if name.startswith(MODULES):
        return of_modules(name.removeprefix(MODULES), folder, load_only=load_only)
    return of_transformers(name, folder, load_only=load_only)


def write_result(rows: list[Row]) -> None:
    counts = Counter(row.result for row in rows)
    write_json("architecture_sweep", counts=dict(counts.most_common()), rows=[asdict(row) for row in rows])


NAMES = [
    *[f"{MODULES}{name}" for name in STACKS],
    *kinds_in(transformers.MODEL_MAPPING),
    *[f"{CAUSAL}{kind}" for kind in kinds_in(transformers.MODEL_FOR_CAUSAL_LM_MAPPING)],
]

if __name__ == "__main__":
    run_sweep(__doc__, NAMES, measured, has_load_only=True, finish=write_result)
