"""What sticky tokens cost: in similarity, retrieval, clustering, classification, and as an intrusion."""

from stickytoken.impact.measure import impact
from stickytoken.impact.results import Impact, open_impact
from stickytoken.impact.settings import ImpactSettings, Side

__all__ = ["Impact", "ImpactSettings", "Side", "impact", "open_impact"]
