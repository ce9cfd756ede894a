"""Load, list, detect, embed and repair every text architecture that transformers can build.

Each model is made from its default configuration, shrunk, with random weights and a tiny tokenizer. Vectors
are compared with those of SentenceTransformer.encode. One line per architecture: what happened, and the
figure or the reason. Run it in parts on a small machine:

    python benchmarks/sweep.py --out sweep.tsv                     # everything: about an hour on one core
    python benchmarks/sweep.py --out sweep.tsv --only bert clip    # some
    python benchmarks/sweep.py --out sweep.tsv --load-only         # vectors alone: a third of the time

An --out file is continued: what it holds is not measured again.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer

import stickytoken
from stickytoken.errors import StickyTokenError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

tiny: Any = importlib.import_module("tiny")
AutoConfig: Any = transformers.AutoConfig
AutoModel: Any = transformers.AutoModel
transformers_logging: Any = transformers.utils.logging
_AUTO: Any = importlib.import_module("transformers.models.auto")
ARCHITECTURES: list[str] = list(_AUTO.modeling_auto.MODEL_MAPPING_NAMES)
IMAGE_PROCESSORS: dict[str, Any] = _AUTO.image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES
FEATURE_EXTRACTORS: dict[str, Any] = _AUTO.feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES

TOKENIZER = tiny.wordpiece_tokenizer()
TEXTS = [*tiny.sentences(6), "river", "the river " * 4]
SENTENCES = tiny.sentences(300)
# Largest difference of a component from the library's.
TOLERANCE = 1e-5
# Parameters; some architectures have parts that no setting shrinks.
LARGEST = 70_000_000
# A model that takes longer is reported, not awaited.
SECONDS = 300
SAMPLE = 12

_NAMES_OF_SIZES = {
    32: "hidden_size d_model n_embd dim hidden_dim embedding_size emb_dim embedding_dim projection_dim "
    "encoder_hidden_size image_size",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "encoder_heads decoder_heads num_decoder_attention_heads num_encoder_attention_heads attention_heads "
    "num_attn_heads num_experts n_routed_experts num_local_experts moe_num_experts",
    2: "num_key_value_heads n_kv_heads num_kv_heads num_hidden_layers n_layer n_layers num_layers "
    "encoder_layers decoder_layers num_encoder_layers num_decoder_layers layers depth num_experts_per_tok "
    "moe_topk moe_k top_k_experts num_experts_per_token",
    8: "head_dim d_kv attention_head_size d_head qk_nope_head_dim qk_rope_head_dim v_head_dim",
    64: "intermediate_size d_ff ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim d_inner ffn_hidden_size "
    "moe_intermediate_size shared_expert_intermediate_size intermediate_dim mlp_dim d_inner_hidden",
    128: "max_position_embeddings n_positions max_seq_len seq_length max_sequence_length n_ctx "
    "context_length max_source_positions max_target_positions",
    16: "q_lora_rank kv_lora_rank patch_size",
    1: "n_group topk_group",
}
SIZES = {name: size for size, names in _NAMES_OF_SIZES.items() for name in names.split()}
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_LEFT_OUT = ("architectures", "transformers_version", "id2label", "label2id", "per_layer_config")
_ROTARY = ("rope_parameters", "rope_scaling")


def shrunk(config: dict[Any, Any], *, keep_kinds_of_layers: bool) -> dict[Any, Any]:
    """Return a configuration with small sizes; lists with an item per layer are cut or left out."""
    layers = next((config[name] for name in _LAYERS if isinstance(config.get(name), int)), None)
    small: dict[Any, Any] = {}
    for name, value in config.items():
        if name in _LEFT_OUT or (name == "layer_types" and not keep_kinds_of_layers):
            continue
        if isinstance(value, dict) and name not in _ROTARY:
            small[name] = shrunk(value, keep_kinds_of_layers=keep_kinds_of_layers)
        elif isinstance(value, list) and layers and len(value) == layers and keep_kinds_of_layers:
            small[name] = value[:2]
        elif name == "vocab_size":
            small[name] = len(TOKENIZER)
        elif name == "max_position_embeddings":
            small[name] = SIZES[name]
        elif name in SIZES and type(value) is int:
            small[name] = min(value, SIZES[name])
        elif str(name).endswith("token_id") and type(value) is int and value >= len(TOKENIZER):
            small[name] = 0
        else:
            small[name] = value
    return small


def has_vocabulary(config: dict[Any, Any]) -> bool:
    inside = [value for value in config.values() if isinstance(value, dict)]
    return "vocab_size" in config or any(has_vocabulary(value) for value in inside)


def built(kind: str) -> Any:
    """Return a tiny random model, or the reason why there is none."""
    config = AutoConfig.for_model(kind)
    reason = ""
    for keep_kinds_of_layers in (False, True):
        try:
            values = shrunk(config.to_dict(), keep_kinds_of_layers=keep_kinds_of_layers)
            small = type(config).from_dict(values)
            with torch.device("meta"):
                size = sum(weight.numel() for weight in AutoModel.from_config(small).parameters())
            if size > LARGEST:
                return f"{size:,} parameters"
            torch.manual_seed(0)
            model = AutoModel.from_config(small)
            # Fresh tables are so small that all texts are alike.
            for module in model.modules():
                if isinstance(module, torch.nn.Embedding):
                    torch.nn.init.normal_(module.weight, std=0.5)
            return model
        except Exception as error:  # noqa: BLE001 - every configuration is validated in a way of its own
            reason = said(error)
    return reason


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


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"


def measured(kind: str, folder: Path, *, load_only: bool) -> tuple[str, str]:
    """Return what happened to an architecture, and the figure or the reason."""
    if not has_vocabulary(AutoConfig.for_model(kind).to_dict()):
        return "no vocabulary", ""
    model = built(kind)
    if isinstance(model, str):
        return "not built", model
    place = folder / "model"
    model.save_pretrained(place)
    TOKENIZER.save_pretrained(place)
    save_processors(kind, place)
    return tried(place, folder, load_only=load_only)


def tried(place: Path, folder: Path, *, load_only: bool = False) -> tuple[str, str]:
    """Load, list, detect and repair a model; return what happened, and the figure or the reason."""
    expected = None
    library_says = ""
    try:
        library = SentenceTransformer(str(place), device="cpu", local_files_only=True)
        expected = library.encode(TEXTS, batch_size=1)
    except Exception as error:  # noqa: BLE001 - what the library cannot do is reported beside our refusal
        library_says = said(error)
    step = "load"
    try:
        encoder = stickytoken.load_encoder(place, device="cpu")
        vectors = encoder.encode(TEXTS)
        if expected is None:
            return "only ours", library_says
        difference = float(np.abs(vectors - expected).max())
        if difference > TOLERANCE:
            return "DIFFERENT", f"{difference:.1e}"
        if load_only:
            return "equal", f"{difference:.1e}"
        step = "tokens"
        available = stickytoken.analyze_vocabulary(encoder).available
        step = "detect"
        out = folder / "run"
        stickytoken.detect(encoder, sentences=SENTENCES, sample=SAMPLE, out=out, evidence=False)
        step = "repair"
        token = next((token.id for token in available if "river" in token.text), available[0].id)
        stickytoken.repair(out, [token], out=folder / "repaired", verify=False)
        return "equal", f"{difference:.1e}"
    except StickyTokenError as error:
        both = "" if expected is not None else f" (the library: {library_says})"
        return f"refused at {step}", f"{said(error)}{both}".replace(str(place), "MODEL")
    except Exception as error:  # noqa: BLE001 - what the sweep looks for
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"TRACEBACK at {step}", f"{said(error)} ({where})"


def run_sweep(
    description: str | None,
    names: list[str],
    measure: Callable[[str, Path, argparse.Namespace], tuple[str, str]],
    *,
    has_load_only: bool = False,
) -> None:
    """Measure each name in a folder of its own, and add one line for each to the --out file.

    Args:
        description: Text of --help.
        names: What is measured without --only.
        measure: Returns what happened, and the figure or the reason.
        has_load_only: Whether there is an option --load-only.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    if has_load_only:
        parser.add_argument("--load-only", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    lines = options.out.read_text("utf-8").splitlines() if options.out.is_file() else []
    finished = {line.split("\t")[0] for line in lines}
    for name in options.only or names:
        if name in finished:
            continue
        signal.alarm(SECONDS)
        with tempfile.TemporaryDirectory() as folder:
            try:
                result, detail = measure(name, Path(folder), options)
            except Exception as error:  # noqa: BLE001 - in the making of the model
                result, detail = "not built", said(error)
        signal.alarm(0)
        lines.append(f"{name}\t{result}\t{detail}")
        with options.out.open("a", encoding="utf-8") as stream:
            stream.write(f"{lines[-1]}\n")
    for result, count in Counter(line.split("\t")[1] for line in lines).most_common():
        print(f"{count:4} {result}")


if __name__ == "__main__":
    run_sweep(
        __doc__,
        ARCHITECTURES,
        lambda kind, folder, options: measured(kind, folder, load_only=options.load_only),
        has_load_only=True,
    )
