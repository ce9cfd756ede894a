"""What sticky tokens cost: similarity, retrieval, clustering, classification, and intrusion into search results."""

from stickytoken.impact.measure import impact
from stickytoken.impact.results import Impact, open_impact
from stickytoken.impact.settings import ImpactSettings, Side

__all__ = ["Impact", "ImpactSettings", "Side", "impact", "open_impact"]
