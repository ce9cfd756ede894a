"""Measure what sticky tokens cost in similarity, retrieval, clustering, classification and intrusion."""

from stickytoken.impacts._measure import impact
from stickytoken.impacts.results import Impact, ImpactSettings, open_impact
from stickytoken.insertion import Side

__all__ = ["Impact", "ImpactSettings", "Side", "impact", "open_impact"]
