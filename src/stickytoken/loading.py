"""Load encoders by name, folder or object."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, overload

from stickytoken.encoders.compute import devices
from stickytoken.encoders.endpoint import names_endpoint
from stickytoken.encoders.endpoint.vocabulary import names_tiktoken, vocabulary_of
from stickytoken.encoders.files import resolution, tokenizer_loading
from stickytoken.encoders.files.description import require_single_vectors_of
from stickytoken.encoders.files.resolution import ModelSource, Origin
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.encoders.files.stored_rows import FLOATING_TYPES, read_stored_tensors, static_matrix
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.protocol import Encoder, IdEncoder, is_encoder, reads_ids
from stickytoken.encoders.text_encoder import FunctionModel, TextEncoder, TextFunction, TextModel
from stickytoken.errors import InputError, ModelError, warn
from stickytoken.language_models.loading import (
    PROMPT_MODULE,
    asks_for_prompt,
    encoder_of_module,
    load_language_model,
)
from stickytoken.language_models.prompts import PROMPTS
from stickytoken.settings import part_of
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.settings.loading import LoadingSettings
from stickytoken.settings.prompting import Prompting
from stickytoken.validation import closest_names, whole_number
from stickytoken.vocabulary import Vocabulary, categorize

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

# Maximum number of characters that a message quotes from another library's error.
_SHOWN_REASON = 300
# An error lists all prompt names of a model if there are at most this many, and otherwise only the names that
# resemble the mistyped name.
_LISTED_PROMPTS = 8


class DeferredModel:
    """A model that is loaded when it is first needed, after all checks that need no model.

    Attributes:
        reads_texts_only: whether the model's encoder will read only texts, not token ids.
        loaded: the encoder; None until the model is loaded.
        when_loaded: functions that are called with the encoder as soon as it is loaded.
    """

    def __init__(self, load: Callable[[], Encoder], *, reads_texts_only: bool) -> None:
        self._load = load
        self.reads_texts_only = reads_texts_only
        self.loaded: Encoder | None = None
        self.when_loaded: list[Callable[[Encoder], None]] = []

    def load(self) -> Encoder:
        """Load the model, or return it if it is loaded."""
        if self.loaded is None:
            self.loaded = self._load()
            for call in self.when_loaded:
                call(self.loaded)
        return self.loaded


AnyModel: TypeAlias = "str | Path | SentenceTransformer | Encoder | TextModel | TextFunction | DeferredModel"

_DTYPES = ("float32", "float16", "bfloat16", "tf32")
# Settings that `load_encoder` ignores if the model is already loaded, as its docstring says.
_IGNORED_AFTER_LOADING = ("dtype", "trust_remote_code")


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
    truncate_dim: int | None = ...,
    layer: int | None = ...,
    route: str | None = ...,
) -> IdEncoder: ...
@overload
def load_encoder(
    model: str | Encoder | TextModel | TextFunction | DeferredModel,
    *,
    prompt: str | Prompting | None = ...,
    max_length: int | None = ...,
    truncate_dim: int | None = ...,
    tokenizer: Any = ...,
    candidates: str | Path | Sequence[str] | None = ...,
    endpoint: EndpointOptions | None = ...,
) -> Encoder: ...
def load_encoder(  # noqa: PLR0913 - all of them keyword-only, one decision each
    model: AnyModel,
    *,
    device: str | None = None,
    prompt: str | Prompting | None = None,
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    max_length: int | None = None,
    token_budget: int | None = None,
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
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``; if None, the best device available. A loaded model
            stays on its device.
        prompt: text put before every input, or a `Prompting`; if None, the model's default prompt. A single
            word is taken as the name of one of the model's saved prompts. A language model that is not a
            SentenceTransformer reads sentences through a prompt: ``prompteol``, ``cot``, ``ke``, ``ck``,
            ``metaeol``, ``echo`` or a text that contains ``{sentence}``.
        dtype: precision of the weights: ``float32``, ``float16`` or ``bfloat16``; ``tf32`` means float32
            weights multiplied as TF32 on CUDA. A loaded model keeps its own precision.
        revision: branch, tag or commit on the hub; not for folders or loaded models.
        trust_remote_code: whether to run Python code from the model's repository.
        max_length: maximum input length in tokens, including special tokens; if None, the model's own limit,
            which a loaded model always keeps.
        token_budget: maximum number of tokens per batch; if None, a number that suits the device.
        truncate_dim: keep only this many leading components of each vector, as models trained with a
            Matryoshka loss allow; if None, keep all. A loaded SentenceTransformer keeps its own
            ``truncate_dim``.
        layer: number of layers to run (at least 1); the final norm, the pooling and later modules follow
            these layers. If None, all layers are run. See ``Prompting.layer`` for its meaning in a language
            model with a prompt.
        route: the route that texts take in an asymmetric model: ``query`` or ``document``, as with
            `encode_query` and `encode_document` of sentence-transformers, or another route of the model's
            Router. If None, the model's default route.
        tokenizer: an object, a folder, a hub name or ``tiktoken:NAME``. Only a model behind an endpoint and a
            function need it, because any other model has its own tokenizer.
        candidates: strings to examine if the tokenizer is unpublished, or a file with one string per line.
        endpoint: key, price and limits of a model behind an endpoint; if None, the defaults.

    Raises:
        ModelError: The model cannot be found, reached or used.
        InputError: An option is not supported, such as an unknown prompt name, precision or device. Where
            possible, options are checked before the model is loaded.

    Examples:
        >>> import numpy as np
        >>> def embed(texts):
        ...     return np.array([[len(text), text.count("e")] for text in texts], dtype=np.float32)
        >>> encoder = stickytoken.load_encoder(embed, candidates=["river", "the"])
        >>> encoder.encode(["the river"])
        array([[9., 2.]], dtype=float32)
    """
    if isinstance(model, DeferredModel):
        model = model.load()
    spec = EncoderSpec(
        model=str(model),  # not used for a loaded model, for which only the options of the spec matter
        device=None if device is None else str(device),
        prompting=_combine_into_prompting(prompt, layer),
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        max_length=max_length,
        token_budget=token_budget,
        truncate_dim=truncate_dim,
        route=route,
        tokenizer=tokenizer,
        candidates=candidates,
        endpoint=endpoint,
    )
    if isinstance(model, (str, Path)):
        return load_from_spec(spec)
    require_single_vectors_of(model)
    if _is_sentence_transformer(model):
        return _encoder_of_sentence_transformer(model, spec)
    if _is_function(model):
        return _encoder_of_function(model, spec)
    return _encoder_of_object(model, spec)


def _list_passed_options(spec: EncoderSpec) -> list[str]:
    options = asdict(part_of(spec, LoadingSettings)) | asdict(spec.prompting)
    unset = (None, False)  # every option has one of these defaults
    return [
        name for name, value in options.items() if value not in unset and name not in _IGNORED_AFTER_LOADING
    ]


def _load_endpoint(spec: EncoderSpec) -> Encoder:
    from stickytoken.encoders.endpoint.encoder import load_endpoint

    supported = ("prompt", "query_prompt", "max_length", "truncate_dim")
    unsupported = [name for name in _list_passed_options(spec) if name not in supported]
    if spec.dtype != "float32":  # the server chooses the precision, and sends float32
        unsupported.append("dtype")
    if unsupported:
        raise InputError(
            f"{', '.join(unsupported)} cannot be set on {spec.model}, which is behind an endpoint: leave it "
            "out"
        )
    for prompt in (spec.prompting.prompt, spec.prompting.query_prompt):
        if prompt is not None and _is_prompt_name(prompt):
            # The names of prompts that a server may have are unknown.
            raise _make_unknown_prompt_error(prompt, spec.model, known_names=())
    return load_endpoint(spec)


def _is_function(model: object) -> TypeGuard[TextFunction]:
    is_model = hasattr(model, "encode") or hasattr(model, "forward")
    return callable(model) and not isinstance(model, type) and not is_model


def _encoder_of_function(function: TextFunction, spec: EncoderSpec) -> Encoder:
    vocabulary = vocabulary_of(spec.tokenizer, spec.candidates)
    model = FunctionModel(function, vocabulary, spec.max_length)
    # The options `tokenizer` and `candidates` are for functions too; only `endpoint` is refused.
    refuse_endpoint_options(model.name, spec, ("endpoint",))
    encoder = TextEncoder(model, spec.truncate_dim)
    _refuse_loading_options(function, encoder.name, spec, supported=("max_length", "truncate_dim"))
    return encoder


def _encoder_of_object(model: Encoder | TextModel | TextFunction, spec: EncoderSpec) -> Encoder:
    encoder: Encoder
    supported: tuple[str, ...] = ()
    if is_encoder(model):
        encoder = model
    else:
        encoder = TextEncoder(model, spec.truncate_dim)
        supported = ("truncate_dim",)
    refuse_endpoint_options(encoder.name, spec)
    _refuse_loading_options(model, encoder.name, spec, supported=supported)
    return encoder


def _refuse_loading_options(model: object, name: str, spec: EncoderSpec, supported: tuple[str, ...]) -> None:
    ignored = [option for option in _list_passed_options(spec) if option not in supported]
    if ignored:
        raise InputError(
            f"{', '.join(ignored)} cannot be set on {name}, a {type(model).__name__} that is already "
            "loaded: set it on the object and leave it out here"
        )


def refuse_endpoint_options(
    model: object, options: object, names: Sequence[str] = ("tokenizer", "candidates", "endpoint")
) -> None:
    """Raise an InputError if an option is set that exists only for functions and for endpoint models."""
    passed = [name for name in names if getattr(options, name) is not None]
    if passed:
        raise InputError(
            f"{', '.join(passed)} cannot be set on {model}, because these options exist only for functions "
            "and for models behind an endpoint: leave them out"
        )


def _combine_into_prompting(prompt: str | Prompting | None, layer: int | None) -> Prompting:
    prompting = prompt if isinstance(prompt, Prompting) else Prompting(prompt)
    if layer is None:
        layer = prompting.layer
    elif prompting.layer not in (None, layer):
        raise InputError(f"layer is {layer}, and the Prompting has layer {prompting.layer}: pass only one")
    return prompting if layer is None else replace(prompting, layer=whole_number("layer", layer))


def load_from_spec(spec: EncoderSpec) -> Encoder:
    """Load a model by name or folder, or connect to a model behind an endpoint.

    Raises:
        ModelError: the model cannot be found, reached or used.
        InputError: an option has an invalid value, or does not apply to this model.
    """
    if spec.dtype is None:  # the user has chosen no dtype
        spec = replace(spec, dtype="float32")
    if names_endpoint(spec.model):
        return _load_endpoint(spec)
    refuse_endpoint_options(spec.model, spec)
    if spec.dtype not in _DTYPES:
        raise InputError(f"dtype {spec.dtype!r} is unknown: use one of {', '.join(_DTYPES)}")
    if spec.device is not None:
        devices.require_device(spec.device)
    source = resolution.resolve_model(spec.model, spec.revision)
    resolution.require_embedding_files(source, spec.revision)
    folder = Path(source.location)
    if source.origin is Origin.FOLDER:
        spec = replace(spec, model=str(folder.resolve()))
    is_local = source.origin is not Origin.HUB
    # Types of the modules of a saved SentenceTransformer, in their order; empty for any other model.
    saved_modules: list[str] = []
    if is_local and (folder / "modules.json").is_file():
        with suppress(ValueError, KeyError, TypeError):  # a damaged file is reported when the model is loaded
            modules = json.loads((folder / "modules.json").read_text("utf-8"))
            saved_modules = [str(module["type"]) for module in modules]
        # A language model that was saved with a prompt begins with the module that inserts the prompt.
        is_language_model = saved_modules[:1] == [PROMPT_MODULE]
    else:
        is_language_model = asks_for_prompt(spec.prompting)
    if is_language_model:
        return load_language_model(source, spec, saved_modules)
    _refuse_prompt_options(spec.prompting, source.name)
    prompt = spec.prompting.prompt
    has_no_prompts = is_local and not saved_modules
    if has_no_prompts and prompt is not None and _is_prompt_name(prompt):
        # The prompt may be the mistyped name of a prompt for language models.
        raise _make_unknown_prompt_error(prompt, repr(source.name), PROMPTS)
    return _load_plain(source, spec)


def reads_texts_only(model: AnyModel) -> bool:
    """Return whether a model's encoder reads only texts, not token ids, without loading the model."""
    if isinstance(model, DeferredModel):
        return model.reads_texts_only
    if isinstance(model, (str, Path)):
        return names_endpoint(str(model))
    return not _is_sentence_transformer(model) and not (is_encoder(model) and reads_ids(model))


def _is_sentence_transformer(model: object) -> TypeGuard[SentenceTransformer]:
    # Classes are compared by name, because importing sentence-transformers takes seconds.
    for ancestor in type(model).__mro__:
        is_of_library = ancestor.__module__.startswith("sentence_transformers.")
        if is_of_library and ancestor.__name__ == "SentenceTransformer":
            return True
    return False


def _encoder_of_sentence_transformer(model: SentenceTransformer, spec: EncoderSpec) -> IdEncoder:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

    refuse_endpoint_options(model, spec)
    first_module: Any = model[0] if len(model) else None  # the encoder refuses a model without modules
    # A SentenceTransformer has no name, but the transformers model inside may have the name or folder that it
    # was loaded from.
    location = getattr(getattr(first_module, "config", None), "_name_or_path", None)
    name = _name_of_location(location) if location else "model"
    _require_usable_model(model, spec, name)
    first_class = type(first_module)
    if f"{first_class.__module__}.{first_class.__name__}" == PROMPT_MODULE:
        return encoder_of_module(model, spec, name)
    _refuse_prompt_options(spec.prompting, name)
    # A loaded model keeps its own precision and maximum length.
    options = replace(_replace_prompt_names_by_texts(spec, model, name), dtype=None, max_length=None)
    return SentenceTransformerEncoder(model, name, options)


def _name_of_location(location: str) -> str:
    path = Path(location)
    is_hub_name = len(path.parts) == 2 and not path.is_absolute() and not path.exists()
    if not is_hub_name:
        return path.name
    # Names without an organisation are looked for under that of sentence-transformers.
    return location.removeprefix("sentence-transformers/")


def _require_usable_model(model: SentenceTransformer, spec: EncoderSpec, name: str) -> None:
    if hasattr(type(model), "unguarded"):  # the guard cleans texts, but would not clean token ids
        raise InputError(
            f"{name} is guarded, so copies of a token would not reach the model: pass its attribute unguarded"
        )
    for method in ("encode", "encode_query", "encode_document"):
        if _replaces_method(model, method):
            raise ModelError(
                f"{name} is a {type(model).__name__} with its own {method}, which token ids would bypass: to "
                f"measure texts, pass the function model.{method} and tokenizer=model.tokenizer"
            )
    device = spec.device
    # Only the types of the devices are compared, because "cuda" may mean "cuda:1".
    if device is not None and str(model.device).split(":")[0] != device.split(":")[0]:
        raise InputError(f"the model is on {model.device}, not {device}: move it first with model.to()")
    if model.device.type == "meta":
        raise InputError(f"{name} is on the meta device, which holds no values: load it onto a real device")
    if spec.revision is not None:
        raise InputError(
            f"revision {spec.revision!r} cannot be used, since {name} is already loaded: leave out the "
            "revision"
        )


def _replaces_method(model: SentenceTransformer, method: str) -> bool:
    # Whether a subclass, or the object itself, has another method than SentenceTransformer.
    from sentence_transformers import SentenceTransformer

    function = getattr(getattr(model, method), "__func__", None)
    return function is not getattr(SentenceTransformer, method)


def _refuse_prompt_options(options: Prompting, name: str) -> None:
    if options.decoder_options:
        names = ", ".join(options.decoder_options)
        raise InputError(
            f"{names} applies only to prompted language models, and {name!r} is not loaded as one: pass a "
            f"plain language model and a prompt ({', '.join(PROMPTS)}, or a text with {{sentence}})"
        )


def _load_plain(source: ModelSource, spec: EncoderSpec) -> IdEncoder:
    """Load a SentenceTransformer, or a transformers model with the pooling that the library guesses."""
    import torch
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

    folder = Path(source.location)
    name = source.name
    dtype = spec.weight_dtype
    if source.origin is Origin.FOLDER:
        _require_model_files(folder, name)
    with resolution.loading_weights(source):
        model = SentenceTransformer(
            source.location,
            device=spec.device,
            revision=spec.revision,
            trust_remote_code=spec.trust_remote_code,
            local_files_only=source.origin is not Origin.HUB,
            model_kwargs={"dtype": getattr(torch, dtype)},
        )
    set_precision(model, dtype, name)
    if folder.is_dir() and not (folder / "modules.json").is_file():
        pooling = getattr(model[-1], "pooling_mode", type(model[-1]).__name__)
        warn(f"{name!r} has no modules.json, so its pooling is a guess: {pooling}")
    if spec.precision is not None:  # TF32 exists on CUDA only
        devices.require_cuda(model.device.type, name)
    # The encoder of texts without a role is made first. Its method `in_role` makes the encoders of all roles,
    # which share the model.
    options = replace(_replace_prompt_names_by_texts(spec, model, name), role=None)
    encoder = SentenceTransformerEncoder(model, name, options)
    if dtype != "float32":
        _require_supported_dtype(encoder, dtype)
    # How to load the same encoder again, such as in a worker.
    encoder.spec = replace(encoder.options, device=encoder.device)
    return encoder.in_role(spec.role)


def set_precision(model: SentenceTransformer, dtype: str, name: str) -> None:
    """Convert all modules outside the backbone to `dtype`, and check that the backbone was loaded as `dtype`.

    Raises:
        ModelError: the backbone has another data type, because its class ignores the requested one.
    """
    import torch
    from transformers import PreTrainedModel

    asked_dtype = getattr(torch, dtype)
    backbone_weights: set[int] = set()  # `id()` of each weight in the backbone
    for module in model.modules():
        if not isinstance(module, PreTrainedModel):  # not the backbone
            continue
        dtypes = [weight.dtype for weight in module.parameters() if weight.is_floating_point()]
        if dtypes and asked_dtype not in dtypes:
            loaded_dtype = str(dtypes[0]).removeprefix("torch.")
            raise ModelError(
                f"{name!r} cannot be loaded in {dtype}, because its {type(module).__name__} always loads in "
                f"{loaded_dtype}: pass {loaded_dtype}"
            )
        backbone_weights.update(map(id, module.parameters()))
    for weight in model.parameters():
        if weight.is_floating_point() and id(weight) not in backbone_weights:
            weight.data = weight.data.to(asked_dtype)


def _require_model_files(folder: Path, name: str) -> None:
    """Check that a folder has a model with weights that sentence-transformers can load.

    Raises:
        ModelError: the model or its weights are missing, or sentence-transformers cannot load its format.
    """
    has_model = (folder / "modules.json").is_file() or (folder / "config.json").is_file()
    if not has_model:
        if any((folder / file).is_file() for file in tokenizer_loading.TOKENIZER_FILES):
            raise ModelError(f"{name!r} has a tokenizer but no model: detection needs the weights")
        raise ModelError(f"{name!r} has no model: it contains neither modules.json nor config.json")
    if not resolution.has_weights(folder):
        raise ModelError(f"{name!r} has no weights (*.safetensors or *.bin): detection needs them")
    weights = folder / "model.safetensors"
    try:
        token_vectors = static_matrix(read_stored_tensors(weights)) if weights.is_file() else None
    except ModelError:  # a damaged file, which is reported when it is loaded
        return
    if token_vectors is None:  # not a model of model2vec
        return
    if not (folder / "modules.json").is_file():
        raise ModelError(
            f"{name!r} is a model2vec folder without modules.json, so sentence-transformers cannot load it: "
            "load it with model2vec, and save it with save_pretrained"
        )
    if token_vectors.dtype not in FLOATING_TYPES:
        raise ModelError(
            f"{name!r} stores its token vectors as {token_vectors.dtype}, which sentence-transformers cannot "
            "load: save them as float32"
        )


def _require_supported_dtype(encoder: SentenceTransformerEncoder, dtype: str) -> None:
    try:
        _ = encoder.dimension  # computed by encoding a text, which fails if the dtype is not supported
    except ModelError as error:
        # torch raises RuntimeError for an unsupported operation or mixture of types, but not only for these.
        if not isinstance(error.__cause__, RuntimeError):
            raise
        reason = " ".join(str(error.__cause__).split())[:_SHOWN_REASON]
        raise ModelError(
            f"{encoder.name!r} fails in {dtype} on {encoder.device} ({reason}): try float32"
        ) from error


def require_embedding_model(name: str, revision: str | None = None) -> None:
    """Check that a model gives one dense vector per text, without loading the model.

    Names of endpoints and of tokenizers of tiktoken pass unchecked, because they have no model files to read.

    Raises:
        ModelError: There is no such model, or it does not give one dense vector per text.
    """
    has_no_model_files = names_endpoint(name) or names_tiktoken(name)
    if has_no_model_files:
        return
    resolution.require_embedding_files(resolution.resolve_model(name, revision), revision)


def require_model(name: str, revision: str | None = None) -> None:
    """Check that a model exists, without loading it.

    Raises:
        ModelError: there is no such model, or it cannot be reached.
    """
    source = resolution.resolve_model(name, revision)
    if source.origin is Origin.HUB:
        with resolution.explained(source, "model"):
            _require_hub_files(name, revision)


def _require_hub_files(name: str, revision: str | None) -> None:
    from transformers.utils.hub import cached_file

    repositories = resolution.hub_repositories(name)  # a short name may stand for several repositories
    *earlier_files, last_file = itertools.product(repositories, ("modules.json", "config.json"))
    for repository, file in earlier_files:
        with suppress(OSError):  # raised if the file does not exist or cannot be reached
            cached_file(repository, file, revision=revision)
            return
    cached_file(*last_file, revision=revision)  # raises an error if the last file doesn't exist either


def analyze_vocabulary(encoder: AnyModel | HuggingFaceTokenizer) -> Vocabulary:
    """Categorize all vocabulary entries of a tokenizer, an encoder, or a model (an object or a name).

    Raises:
        InputError: The argument is not a model.
        ModelError: The model cannot be found, reached or used, or has no tokenizer.

    Examples:
        >>> vocabulary = stickytoken.analyze_vocabulary(model)
        >>> len(vocabulary.tokens), len(vocabulary.available)
        (30522, 23699)
    """
    if isinstance(encoder, (str, Path)):
        require_embedding_model(str(encoder))
        return categorize(tokenizer_loading.load_tokenizer(encoder))
    if isinstance(encoder, HuggingFaceTokenizer):
        return categorize(encoder)
    return categorize(load_encoder(encoder).tokenizer)


def _replace_prompt_names_by_texts(spec: EncoderSpec, model: SentenceTransformer, name: str) -> EncoderSpec:
    # A prompt in the spec may be the name of one of the model's saved prompts.
    saved_prompts: dict[str, Any] = model.prompts
    prompt_name = spec.prompting.prompt_name
    if prompt_name is None:
        prompt = _find_prompt_text(model, spec.prompting.prompt, name)
    elif prompt_name in saved_prompts:
        prompt = str(saved_prompts[prompt_name] or "")  # a saved prompt may be None
    else:
        raise _make_unknown_prompt_error(prompt_name, name, saved_prompts)
    query_prompt = _find_prompt_text(model, spec.prompting.query_prompt, name)
    prompting = Prompting(prompt, query_prompt=query_prompt, layer=spec.prompting.layer)
    return replace(spec, prompting=prompting)


# A prompt of this form (one word) is a name; any other prompt is a text.
_PROMPT_NAME = re.compile(r"[A-Za-z0-9_-]+")


def _is_prompt_name(prompt: str) -> bool:
    return _PROMPT_NAME.fullmatch(prompt) is not None


def _find_prompt_text(model: SentenceTransformer, prompt: str | None, name: str) -> str | None:
    saved_prompts: dict[str, Any] = model.prompts
    if prompt is None or not _is_prompt_name(prompt):
        return prompt
    # sentence-transformers gives every model prompts named query and document, with empty texts.
    texts_by_name = {key: str(text) for key, text in saved_prompts.items() if text}
    if prompt in texts_by_name:
        return texts_by_name[prompt]
    # A run records the text of a prompt, not its name. The text of a prompt may be a single word, which looks
    # like a name.
    if prompt in texts_by_name.values():
        return prompt
    raise _make_unknown_prompt_error(prompt, name, texts_by_name)


def _make_unknown_prompt_error(prompt: str, model_name: str, known_names: Iterable[str]) -> InputError:
    names = sorted(known_names)
    if not names:
        choices = "it has no named prompts"
    elif len(names) <= _LISTED_PROMPTS:
        choices = f"its prompts are {', '.join(names)}"
    else:
        examples = closest_names(prompt, names) or names[:_LISTED_PROMPTS]
        choices = f"it has {len(names)}, such as {', '.join(examples)}"
    return InputError(
        f"{model_name} has no prompt named {prompt!r}: {choices}. A text to put before every input has more "
        f"than one word or ends with a space or a colon, such as {f'{prompt}: '!r}"
    )
