"""A model for MTEB that inserts copies of tokens into the texts it encodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.protocol import IdEncoder
from stickytoken.hashing import digest
from stickytoken.impacts._conditions import Condition
from stickytoken.impacts.carriers import Treatment, prepare
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import Insertion, Side
from stickytoken.tasks.mteb import require_module

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_BATCH = 32


class EditingEncoder:
    """MTEB's own wrapper of a SentenceTransformer, which gets edited texts.

    Texts are edited first, so any cache of the inner model is keyed by the edited texts. The name under
    which MTEB stores results differs between conditions. No condition can get vectors or scores of another.

    Args:
        encoder: an encoder made from a SentenceTransformer.
        condition: what is inserted.
        settings: placement, copies and side.
        room: number of tokens kept free for copies, the same under every condition; 0 leaves texts
            unchanged.

    Raises:
        InputError: the encoder is not a SentenceTransformer.
    """

    def __init__(self, encoder: IdEncoder, condition: Condition, settings: ImpactSettings, room: int) -> None:
        from mteb.models import SentenceTransformerEncoderWrapper

        model = require_module(encoder)
        self._encoder = encoder
        self._condition = condition
        self._side = settings.side
        self._room = room
        self._treatment = replace(Treatment.of(settings), insertion=Insertion.TEXT)
        self._inner: Any = SentenceTransformerEncoderWrapper(model)
        self.encoded = 0
        self.cut = 0
        identity = [asdict(encoder.identity), asdict(condition), asdict(self._treatment), settings.side, room]
        self.mteb_model_meta = self._inner.mteb_model_meta.model_copy(
            update={"name": f"stickytoken/{condition.kind.value}", "revision": digest(identity)}
        )

    def encode(self, inputs: DataLoader[Any], *, prompt_type: Any = None, **options: Any) -> Any:
        """Edit and encode batches of texts; see `mteb.EncoderProtocol`."""
        if self._edits(prompt_type):
            inputs = self._edited(inputs)
        self.encoded += len(inputs.dataset)  # type: ignore[arg-type]
        return self._inner.encode(inputs, prompt_type=prompt_type, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the model's similarity of all pairs of vectors."""
        return self._inner.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the model's similarity of each vector with its partner."""
        return self._inner.similarity_pairwise(embeddings1, embeddings2)

    def edit(self, texts: Sequence[str]) -> list[str]:
        """Return the edited texts."""
        if not self._condition.tokens and not self._room:
            return list(texts)
        carriers = prepare(self._encoder, texts, self._room, Insertion.TEXT, "an MTEB task")
        self.cut += sum(carrier.cut for carrier in carriers)
        return [str(self._treatment.probe(carrier, self._condition)) for carrier in carriers]

    def _edits(self, prompt_type: Any) -> bool:
        """Whether to edit these texts; tasks without sides always are."""
        return prompt_type is None or self._side is Side.BOTH or str(prompt_type.value) == self._side.value

    def _edited(self, inputs: DataLoader[Any]) -> DataLoader[Any]:
        from datasets import Dataset
        from torch.utils.data import DataLoader as Loader

        texts = [text for batch in inputs for text in batch["text"]]
        return Loader(Dataset.from_dict({"text": self.edit(texts)}), batch_size=inputs.batch_size or _BATCH)
