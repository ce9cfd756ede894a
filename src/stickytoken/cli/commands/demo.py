"""stickytoken demo: serve the web app."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stickytoken.cli._loading import collector_paused, command, load_for, require_found
from stickytoken.cli.options.model import EndpointLoadingOptions, PromptingOptions
from stickytoken.cli.options.output import (
    Format,
    OutputFormat,
    VerbosityOptions,
    model_option,
    output_option,
    texts_option,
)
from stickytoken.cli.output.console import inform, print_json, print_line, status
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.demo.context import Context, RunLibrary, Startup
    from stickytoken.demo.server import Served
    from stickytoken.encoders import Encoder
    from stickytoken.repairs import Repair

_PACKAGED_MODEL = "all-MiniLM-L6-v2"


@command
def demo(
    run: Annotated[list[Path] | None, texts_option("--run", help="Run folder to open. Repeatable.")] = None,
    folder: Annotated[Path, texts_option(help="List the runs in this folder too.")] = Path("runs"),
    *,
    model: Annotated[
        str | None,
        model_option(
            help="Model to try tokens on. Default: the model of the first --run, else all-MiniLM-L6-v2."
        ),
    ] = None,
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    repair: Annotated[
        Path | None,
        texts_option(help="Folder of a repaired model, to compare with the original model."),
    ] = None,
    port: Annotated[int, output_option(help="Port to serve on; 0 takes any free one.")] = 7860,
    share: Annotated[
        bool, output_option("--share", help="Also serve on a public address, through Gradio.")
    ] = False,
    open_it: Annotated[bool, output_option("--open", help="Open the page in a browser.")] = False,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Serve a local web app to try, browse and explain tokens, and to compare runs and repairs.

    Example: stickytoken demo --run runs/all-MiniLM-L6-v2-profile-0123456789ab --open
    """
    with collector_paused():
        from stickytoken.demo.context import Startup, find_runs
        from stickytoken.demo.server import require_free
        from stickytoken.repairs import open_repair

        require_free(port)  # before the slow work
        library = find_runs(run or [], folder.expanduser())
        named = library.record(library.labels[0]) if run else None
        source = str(run[0]) if run else model or _PACKAGED_MODEL
        of_run = model if run else None
        repaired = None if repair is None else open_repair(repair)
        startup = Startup(require_found(source, named, loading, of_run), library, repaired)
        with status("preparing the page"):
            served = _served(startup, port, share)
    try:
        _announce(served, output_format, open_it)
        with collector_paused():
            startup.finish(
                lambda: _context(load_for(source, named, loading, prompting, of_run), library, repaired)
            )
        served.wait()
    finally:
        served.close()


def _served(startup: Startup, port: int, share: bool) -> Served:
    """Build the page and serve it."""
    from stickytoken.demo.app import make_app
    from stickytoken.demo.server import serve

    return serve(make_app(startup, share), port, share)


def _context(encoder: Encoder, library: RunLibrary, repair: Repair | None) -> Context:
    """Make what the tabs compute with."""
    from stickytoken.corpora import load_sentences
    from stickytoken.demo.context import SharedModel, make_context
    from stickytoken.encoders.loading.load import loaded_like
    from stickytoken.encoders.text_encoder import as_id_reader

    shared, repaired = SharedModel(as_id_reader(encoder, "demo")), None
    if repair is not None and shared.is_model_of(repair.record):
        repaired = SharedModel(loaded_like(encoder, repair.path))
    return make_context(shared, library, load_sentences(None), repaired)


def _announce(served: Served, output_format: Format, open_it: bool) -> None:
    """Print where the page is, and open it if the user asked for that."""
    if output_format is Format.JSON:
        print_json({"url": served.url, "public_url": served.public_url})
    else:
        print_line(f"serving on {served.url}")
        if served.public_url:
            print_line(f"anyone can reach it on {served.public_url}")
    inform("press Ctrl-C to stop")
    if open_it and not webbrowser.open(served.url):
        raise InputError(f"no browser could be started: open {served.url} in one yourself")
