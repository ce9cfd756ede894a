"""Models that read queries and documents differently: by a Router, by prompts, or by other settings.

A `Router` of sentence-transformers holds one chain of modules for each route. The encoder works with one of
them: `routed` returns a model of the modules of that route alone, so that its tokenizer, its lengths and its
weights are those that texts meet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from stickytoken.encoders.loading.description import choices_of, route_taken
from stickytoken.errors import InputError, ModelError

QUERY, DOCUMENT = "query", "document"
# Names of prompts that `encode_query` and `encode_document` look for, in their order.
_PROMPTS = {QUERY: ("query",), DOCUMENT: ("document", "passage", "corpus")}


class RoutedModel(SentenceTransformer):
    """One route of a model: it passes the task to modules that read it, whoever calls the model.

    Attributes:
        route: name of the route that texts take, or of the task in a model without a Router.
        task: what `encode` of the whole model would be given as its task; None is nothing.
        task_matters: whether a module reads the task, beside the choice of the route.
        other_routes: what else can be asked for.
    """

    route: str
    task: str | None
    task_matters: bool
    other_routes: tuple[str, ...]

    def preprocess(self, inputs: Any, prompt: str | None = None, **options: Any) -> dict[str, Any]:
        return super().preprocess(inputs, prompt=prompt, **(options | self._own_options))

    def forward(self, input: dict[str, Any], **options: Any) -> dict[str, Any]:  # noqa: A002
        return super().forward(input, **(options | self._own_options))

    @property
    def description(self) -> str:
        """The route for a person, with what else can be asked for."""
        if self.task is not None:
            return self.route
        others = ", ".join(self.other_routes)
        return f"{self.route}, the default of the model; other routes ({others}) are not measured"

    @property
    def _own_options(self) -> dict[str, Any]:
        return {} if self.task is None else {"task": self.task}


def routed(model: SentenceTransformer, route: str | None, name: str) -> SentenceTransformer:
    """Return the model as it reads texts on a route; its modules and weights are shared, not copied.

    Args:
        model: the whole model. One without a Router is returned as it is, unless a route is asked for.
        route: what is asked for, such as ``query`` or ``document``; None is the route that `encode` takes.
        name: of the model, for messages.

    Raises:
        InputError: The model has no such route, or has several and no default.
        ModelError: The route contains no modules.
    """
    if isinstance(model, RoutedModel):
        return model
    routers = [module for module in model if isinstance(module, Router)]
    if not routers:
        return model if route is None else _with_task(model, route, name)
    modules: OrderedDict[str, Any] = OrderedDict()
    taken: list[str] = []
    for key, module in model.named_children():
        if isinstance(module, Router):
            modules.update(_unrouted(key, module, route, name, taken))
        else:
            modules[key] = module
    if not modules:
        raise ModelError(f"{name}: its route {taken[0]!r} has no modules")
    choices: list[str] = []
    for router in routers:
        choices += choices_of(list(router.sub_modules), router.route_mappings or {})
    return _routed_model(model, modules, taken[0], route, tuple(dict.fromkeys(choices)))


def _unrouted(
    key: str, router: Router, route: str | None, name: str, taken: list[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the modules of the route with their names, those of a Router in it too; note the route."""
    chosen = route_taken(
        list(router.sub_modules), router.route_mappings or {}, router.default_route, route, name
    )
    taken.append(chosen)
    chain: Any = router.sub_modules[chosen]
    for place, module in enumerate(chain):
        inner = f"{key}_{chosen}_{place}"
        if isinstance(module, Router):
            yield from _unrouted(inner, module, route, name, taken)
        else:
            yield inner, module


def _with_task(model: SentenceTransformer, route: str, name: str) -> RoutedModel:
    """Return a model without a Router that reads queries or documents in a way of their own."""
    names = [prompt for prompts in _PROMPTS.values() for prompt in prompts]
    has_prompts = any(model.prompts.get(prompt) for prompt in names)
    reads_tasks = _reads_tasks(model)
    if not has_prompts and not reads_tasks:
        raise InputError(
            f"{name} reads queries and documents alike: it has no routes, and no prompts for them; leave out "
            f"the route {route!r}"
        )
    if route not in _PROMPTS and not reads_tasks:
        raise InputError(f"{name} has no route {route!r}: use {QUERY} or {DOCUMENT}")
    return _routed_model(model, OrderedDict(model.named_children()), route, route, (QUERY, DOCUMENT))


def _routed_model(
    model: SentenceTransformer,
    modules: OrderedDict[str, Any],
    taken: str,
    task: str | None,
    choices: tuple[str, ...],
) -> RoutedModel:
    default_prompt = model.default_prompt_name
    named = [prompt for prompt in _PROMPTS.get(task or "", ()) if prompt in model.prompts]
    if named:  # `encode_query` prefers its own prompt to the default one, even if it is empty
        default_prompt = named[0] if model.prompts[named[0]] else None
    prompts: dict[str, Any] = model.prompts
    chain: Any = modules  # ordered by name, which the library declares as a list
    flat = RoutedModel(
        modules=chain,
        device=str(model.device),
        prompts=prompts,
        default_prompt_name=default_prompt,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
    )
    flat.module_kwargs = model.module_kwargs
    flat.route, flat.task = taken, task
    flat.task_matters = task is not None and _reads_tasks(flat)
    flat.other_routes = tuple(choice for choice in choices if choice not in (taken, task))
    flat.train(model.training)
    return flat


def _reads_tasks(model: SentenceTransformer) -> bool:
    """Whether a module reads the task: in its forward pass, for its length limit, or in its chat template."""
    of_modules = model.module_kwargs or {}
    for key, module in model.named_children():
        if "task" in (*getattr(module, "forward_kwargs", ()), *of_modules.get(key, ())):
            return True
    first: Any = model[0]
    lengths = (getattr(first, "query_length", None), getattr(first, "document_length", None))
    template = getattr(getattr(first, "tokenizer", None), "chat_template", None)
    return lengths != (None, None) or "task" in str(template or "")
