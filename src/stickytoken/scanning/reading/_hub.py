"""Documents of a data set of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stickytoken.errors import InputError, require_package
from stickytoken.scanning.reading.columns import Place, Wanted, choose_columns, record_of
from stickytoken.scanning.reading.documents import Collection, Meter, Numbering, Record

HUB = "hub:"
_USUAL_SPLIT = "train"


def hub_collection(name: str, wanted: Wanted) -> Collection:
    """Return the documents of ``REPOSITORY`` or ``REPOSITORY@SPLIT``, read as a stream."""
    require_package("datasets", f"reading {name} from the hub", "hub")
    repository, _, split = name.partition("@")
    if not repository.strip():
        raise InputError(f"{HUB + name!r} names no data set: pass hub:REPOSITORY, or hub:REPOSITORY@SPLIT")

    def read(meter: Meter) -> Iterator[Record]:
        return _records(repository, split, wanted, meter)

    return Collection(f"{HUB}{name}", read, f"{HUB}{name}")


def _records(repository: str, split: str, wanted: Wanted, meter: Meter) -> Iterator[Record]:
    import datasets
    from datasets.exceptions import DatasetsError

    numbering = Numbering()
    try:
        loaded = datasets.load_dataset(repository, split=split or None, streaming=True)
        if isinstance(loaded, Mapping):
            loaded = _only_split(loaded, repository)
        rows: Iterator[Mapping[str, Any]] = iter(loaded)
        first = next(rows, None)
        if first is None:
            return
        textual = [name for name, value in first.items() if isinstance(value, str)]
        columns = choose_columns(list(first), wanted, repository, textual)
        info = loaded.info.splits
        meter.total = info[str(loaded.split)].num_examples if info and str(loaded.split) in info else None
        for values in _with(first, rows):
            meter.done += 1
            number = numbering.take()
            yield record_of(values, columns, number, None, Place(row=number + 1))
    except (OSError, ValueError, LookupError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise InputError(f"the data set {repository!r} cannot be read: {reason}") from error


def _only_split(splits: Mapping[str, Any], repository: str) -> Any:
    if len(splits) == 1:
        return next(iter(splits.values()))
    if _USUAL_SPLIT in splits:
        return splits[_USUAL_SPLIT]
    raise InputError(
        f"which split of {repository!r}? It has {', '.join(splits)}: pass hub:{repository}@SPLIT"
    )


def _with(first: Mapping[str, Any], rest: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    yield first
    yield from rest
