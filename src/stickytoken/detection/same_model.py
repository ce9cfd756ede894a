"""Compare a model with the model of a run."""

from __future__ import annotations

from dataclasses import asdict

from stickytoken.detection.run import Run
from stickytoken.detection.schema import RunRecord
from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.errors import RunError
from stickytoken.measurement.identity import differences


def model_difference(record: RunRecord, identity: EncoderIdentity) -> list[str] | None:
    """Name the parts in which a model's identity differs from that of a run's model.

    Returns:
        The names; empty for the same model, None if the run does not record its model.
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
            f"the run in {run.path} is of another model than {encoder.name!r} (they differ in "
            f"{', '.join(different)}): pass the model of the run, with the same prompt and precision"
        )
