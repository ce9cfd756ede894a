"""Open data sets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stickytoken.data.rows import one_line
from stickytoken.errors import InputError, require_package

HUB = "hub:"
"""Prefix of a source that is a Hub dataset."""
_USUAL_SPLIT = "train"


def hub_parts(name: str) -> tuple[str, str]:
    """Check that the hub can be read, and split ``REPOSITORY@SPLIT``. A split that isn't named is empty."""
    repository, _, split = name.partition("@")
    if not repository.strip():
        raise InputError(f"{HUB + name!r} names no data set: pass hub:REPOSITORY, or hub:REPOSITORY@SPLIT")
    require_package("datasets", f"reading {repository} from the hub", "hub")
    return repository, split


@contextmanager
def open_hub(name: str) -> Iterator[Any]:
    """Context manager that opens a Hub dataset, named as ``REPOSITORY`` or ``REPOSITORY@SPLIT``.

    If the dataset has several configurations, the English one is opened. If no split is named, the only split
    is opened, or ``train`` if there are several.
    """
    repository, split = hub_parts(name)
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        configurations = datasets.get_dataset_config_names(repository)
        english_configurations = [english for english in ("en", "en-en") if english in configurations]
        configuration = english_configurations[0] if english_configurations else None  # None: the default
        if not split:
            splits = datasets.get_dataset_split_names(repository, configuration)
            if len(splits) > 1 and _USUAL_SPLIT not in splits:
                raise InputError(
                    f"which split of {repository!r}? It has {', '.join(splits)}: pass hub:{repository}@SPLIT"
                )
            split = _USUAL_SPLIT if _USUAL_SPLIT in splits else splits[0]
        yield datasets.load_dataset(repository, configuration, split=split, streaming=True)
    except (OSError, ValueError, LookupError, RuntimeError, DatasetsError) as error:
        data_set = f"{repository!r} (split {split!r})" if split else repr(repository)
        reason = one_line(error.__cause__ or error)  # the cause, if there is one, says what went wrong
        raise InputError(f"the data set {data_set} cannot be read: {reason}") from error
