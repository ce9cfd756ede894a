"""What sticky tokens cost: in similarity, retrieval, clustering, classification, and as an intrusion."""

from stickytoken.impacts.measure import impact
from stickytoken.impacts.settings import ImpactSettings, Side
from stickytoken.runs.impact_results import Impact, open_impact

__all__ = ["Impact", "ImpactSettings", "Side", "impact", "open_impact"]
