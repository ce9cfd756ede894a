"""The model of a run: loaded again as the run loaded it, compared with another."""

from __future__ import annotations

from dataclasses import asdict, replace

from stickytoken.detection.run import Run
from stickytoken.detection.schema import EndpointRecord, LoadingRecord, RunRecord
from stickytoken.encoders.endpoint.options import EndpointOptions
from stickytoken.encoders.loading.load import AnyModel, load_encoder
from stickytoken.encoders.prompting import Prompting
from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.errors import InputError, ModelError, RunError
from stickytoken.measurement.identity import differences
from stickytoken.measurement.records import MeasurementRecord
from stickytoken.methods.job import MethodSettings


def model_difference(record: MeasurementRecord, identity: EncoderIdentity) -> list[str] | None:
    """Name the parts in which a model's identity differs from that of a measured model.

    Returns:
        The names; empty for the same model, None if the record has none.
    """
    recorded = record.identity_parts.get("encoder")
    return differences(asdict(identity), recorded) if isinstance(recorded, dict) else None


def require_same_model(run: Run, encoder: Encoder) -> None:
    """Refuse a model that is not the model of a run.

    Raises:
        RunError: the model differs, or the run does not record its model.
    """
    different = model_difference(run.record, encoder.identity)
    if different is None:
        raise RunError(f"{run.path} does not record its model: run the detection again")
    if different:
        raise RunError(
            f"the run in {run.path} was made with another model than {encoder.name!r} (they differ in "
            f"{', '.join(different)}): pass the model of the run, with the same prompt and precision"
        )


def recorded_loading(run: RunRecord) -> LoadingRecord:
    """Return how the run's model was loaded; of a model object, its prompt and precision are known."""
    if run.model.loading is not None:
        return run.model.loading
    known = run.identity_parts.get("encoder", {})
    return LoadingRecord(**{name: known[name] for name in ("dtype", "prompt") if name in known})


def encoder_for(model: AnyModel | None, run: Run | None, purpose: str) -> Encoder:
    """Load the model that the caller passed, or else the model of the run, as the run loaded it.

    Args:
        model: anything that `load_encoder` takes.
        run: a finished run.
        purpose: name of the calling function, the subject of the message.

    Raises:
        InputError: both are None.
        ModelError: the model cannot be found or used.
        RunError: the model is not that of the run.
    """
    if model is None and run is None:
        raise InputError(f"{purpose} needs a model or a run: pass a model's name, folder or object, or run=")
    if run is None:
        return load_encoder(model)  # type: ignore[arg-type]
    encoder = _of_run(run) if model is None else load_encoder(model)
    require_same_model(run, encoder)
    return encoder


def _of_run(run: Run) -> Encoder:
    recorded = recorded_loading(run.record)
    prompting = Prompting(**recorded.prompting())
    try:
        if recorded.endpoint is not None:
            return load_recorded_endpoint(run.record.model.name, recorded, EndpointOptions())
        return load_encoder(
            run.record.model.name, prompt=prompting, dtype=recorded.dtype, revision=recorded.revision
        )
    except ModelError as error:
        raise ModelError(f"the model of {run.path}: {error} (if it has moved, pass it as encoder)") from error


def load_recorded_endpoint(name: str, recorded: LoadingRecord, options: EndpointOptions) -> Encoder:
    """Load the model behind an endpoint of a run.

    Args:
        name: of the model; it may be at another address by now.
        recorded: how the run loaded it.
        options: of the endpoint; what they leave open is as in the run.

    Raises:
        ModelError: the server cannot be reached or used.
    """
    known = recorded.endpoint or EndpointRecord()
    return load_encoder(
        name,
        prompt=recorded.prompt,
        max_length=known.max_length,
        tokenizer=known.tokenizer,
        candidates=known.candidates,
        endpoint=replace(
            options,
            dimensions=options.dimensions or known.dimensions,
            key_variable=options.key_variable or known.key_variable,
        ),
    )


def restored_settings(run: Run) -> MethodSettings:
    """Return the settings of a run.

    Raises:
        RunError: they cannot be used.
    """
    try:
        return run.settings.restored()
    except (TypeError, InputError) as error:
        raise RunError(f"the settings in {run.path} cannot be used: {error}") from error


def worst_tokens(run: Run, count: int) -> list[int]:
    """Return the ids of the sticky tokens of a run, the worst first.

    Args:
        run: a finished run.
        count: at most this many.

    Raises:
        InputError: the run has none.
    """
    found: list[int] = run.sticky["token_id"].to_list()
    if not found:
        raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to look at")
    return found[:count]
