"""Build the page while the model is still loading."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from stickytoken.demo.run_library import RunLibrary
from stickytoken.errors import ModelError, StickyTokenError

if TYPE_CHECKING:
    from stickytoken.demo.context import Context
    from stickytoken.repairs import Repair


class Startup:
    """The runs, which are available at once, and the model, which takes some seconds.

    Args:
        model: the name of the model, as the user gave it.
        library: the runs.
        repair: a repair of the model; None without one.
    """

    def __init__(self, model: str, library: RunLibrary, repair: Repair | None = None) -> None:
        self.model_name = model
        self.library = library
        self.repair = repair
        self._context: Future[Context] = Future()

    @property
    def opened(self) -> str | None:
        """Label of the run that the app opens with; None if there is no run."""
        return next(iter(self.library.labels), None)

    def finish(self, load: Callable[[], Context]) -> None:
        """Load the model, then wake all waiting requests; if loading fails, they raise its error."""
        try:
            context = load()
        except StickyTokenError as error:
            self._context.set_exception(error)
            raise
        except BaseException:
            self._context.set_exception(ModelError(f"{self.model_name} was not loaded: start the app again"))
            raise
        self._context.set_result(context)

    def context(self) -> Context:
        """Wait until the model is loaded, and return the context of the tabs.

        Raises:
            StickyTokenError: the model could not be loaded.
        """
        return self._context.result()
