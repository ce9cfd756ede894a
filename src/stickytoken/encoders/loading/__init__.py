"""Load encoders by name, folder or object."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, overload

from stickytoken.encoders import prompted as prompts
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.endpoint import EndpointOptions, names_endpoint
from stickytoken.encoders.endpoint.vocabulary import names_tiktoken, vocabulary_of
from stickytoken.encoders.loading import resolution
from stickytoken.encoders.loading.description import require_single_vectors_of
from stickytoken.encoders.loading.resolution import EncoderSpec, ModelSource, Origin
from stickytoken.encoders.protocol import (
    Encoder,
    IdEncoder,
    LayerChoice,
    Prompting,
    RoutedEncoder,
    is_encoder,
    reads_ids,
)
from stickytoken.encoders.text_encoder import FunctionModel, TextEncoder, TextFunction, TextModel
from stickytoken.errors import InputError, ModelError, StickyTokenWarning
from stickytoken.machine import Precision
from stickytoken.validation import whole_number
from stickytoken.vocabulary import Vocabulary, categorize

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_SHOWN_REASON = 300
# The first module of a model that was saved with its prompt.
_MODULE = "stickytoken.encoders.causal_module.CausalPrompt"


def set_precision(model: SentenceTransformer, dtype: str, name: str) -> None:
    import torch
    from transformers import PreTrainedModel

    wanted = getattr(torch, dtype)
    inside: set[int] = set()
    for backbone in (module for module in model.modules() if isinstance(module, PreTrainedModel)):
        weights = [weight for weight in backbone.parameters() if weight.is_floating_point()]
        if weights and all(weight.dtype != wanted for weight in weights):
            found = str(weights[0].dtype).removeprefix("torch.")
            raise ModelError(
                f"{name!r} cannot be loaded in {dtype}: its {type(backbone).__name__} always loads in "
                f"{found}: pass {found}"
            )
        inside.update(map(id, backbone.parameters()))
    for weight in model.parameters():
        if weight.is_floating_point() and id(weight) not in inside:
            weight.data = weight.data.to(wanted)


AnyModel: TypeAlias = "str | Path | SentenceTransformer | Encoder | TextModel | TextFunction"

_DTYPES = ("float32", "float16", "bfloat16", "tf32")
# Options that an object without them would ignore.
_OF_NAMED_MODELS = (
    "device", "prompt", "prompt_name", "revision", "max_length", "token_budget", "packed_layers", "route",
    "start", "exit", "layer", "token_prepending", "contrast", "contrast_layer", "contrast_strength",
    "contrast_rule", "truncate_dim",
)  # fmt: skip


@overload
def load_encoder(
    model: str | Path | SentenceTransformer | IdEncoder,
    *,
    device: str | None = ...,
    prompt: str | Prompting | None = ...,
    dtype: str = ...,
    revision: str | None = ...,
    trust_remote_code: bool = ...,
    max_length: int | None = ...,
    token_budget: int | None = ...,
    packed_layers: bool | None = ...,
    truncate_dim: int | None = ...,
    layer: int | None = ...,
    route: str | None = ...,
) -> IdEncoder: ...
@overload
def load_encoder(
    model: str | Encoder | TextModel | TextFunction,
    *,
    prompt: str | Prompting | None = ...,
    max_length: int | None = ...,
    truncate_dim: int | None = ...,
    tokenizer: Any = ...,
    candidates: str | Path | Sequence[str] | None = ...,
    endpoint: EndpointOptions | None = ...,
) -> Encoder: ...
def load_encoder(  # noqa: PLR0913 - all of them keyword-only, one decision each
    model: str | Path | SentenceTransformer | Encoder | TextModel | TextFunction,
    *,
    device: str | None = None,
    prompt: str | Prompting | None = None,
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    max_length: int | None = None,
    token_budget: int | None = None,
    packed_layers: bool | None = None,
    truncate_dim: int | None = None,
    layer: int | None = None,
    route: str | None = None,
    tokenizer: Any = None,
    candidates: str | Path | Sequence[str] | None = None,
    endpoint: EndpointOptions | None = None,
) -> Encoder:
    """Load a text embedding model, or wrap one that is already loaded.

    Args:
        model: a folder, a name, a loaded SentenceTransformer, an encoder, any object with a method
            ``encode(texts)`` (see `TextModel`), or a function from texts to vectors. A name is looked up as a
            local folder, in the hub cache, as the packaged model and on the hub, in that order;
            ``openai:MODEL`` and ``URL#MODEL`` are models behind an OpenAI-compatible endpoint.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``; None chooses the best available. A
            loaded model stays where it is.
        prompt: text put before every input, or a `Prompting`; None is the model's default prompt. For a
            language model that is not a SentenceTransformer, ``prompteol``, ``cot``, ``ke``, ``ck``,
            ``metaeol``, ``echo`` or a text with ``{sentence}`` in it reads sentences through that prompt.
        dtype: precision of the weights: ``float32``, ``float16`` or ``bfloat16``; ``tf32``
            is float32 weights multiplied as TF32 on CUDA. A loaded model keeps its own.
        revision: branch, tag or commit on the hub; a folder or a loaded model has none.
        trust_remote_code: run Python code from the model's repository.
        max_length: longest input in tokens, including special tokens; None is the model's
            own limit, which a loaded model always keeps.
        token_budget: tokens per batch; None chooses by device.
        packed_layers: compute float32 linear layers on a CPU through oneDNN, with weights packed once; None
            leaves it to the variable STICKYTOKEN_PACKED_LAYERS (0 or 1), or else to a measurement of half a
            second, whose result is kept in the cache folder.
        truncate_dim: read only so many first components of every vector, as a model that was trained with a
            Matryoshka loss is used; None reads all. A loaded SentenceTransformer is read as it is now, and
            keeps its own ``truncate_dim``.
        layer: read the vectors after so many layers, from 1, through the final norm, the pooling and later
            modules; None is the last layer. It is ``Prompting.layer``, which says what it means for a
            language model with a prompt.
        route: how an asymmetric model reads texts: ``query`` or ``document``, as `encode_query` and
            `encode_document` of sentence-transformers, or another route of its Router; None is the model's
            default route.
        tokenizer: of a model behind an endpoint or a function, which do not bring their own: an object, a
            folder, a hub name, ``tiktoken:NAME`` or a ``.tiktoken`` file.
        candidates: in place of a tokenizer that is secret: the strings to examine, or a file of them.
        endpoint: how to use a model behind an endpoint.

    Raises:
        ModelError: The model cannot be found, reached or used.
        InputError: An option is not supported, such as an unknown prompt name, precision or device. Options
            are checked before the model is loaded where possible.
    """
    if truncate_dim is not None:
        truncate_dim = whole_number("truncate_dim", truncate_dim, 1)
    spec = EncoderSpec(
        model=str(model),
        device=device,
        prompting=_prompting_of(prompt, layer),
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        max_length=max_length,
        token_budget=token_budget,
        packed_layers=packed_layers,
        truncate_dim=truncate_dim,
        route=route,
    )
    options: dict[str, Any] = asdict(spec) | asdict(spec.prompting)
    given = {name: options[name] for name in _OF_NAMED_MODELS if options[name] not in (None, False)}
    if isinstance(model, str) and names_endpoint(model):
        from stickytoken.encoders.endpoint.encoder import load_endpoint

        text, length = given.pop("prompt", None), given.pop("max_length", None)
        given.pop("truncate_dim", None)
        if given:
            raise InputError(
                f"{', '.join(given)} cannot be set on {model}, which is behind an endpoint: leave it out"
            )
        return load_endpoint(
            model,
            tokenizer,
            candidates=candidates,
            prompt=text,
            max_length=length,
            truncate_dim=truncate_dim,
            options=endpoint,
        )
    encoder: Encoder
    require_single_vectors_of(model)
    if isinstance(model, (str, Path)):
        _refuse(model, tokenizer=tokenizer, candidates=candidates, endpoint=endpoint)
        return load_from_spec(spec)
    if _is_sentence_transformer(model):
        _refuse(model, tokenizer=tokenizer, candidates=candidates, endpoint=endpoint)
        return _of_loaded(model, spec)
    # A function or a callable object, which a class and a torch module are not.
    if callable(model) and not (
        isinstance(model, type) or hasattr(model, "encode") or hasattr(model, "forward")
    ):
        vocabulary = vocabulary_of(tokenizer, candidates)
        own = FunctionModel(model, vocabulary, given.pop("max_length", None))
        _refuse(own.name, endpoint=endpoint)
        encoder = TextEncoder(own, given.pop("truncate_dim", None))
    else:
        encoder = model if is_encoder(model) else TextEncoder(model, given.pop("truncate_dim", None))
        _refuse(encoder.name, tokenizer=tokenizer, candidates=candidates, endpoint=endpoint)
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be set on {encoder.name}, a {type(model).__name__} that is already "
            "loaded: set it on the object and leave it out here"
        )
    return encoder


def _prompting_of(prompt: str | Prompting | None, layer: int | None) -> Prompting:
    prompting = prompt if isinstance(prompt, Prompting) else Prompting(prompt)
    if layer is None:
        layer = prompting.layer
    elif prompting.layer not in (None, layer):
        raise InputError(f"layer is {layer}, and the Prompting has layer {prompting.layer}: pass one of them")
    return prompting if layer is None else replace(prompting, layer=whole_number("layer", layer))


def _refuse(model: object, **options: Any) -> None:
    if given := [name for name, value in options.items() if value is not None]:
        raise InputError(
            f"{', '.join(given)} cannot be set on {model}, which is neither a model behind an endpoint "
            "nor a function: leave it out"
        )


def load_from_spec(spec: EncoderSpec) -> IdEncoder:
    if spec.dtype not in _DTYPES:
        raise InputError(f"dtype {spec.dtype!r} is unknown: use one of {', '.join(_DTYPES)}")
    if spec.max_length is not None and spec.max_length < 1:
        raise InputError(
            f"max_length is {spec.max_length}: pass at least 1, or leave it out for the model's own limit"
        )
    if spec.device is not None:
        resolution.require_device(spec.device)
    source, prompting = resolution.resolve_model(spec.model, spec.revision), spec.prompting
    resolution.require_embedding_model(source, spec.revision)
    folder, given = Path(source.location), prompting.prompt
    if source.origin is Origin.FOLDER:
        spec = replace(spec, model=str(folder.resolve()))
    saved: list[str] = []  # the types of the modules of a model that was saved with its prompt
    causal = given is not None and (prompts.is_template(given) or bool(prompting.given))
    if source.origin is not Origin.HUB and (folder / "modules.json").is_file():
        with suppress(ValueError, KeyError, TypeError):  # reported when the model is loaded
            modules = json.loads((folder / "modules.json").read_text("utf-8"))
            saved = [str(entry["type"]) for entry in modules]
        causal = saved[:1] == [_MODULE]
    if not causal:
        _refuse_prompt_options(prompting, source.name)
        return _load_plain(source, spec)
    if prompting.prompt_name is not None:
        raise InputError(
            f"{source.name!r} is a prompted language model, which has no named prompts: leave out the prompt "
            f"name {prompting.prompt_name!r}"
        )
    _refuse_truncation(spec, repr(source.name))
    return _load_causal(source, spec, [kind.rpartition(".")[2] for kind in saved])


def route_of(encoder: Encoder, *, described: bool = False) -> str | None:
    """Return the route of a model with several, or its description for a person; None without routes."""
    if not isinstance(encoder, RoutedEncoder) or encoder.route is None:
        return None
    return encoder.route.description if described else encoder.route.route


def reads_texts_only(model: AnyModel) -> bool:
    if isinstance(model, (str, Path)):
        return names_endpoint(str(model))
    return not _is_sentence_transformer(model) and not (is_encoder(model) and reads_ids(model))


def _is_sentence_transformer(model: object) -> TypeGuard[SentenceTransformer]:
    """Check the type without importing the library, which takes seconds."""
    return any(
        kind.__name__ == "SentenceTransformer" and kind.__module__.startswith("sentence_transformers.")
        for kind in type(model).__mro__
    )


def _of_loaded(model: SentenceTransformer, spec: EncoderSpec) -> IdEncoder:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

    config = getattr(getattr(model[0], "config", None), "_name_or_path", None) if len(model) else None
    name, options = Path(config).name if config else "model", spec.prompting
    if hasattr(type(model), "unguarded"):  # token ids would bypass the guard
        raise InputError(
            f"{name} is guarded, so that copies of a token would not reach it: pass its attribute unguarded"
        )
    device = spec.device
    if device is not None and str(model.device).split(":")[0] != device.split(":")[0]:
        raise InputError(f"the model is on {model.device}, not {device}: move it first with model.to()")
    if model.device.type == "meta":
        raise InputError(f"{name} is on the meta device, which holds no values: load it onto a real device")
    if spec.revision is not None:
        raise InputError(
            f"revision {spec.revision!r} cannot be used, since {name} is already loaded: leave out the "
            "revision"
        )
    kinds = [type(module) for module in model]
    if [f"{kind.__module__}.{kind.__name__}" for kind in kinds[:1]] != [_MODULE]:
        _refuse_prompt_options(options, name)
        return SentenceTransformerEncoder(
            model,
            name,
            prompt=_prompt_of(model, options, name),
            token_budget=spec.token_budget,
            packed_layers=spec.packed_layers,
            truncate_dim=spec.truncate_dim,
            layer=options.layer,
            route=spec.route,
        )
    _refuse_route(spec, name)
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder

    _refuse_truncation(spec, name)
    if model.truncate_dim is not None:
        raise InputError(
            f"{name} truncates its vectors to {model.truncate_dim}, and a model with a prompt is read whole: "
            "set its truncate_dim to None"
        )
    normalize = _normalizes([kind.__name__ for kind in kinds], name)
    if options != Prompting():
        raise InputError(f"{name} is already loaded with its prompt and layers: leave out the prompt options")
    module: Any = model[0]
    return CausalPromptEncoder(
        module.model,
        module.tokenizer,
        name,
        module.reading,
        token_budget=spec.token_budget,
        max_length=module.max_seq_length,
        normalize=normalize,
        packed_layers=spec.packed_layers,
    )


def _refuse_truncation(spec: EncoderSpec, name: str) -> None:
    if spec.truncate_dim is not None:
        raise InputError(
            f"truncate_dim is {spec.truncate_dim}, and {name} is a language model with a prompt, whose "
            "vectors are read whole: leave it out"
        )


def _normalizes(kinds: list[str], name: str) -> bool:
    if kinds not in (["CausalPrompt"], ["CausalPrompt", "Normalize"]):
        raise InputError(f"{name} has {', '.join(kinds)}: only Normalize is supported after a prompt")
    return len(kinds) > 1


def _refuse_prompt_options(options: Prompting, name: str) -> None:
    if options.given:
        asked = ", ".join(options.given)
        raise InputError(
            f"{asked} applies only to prompted language models, and {name!r} is not loaded as one: pass a "
            f"plain language model and a prompt ({', '.join(prompts.PROMPTS)}, or a text with {{sentence}})"
        )
    if options.prompt is not None and options.prompt.lower() in prompts.PROMPTS:
        warnings.warn(
            f"{name!r} is a SentenceTransformer: {options.prompt!r} is put before every text literally, "
            "and is not the name of a prompt",
            StickyTokenWarning,
            stacklevel=3,
        )


def _refuse_route(spec: EncoderSpec, name: str) -> None:
    if spec.route is not None:
        raise InputError(
            f"{name} is a prompted language model, which has no routes: leave out the route {spec.route!r}"
        )


def _load_causal(source: ModelSource, spec: EncoderSpec, saved: list[str]) -> IdEncoder:
    _refuse_route(spec, source.name)
    import torch
    from transformers import AutoModel, AutoTokenizer

    from stickytoken.encoders.causal_module import CausalPrompt, reading_for
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.prompted.model import find_decoder

    options, folder, local = spec.prompting, Path(source.location), source.origin is not Origin.HUB
    path = folder / CausalPrompt.config_file_name
    kept = bool(saved) and path.is_file()
    normalize = kept and _normalizes(saved, repr(source.name))
    if kept:
        if options != Prompting():
            raise InputError(
                f"{source.name!r} was saved with its prompt and layers: leave out the prompt options"
            )
        try:
            options = Prompting(**json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise ModelError(f"{path} is damaged: {error}") from error
    if options.prompt is None:
        known = ", ".join(prompts.PROMPTS)
        raise InputError(f"{source.name!r} is a language model and needs a prompt: {known}")
    prompt = prompts.find_prompt(options.prompt)
    prompts.require_contrast_options(options)
    if local and not resolution.has_weights(folder):
        raise ModelError(f"{source.name!r} has no weights (*.safetensors or *.bin)")
    place: dict[str, Any] = {"revision": spec.revision, "trust_remote_code": spec.trust_remote_code}
    place["local_files_only"] = local
    precision = Precision.TF32 if spec.dtype == Precision.TF32 else None
    dtype = torch.float32 if precision else getattr(torch, spec.dtype)
    with resolution.explained(source, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, **place)
    with resolution.loading_weights(source):
        model = AutoModel.from_pretrained(source.location, dtype=dtype, **place)
    model = model.to(spec.device or resolution.available_devices()[:2][-1]).eval()
    if precision:
        resolution.require_cuda(model.device.type, source.name)
    reading, choice = reading_for(find_decoder(model, source.name), prompt, options)
    encoder = CausalPromptEncoder(
        model,
        tokenizer,
        source.name,
        reading,
        token_budget=spec.token_budget,
        max_length=spec.max_length,
        normalize=normalize,
        precision=precision,
        packed_layers=spec.packed_layers,
    )
    encoder.spec = replace(
        spec,
        device=encoder.device,
        prompting=spec.prompting if kept else Prompting(**reading.options),
        layer_choice=LayerChoice.SAVED if kept else choice,
    )
    return encoder


def _load_plain(source: ModelSource, spec: EncoderSpec) -> IdEncoder:
    import torch
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

    folder, name = Path(source.location), source.name
    precision = Precision.TF32 if spec.dtype == Precision.TF32 else None
    dtype = "float32" if precision else spec.dtype
    described = (folder / "modules.json").is_file()
    if source.origin is Origin.FOLDER:
        if not described and not (folder / "config.json").is_file():
            if any((folder / file).is_file() for file in resolution.TOKENIZER_FILES):
                raise ModelError(f"{name!r} has a tokenizer but no model: detection needs the weights")
            raise ModelError(f"{name!r} has no model: it contains neither modules.json nor config.json")
        if not resolution.has_weights(folder):
            raise ModelError(f"{name!r} has no weights (*.safetensors or *.bin): detection needs them")
    with resolution.loading_weights(source):
        loaded = SentenceTransformer(
            source.location,
            device=spec.device,
            revision=spec.revision,
            trust_remote_code=spec.trust_remote_code,
            local_files_only=source.origin is not Origin.HUB,
            model_kwargs={"dtype": getattr(torch, dtype)},
        )
    set_precision(loaded, dtype, name)
    if folder.is_dir() and not described:
        pooling = getattr(loaded[-1], "pooling_mode", type(loaded[-1]).__name__)
        warnings.warn(
            f"{name!r} has no modules.json, so its pooling is a guess: {pooling}",
            StickyTokenWarning,
            stacklevel=2,
        )
    if precision:
        resolution.require_cuda(loaded.device.type, name)
    encoder = SentenceTransformerEncoder(
        loaded,
        name,
        prompt=_prompt_of(loaded, spec.prompting, name),
        token_budget=spec.token_budget,
        max_length=spec.max_length,
        precision=precision,
        packed_layers=spec.packed_layers,
        truncate_dim=spec.truncate_dim,
        layer=spec.prompting.layer,
        route=spec.route,
    )
    if dtype != "float32":
        try:  # so that an unsupported precision is reported before a run starts
            _ = encoder.dimension
        except torch.OutOfMemoryError:
            raise
        except ModelError as error:
            # torch raises RuntimeError for an unsupported operation or mixture of types.
            if not isinstance(error.__cause__, RuntimeError):
                raise
            reason = " ".join(str(error.__cause__).split())[:_SHOWN_REASON]
            raise ModelError(
                f"{name!r} does not support {dtype} on {encoder.device} ({reason}): use float32"
            ) from error
    encoder.spec = replace(
        spec,
        device=encoder.device,
        prompting=Prompting(encoder.prompt, layer=encoder.layer),
        truncate_dim=encoder.truncate_dim,
    )
    return encoder


def require_embedding_model(name: str, revision: str | None = None) -> None:
    """Refuse a named model that is a cross-encoder, a sparse or a multi-vector model, without loading it.

    Raises:
        ModelError: There is no such model, or it does not give one dense vector for a text.
    """
    if names_endpoint(name) or names_tiktoken(name):
        return
    resolution.require_embedding_model(resolution.resolve_model(name, revision), revision)


def require_model(name: str, revision: str | None = None) -> str:
    from transformers.utils.hub import cached_file

    source = resolution.resolve_model(name, revision)
    if source.origin is Origin.HUB:
        repositories = resolution.hub_repositories(name)
        *places, last = itertools.product(repositories, ("modules.json", "config.json"))
        with resolution.explained(source, "model"):
            for place, file in places:
                with suppress(OSError):  # raised if the file does not exist or cannot be reached
                    cached_file(place, file, revision=revision)
                    return name
            cached_file(*last, revision=revision)
    return name


def loaded_like(encoder: Encoder, folder: Path) -> IdEncoder:
    spec: EncoderSpec | None = getattr(encoder, "spec", None)
    if spec is None:
        raise ModelError(f"{encoder.name} was made from a model object: load it by name or from its folder")
    return load_from_spec(replace(spec, model=str(folder), revision=None, device=encoder.device))


def analyze_vocabulary(encoder: AnyModel | HuggingFaceTokenizer) -> Vocabulary:
    """Categorize every vocabulary entry of an encoder, a tokenizer, or a model that is named.

    Raises:
        InputError: The argument is not a model.
        ModelError: The model cannot be found, reached or used, or has no tokenizer.
    """
    if isinstance(encoder, (str, Path)):
        require_embedding_model(str(encoder))
        return categorize(resolution.load_tokenizer(encoder))
    return categorize(
        encoder if isinstance(encoder, HuggingFaceTokenizer) else load_encoder(encoder).tokenizer
    )


def _prompt_of(model: SentenceTransformer, prompting: Prompting, name: str) -> str | None:
    if prompting.prompt_name is None:
        return prompting.prompt
    named: dict[str, Any] = model.prompts
    if prompting.prompt_name not in named:
        known = ", ".join(sorted(named)) or "none"
        raise InputError(
            f"{name} has no prompt named {prompting.prompt_name!r}: use one of its own ({known})"
        )
    return str(named[prompting.prompt_name] or "")
