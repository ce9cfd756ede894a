"""Whether a model is the one that a run looked at."""

from __future__ import annotations

from dataclasses import asdict

from stickytoken.detection.run import Run
from stickytoken.detection.schema import RunRecord
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import RunError
from stickytoken.measurement.identity import differences


def model_difference(record: RunRecord, encoder: Encoder) -> list[str] | None:
    """What sets an encoder apart from that of a run.

    Returns:
        Names of the parts of `EncoderIdentity` that differ, none where it is the same model; None where the
        run does not say which model it looked at.
    """
    recorded = record.identity_parts.get("encoder")
    return differences(asdict(encoder.identity), recorded) if isinstance(recorded, dict) else None


def require_same_model(run: Run, encoder: Encoder) -> None:
    """Refuse a model that is not the one of a run.

    Raises:
        RunError: names what differs, or says that the run does not name its model.
    """
    different = model_difference(run.record, encoder)
    if different is None:
        raise RunError(f"{run.path} does not say which model it looked at: run the detection again")
    if different:
        raise RunError(
            f"the run in {run.path} is of another model than {encoder.name!r} (they differ in "
            f"{', '.join(different)}): pass the model of the run, with the same prompt and precision"
        )
