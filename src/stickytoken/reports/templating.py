"""Templates of pages: everything is escaped, token text is visible, numbers are readable."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from stickytoken.reports._escaping import commands, cosine, finalized, flowing, number, plain, spaced

_OWN = "stickytoken.reports"


@cache
def environment(package: str = _OWN) -> Environment:
    """Return the environment of a package's templates, which may import those of the reports."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, _OWN))]),
        autoescape=True,
        finalize=finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["commands"] = commands
    environment.filters["cosine"] = cosine
    environment.filters["flowing"] = flowing
    environment.filters["number"] = number
    environment.filters["plain"] = plain
    environment.filters["spaced"] = spaced
    return environment


@cache
def packaged(name: str, package: str = _OWN) -> str:
    """Read a style sheet or script that lies beside the templates of a package."""
    return (files(package) / "templates" / name).read_text("utf-8")
