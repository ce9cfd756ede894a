"""MTEB results of a model whose documents have copies of a token.

Both classes take the place of a model in ``mteb.evaluate``. Queries never get copies. MTEB keeps the results
as an experiment of the model, beside the results without copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stickytoken.errors import InputError, require_package
from stickytoken.insertion import Joining, Placement, place_as_text
from stickytoken.machine import digest
from stickytoken.validation import shown, whole_number

require_package("mteb", "an MTEB model with copies", "mteb")

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# MTEB hands a document over as its title, its body, and both joined as its text. Most models read the text,
# some the title and the body. So each of them finds the copies once.
_DOCUMENT_COLUMNS = ("text", "body")
# Longest part of a token in the name of a folder with results, in characters.
_NAMED = 40


class WithCopies:
    """A model for MTEB that writes copies of a token into every document before it encodes it.

    The score (nDCG@10 in most tasks of retrieval) falls if the copies erase what distinguishes the documents.
    It hardly shows whether they push a document into results, because the documents that it competes with
    have them too. So have those of Chen et al. (2025), in other numbers and with several tokens.

    The copies are typed in front of the document, behind the prompt of the model and with spaces between
    them. The model truncates what is too long then.

    Args:
        model: A SentenceTransformer, or a model that ``mteb.get_model`` returned.
        token: The token as text, such as ``[CLS]``.
        copies: Number of copies in a document.

    Raises:
        InputError: The model is not one that encodes texts, there is no text to copy, or no copy.

    Examples:
        >>> import mteb
        >>> from stickytoken.adapters.mteb import WithCopies
        >>> mteb.evaluate(WithCopies(model, "[CLS]"), mteb.get_task("SciFact"))  # doctest: +SKIP
    """

    def __init__(self, model: Any, token: str, copies: int = 8) -> None:
        if not token.strip():
            raise InputError(f"token is {shown(token)}: pass the text of a token, such as '[CLS]'")
        self.token = token.strip()
        self.copies = whole_number("copies", copies, minimum=1)
        self.model = _as_mteb_model(model)
        self.mteb_model_meta = self.describe("documents")

    def describe(self, edited: str) -> Any:
        """Return MTEB's description of the model with copies in the texts that ``edited`` names."""
        description = self.model.mteb_model_meta
        # MTEB makes the name of a folder from these values. Brackets are not quoted, so that people can read
        # them. The hash distinguishes tokens whose folders would have the same name: `<a>` and `|a|`, or, on
        # some file systems, `A` and `a`.
        experiment = {
            "copied": quote(self.token, safe="[]<>|")[:_NAMED],
            "copies": self.copies,
            "into": edited,
            "token": digest(self.token)[:8],
        }
        earlier_experiment = description.experiment_kwargs or {}
        return description.model_copy(update={"experiment_kwargs": {**earlier_experiment, **experiment}})

    def encode(
        self, inputs: DataLoader[Any], *, task_metadata: Any, prompt_type: Any = None, **options: Any
    ) -> Any:
        """Return the vectors of queries as they are, or of documents with copies, as MTEB asks for them.

        Raises:
            InputError: The task has no documents, or no texts.
        """
        from mteb.types import PromptType

        # MTEB tells documents from queries only in tasks that have both.
        if prompt_type is None or "text" not in inputs.dataset.column_names:  # type: ignore[attr-defined]
            raise InputError(
                f"{task_metadata.name} has no documents of text to write copies into: choose a task of "
                "retrieval or reranking"
            )
        if prompt_type == PromptType.document:
            inputs = self._load_with_copies(inputs)
        return self.model.encode(inputs, task_metadata=task_metadata, prompt_type=prompt_type, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities between all vectors of two groups."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities between corresponding vectors of two groups."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)

    def _load_with_copies(self, inputs: DataLoader[Any]) -> DataLoader[Any]:
        """Return a loader of the same documents with copies in front of their texts."""
        from torch.utils.data import DataLoader

        copies = [self.token] * self.copies
        documents: Any = inputs.dataset
        for column in _DOCUMENT_COLUMNS:
            if column not in documents.column_names:
                continue
            texts = list(documents[column])
            texts_with_copies = [
                place_as_text(copies, text, Placement.PREFIX, joining=Joining.WORDS) for text in texts
            ]
            # A dataset cannot be changed, but a new one can have another column of the same name.
            documents = documents.remove_columns(column).add_column(column, texts_with_copies)
        return DataLoader(
            documents,
            batch_size=inputs.batch_size,
            collate_fn=inputs.collate_fn,
            num_workers=inputs.num_workers,
        )


class WithCopiesInAnswers:
    """A model for MTEB that writes copies of a token only into the documents that answer a query.

    Each query is searched as if its own relevant documents had copies, and no other document. The score falls
    if the copies hide these documents, and rises if they push them. Copies of an ordinary token change it
    too: compare with one.

    Args:
        model: A SentenceTransformer, or a model that ``mteb.get_model`` returned.
        token: The token as text, such as ``[CLS]``.
        task: The MTEB task of retrieval or reranking, which knows the relevant documents. Evaluate this
            object.
        copies: Number of copies in a document, in front of it as in `WithCopies`.

    Raises:
        InputError: As for `WithCopies`.

    Examples:
        >>> import mteb
        >>> from stickytoken.adapters.mteb import WithCopiesInAnswers
        >>> task = mteb.get_task("SciFact")
        >>> mteb.evaluate(WithCopiesInAnswers(model, "[CLS]", task), task)  # doctest: +SKIP
    """

    def __init__(self, model: Any, token: str, task: Any, copies: int = 8) -> None:
        self.task = task
        self._with_copies = WithCopies(model, token, copies)
        self.mteb_model_meta = self._with_copies.describe(edited="answers")
        self._corpus: Any = None
        self._index_options: dict[str, Any] = {}

    def index(self, corpus: Any, **options: Any) -> None:
        """Take the documents, as MTEB hands them over."""
        self._corpus = corpus
        self._index_options = options

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Mapping[str, list[str]] | None = None, **options: Any
    ) -> dict[str, dict[str, float]]:
        """Return the scores of the best documents for each query, as MTEB asks for them.

        Raises:
            InputError: The task is not the one that was passed.
        """
        answers = self._find_answers(queries["id"][:], top_ranked, options)
        most_answers = max(map(len, answers.values()), default=0)
        # Copies may move every answer out of the first results. With as many further documents, there are
        # still `top_k` documents that are no answers.
        scores = self._search(
            self._with_copies.model, self._corpus, queries, top_k + most_answers, top_ranked, options
        )
        if most_answers:
            # Search the answers alone, with copies, and replace their scores.
            all_answers = set(chain.from_iterable(answers.values()))
            corpus_ids = self._corpus["id"][:]
            answer_rows = [row for row, document in enumerate(corpus_ids) if document in all_answers]
            answer_corpus = self._corpus.select(answer_rows)
            scores_with_copies = self._search(
                self._with_copies, answer_corpus, queries, len(answer_corpus), answers, options
            )
            for query, scores_of_query in scores.items():
                scores_of_query.update(scores_with_copies[query])
        return scores

    def _search(
        self, model: Any, corpus: Any, queries: Any, top_k: int, top_ranked: Any, options: Mapping[str, Any]
    ) -> dict[str, dict[str, float]]:
        """Return the scores of the best documents, keyed by query id and then by document id."""
        from mteb.models import SearchEncoderWrapper

        search = SearchEncoderWrapper(model)
        search.index(corpus, **self._index_options)
        scores: dict[str, dict[str, float]] = search.search(
            queries, top_k=top_k, top_ranked=top_ranked, **options
        )
        return scores

    def _find_answers(
        self, queries: list[str], top_ranked: Mapping[str, list[str]] | None, options: Mapping[str, Any]
    ) -> dict[str, list[str]]:
        """Return the ids of the relevant documents of each query that are ranked for it, keyed by query."""
        name = options["task_metadata"].name
        if self.task.metadata.name != name or not self.task.data_loaded:
            raise InputError(f"the relevant documents of {name} are not known: pass this very object as task")
        judgements = self.task.dataset[options["hf_subset"]][options["hf_split"]]["relevant_docs"]
        corpus_ids = set(self._corpus["id"][:])
        answers = {}
        for query in queries:
            # MTEB ranks the whole corpus for a query, or the documents that it has chosen before.
            ranked_ids = corpus_ids if top_ranked is None else set(top_ranked.get(query, []))
            score_of_document = judgements.get(query, {})
            answers[query] = [
                document
                for document, score in score_of_document.items()
                if score > 0 and document in ranked_ids
            ]
        return answers


def _as_mteb_model(model: Any) -> Any:
    from mteb.models import EncoderProtocol, ModelMeta, SearchProtocol, SentenceTransformerEncoderWrapper
    from sentence_transformers import SentenceTransformer

    if isinstance(model, SentenceTransformer):
        return SentenceTransformerEncoderWrapper(model)
    is_encoder = isinstance(model, EncoderProtocol) and not isinstance(model, SearchProtocol)
    if not is_encoder or not isinstance(model.mteb_model_meta, ModelMeta):
        raise InputError(
            f"model is {shown(model)}: pass a SentenceTransformer, or a model of mteb.get_model that gives "
            "each text one vector"
        )
    return model
