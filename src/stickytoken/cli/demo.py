"""stickytoken demo: the web app."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.collector import collector_paused
from stickytoken.cli.errors import reported
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, spread
from stickytoken.cli.output import print_json, say, status, tell
from stickytoken.cli.run_models import load_for, require_found
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.demo.context import Context
    from stickytoken.demo.run_library import RunLibrary
    from stickytoken.demo.server import Served
    from stickytoken.demo.startup import Startup
    from stickytoken.encoders import Encoder

_PACKAGED_MODEL = "all-MiniLM-L6-v2"


@reported
@spread
def demo(
    run: Annotated[
        list[Path] | None,
        typer.Option("--run", help="Run folder to open with; may be given again.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to try tokens on. Default: that of the first --run, else all-MiniLM-L6-v2.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder whose runs are listed too.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port to serve on; 0 is any that is free.")] = 7860,
    share: Annotated[
        bool, typer.Option("--share", help="Also make a public address, through Gradio's servers.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    *,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Serve a web app on this machine. In it: try tokens, look through runs, explain, compare.

    Example: stickytoken demo --run runs/all-MiniLM-L6-v2-profile-0123456789ab --open
    """
    with collector_paused():
        from stickytoken.demo.run_library import find_runs
        from stickytoken.demo.server import require_free
        from stickytoken.demo.startup import Startup

        require_free(port)  # before anything takes time
        library = find_runs(run or [], runs.expanduser())
        named = library.record(library.labels[0]) if run else None
        source = str(run[0]) if run else model or _PACKAGED_MODEL
        of_run = model if run else None
        startup = Startup(require_found(source, named, loading, of_run), library)
        with status("preparing the page"):
            served = _served(startup, port, share)
    try:
        _announce(served, output_format, open_it)
        with collector_paused():
            startup.finish(lambda: _context(load_for(source, named, loading, prompting, of_run), library))
        served.wait()
    except KeyboardInterrupt:
        tell("stopped")
    finally:
        served.close()


def _served(startup: Startup, port: int, share: bool) -> Served:
    """Build the page, and serve it."""
    from stickytoken.demo.app import make_app
    from stickytoken.demo.server import serve

    return serve(make_app(startup, share), port, share)


def _context(encoder: Encoder, library: RunLibrary) -> Context:
    """What the tabs compute with."""
    from stickytoken.corpora import load_sentences
    from stickytoken.demo.context import make_context
    from stickytoken.demo.shared_model import SharedModel
    from stickytoken.encoders.protocol import require_ids

    return make_context(SharedModel(require_ids(encoder, "demo")), library, load_sentences(None))


def _announce(served: Served, output_format: o.Format, open_it: bool) -> None:
    """Say where the page is, and open it where that is asked for.

    Raises:
        InputError: no browser could be started.
    """
    if output_format is o.Format.JSON:
        print_json({"url": served.url, "public_url": served.public_url})
    else:
        say(f"serving on {served.url}")
        if served.public_url:
            say(f"everybody can reach it on {served.public_url}")
    tell("press Ctrl-C to stop")
    if open_it and not webbrowser.open(served.url):
        raise InputError(f"no browser could be started: open {served.url} yourself")
