"""Support for models that encode queries and documents differently, with a Router, prompts or other settings.

A `Router` of sentence-transformers holds one chain of modules for each route. An encoder uses only one route,
so `follow_route` returns a model that contains only the modules of the chosen route.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from stickytoken.encoders.files.description import choose_route, list_choices
from stickytoken.encoders.roles import Role
from stickytoken.errors import InputError, ModelError

# Names of the prompts for each task. `encode_query` and `encode_document` use the first of these prompts that
# the model has.
_PROMPTS: dict[str, tuple[str, ...]] = {
    Role.QUERY: ("query",),
    Role.DOCUMENT: ("document", "passage", "corpus"),
}


class RoutedModel(SentenceTransformer):
    """A model that contains the modules of one route. Every call passes the route's task to the modules.

    Attributes:
        route: name of the route that texts take; in a model without a Router, the name of the task.
        task: value of the ``task`` argument that every call passes to the modules; if None, no task is
            passed.
        task_matters: whether there is a task, and at least one module on the route uses it.
        other_routes: other routes and tasks that the user can choose.
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
        """The route's name; for the default route, also the names of the routes that are not measured."""
        if self.task is not None:
            return self.route
        others = ", ".join(self.other_routes)
        return f"{self.route}, the default of the model; other routes ({others}) are not measured"

    @property
    def _own_options(self) -> dict[str, Any]:
        return {} if self.task is None else {"task": self.task}


def follow_route(model: SentenceTransformer, route: str | None, name: str) -> SentenceTransformer:
    """Return a model that sends all texts through one route and shares modules and weights with the original.

    A model without a Router may still encode tasks such as ``query`` differently. If a route is named for a
    model without a Router, the name is taken as a task; see `_copy_for_task`.

    Args:
        model: the user's model; returned unchanged if it is a `RoutedModel`, or if it has no Router and
            `route` is None.
        route: the route that the user names, such as ``query`` or ``document``; if None, the route that
            `encode` takes.
        name: name of the model, for messages.

    Raises:
        InputError: The model does not have the named route, or no route is named and it has no default.
        ModelError: The route contains no modules, or a method of the model was replaced on the object.
    """
    if isinstance(model, RoutedModel):
        return model
    routers = [module for module in model if isinstance(module, Router)]
    if not routers:
        return model if route is None else _copy_for_task(model, route, name)
    modules: OrderedDict[str, Any] = OrderedDict()  # the modules on the route, keyed by name
    routes_taken: list[str] = []  # the route taken in each Router
    for key, module in model.named_children():
        if isinstance(module, Router):
            route_of_router = _find_route_in(module, route, name)
            routes_taken.append(route_of_router)
            modules.update(_list_modules_on(route_of_router, module, key, route, name))
        else:
            modules[key] = module
    if not modules:
        raise ModelError(f"{name}: its route {routes_taken[0]!r} has no modules")
    choices: list[str] = []
    for router in routers:
        choices += list_choices(list(router.sub_modules), router.route_mappings or {})
    distinct_choices = tuple(dict.fromkeys(choices))
    # If the model has several Routers, the route in the first of them is reported. The named route is also
    # passed to the modules as the task, as `encode_query` and `encode_document` do.
    return _make_routed_model(
        model, modules, name, route=routes_taken[0], task=route, choices=distinct_choices
    )


def has_roles(model: SentenceTransformer, name: str) -> bool:
    """Return whether a model may encode queries and documents differently.

    A model with Routers may do so if each of its Routers has a route for queries and a route for documents. A
    model without Routers may do so if it has a prompt for queries or documents, or reads the task.
    """
    if isinstance(model, RoutedModel):  # all texts take the same route, with the same task
        return False
    routers = [module for module in model if isinstance(module, Router)]
    if not routers:
        return _has_role_prompts(model) or _reads_tasks(model)
    try:
        for router in routers:
            for role in Role:
                _find_route_in(router, role, name)
    except InputError:  # the router has no route for the role
        return False
    return True


def uses_more_than_prompts(model: SentenceTransformer) -> bool:
    """Return whether queries and documents with the same prompt may have different vectors."""
    return any(isinstance(module, Router) for module in model) or _reads_tasks(model)


def _has_role_prompts(model: SentenceTransformer) -> bool:
    prompt_names = [*_PROMPTS[Role.QUERY], *_PROMPTS[Role.DOCUMENT]]
    return any(model.prompts.get(prompt_name) for prompt_name in prompt_names)


def unused_document_prompt(model: SentenceTransformer) -> str | None:
    """Return the name of a document prompt that `encode_document` ignores, as in E5; None if there is none.

    `encode_document` takes the prompt named ``document``, which every model has, even if this prompt is empty
    and a prompt named ``passage`` is not.
    """
    names = [prompt_name for prompt_name in _PROMPTS[Role.DOCUMENT] if prompt_name in model.prompts]
    if not names or model.prompts[names[0]]:  # `encode_document` takes the first prompt, which has a text
        return None
    return next((prompt_name for prompt_name in names if model.prompts[prompt_name]), None)


def query_prompt_beside(model: SentenceTransformer, prompt: str | None) -> str | None:
    """Return the model's query prompt if ``prompt`` is the text of one of its document prompts, else None."""
    document_prompts = {model.prompts.get(prompt_name) for prompt_name in _PROMPTS[Role.DOCUMENT]}
    if not prompt or prompt not in document_prompts:
        return None
    query_prompts = (model.prompts.get(prompt_name) for prompt_name in _PROMPTS[Role.QUERY])
    return next((text for text in query_prompts if text), None)


def _find_route_in(router: Router, route: str | None, name: str) -> str:
    mappings = router.route_mappings or {}
    return choose_route(list(router.sub_modules), mappings, router.default_route, route, name)


def _list_modules_on(
    route_of_router: str, router: Router, key: str, named_route: str | None, name: str
) -> Iterator[tuple[str, Any]]:
    # Yields the modules on a route of a Router, each with a name that no other module has. ``key`` is the
    # name of the Router. For Routers on the route, ``named_route`` says which of their routes to follow.
    chain: Any = router.sub_modules[route_of_router]
    for index, module in enumerate(chain):
        inner_key = f"{key}_{route_of_router}_{index}"
        if isinstance(module, Router):
            inner_route = _find_route_in(module, named_route, name)
            yield from _list_modules_on(inner_route, module, inner_key, named_route, name)
        else:
            yield inner_key, module


def _copy_for_task(model: SentenceTransformer, task: str, name: str) -> RoutedModel:
    """Return a copy of a model without a Router that passes the task to its modules.

    The user has named the task as a route, so error messages call it a route.
    """
    reads_tasks = _reads_tasks(model)
    if not _has_role_prompts(model) and not reads_tasks:
        raise InputError(
            f"{name} encodes queries and documents in the same way, because it has no routes or prompts for "
            f"them: leave out the route {task!r}"
        )
    # A module that reads the task may support any task, so the name is checked only if no module reads it.
    if task not in _PROMPTS and not reads_tasks:
        raise InputError(f"{name} has no route {task!r}: use {Role.QUERY} or {Role.DOCUMENT}")
    all_modules = OrderedDict(model.named_children())
    roles = tuple(Role)  # the tasks that a user could name instead
    return _make_routed_model(model, all_modules, name, route=task, task=task, choices=roles)


def _make_routed_model(
    model: SentenceTransformer,
    modules: OrderedDict[str, Any],
    name: str,
    *,
    route: str,
    task: str | None,
    choices: tuple[str, ...],
) -> RoutedModel:
    """Return a `RoutedModel` with the modules of one route, and whatever else the user's model has.

    Its hooks and settings stay, and so does what its class computes.
    If the user's model has a prompt for the task, this prompt becomes the default prompt. If the prompt for
    the task is empty, the result has no default prompt.
    """
    for method in ("forward", "preprocess"):
        if method in vars(model):  # bound to the user's model, so it would take the route of that model
            raise ModelError(
                f"{name}: its method {method} was replaced on the object, and would send queries and "
                "documents through the whole model: override it in a subclass of SentenceTransformer"
            )
    default_prompt = model.default_prompt_name
    names_of_task = [
        prompt_name for prompt_name in _PROMPTS.get(task or "", ()) if prompt_name in model.prompts
    ]
    if names_of_task:  # `encode_query` prefers the task's prompt, even an empty one, to the default prompt
        name_of_task = names_of_task[0]
        default_prompt = name_of_task if model.prompts[name_of_task] else None
    routed: Any = copy.copy(model)
    routed.__class__ = _make_routed_class(type(model))
    routed._modules = modules  # torch has no public way to replace the modules and keep their names
    routed.default_prompt_name = default_prompt
    routed.route = route
    routed.task = task
    routed.task_matters = task is not None and _reads_tasks(routed)
    routed.other_routes = tuple(choice for choice in choices if choice not in (route, task))
    return cast("RoutedModel", routed)


@cache
def _make_routed_class(model_class: type[SentenceTransformer]) -> type[RoutedModel]:
    if model_class is SentenceTransformer:
        return RoutedModel
    # `__module__` is that of the user's class: the class may keep state, so its batches must run one by one.
    attributes = {"__doc__": RoutedModel.__doc__, "__module__": model_class.__module__}
    return type(f"Routed{model_class.__name__}", (RoutedModel, model_class), attributes)


def _reads_tasks(model: SentenceTransformer) -> bool:
    # Whether the task, such as ``query``, can change what the model's modules compute.
    arguments_of_modules = model.module_kwargs or {}
    for key, module in model.named_children():
        arguments = [*getattr(module, "forward_kwargs", ()), *arguments_of_modules.get(key, ())]
        if "task" in arguments:
            return True
    first: Any = model[0]
    # The first module may have different maximum lengths for queries and documents, in attributes such as
    # `query_length`.
    has_task_lengths = any(getattr(first, f"{role}_length", None) is not None for role in Role)
    chat_template = getattr(getattr(first, "tokenizer", None), "chat_template", None)
    return has_task_lengths or "task" in str(chat_template or "")
