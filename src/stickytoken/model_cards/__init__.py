"""What a run found as a block of a model card and as evaluation results, written or sent to the hub."""

from stickytoken.model_cards._block import card_block
from stickytoken.model_cards._card_file import write_block
from stickytoken.model_cards._eval_results import write_eval_results
from stickytoken.model_cards._pushing import push_card

__all__ = ["card_block", "push_card", "write_block", "write_eval_results"]
