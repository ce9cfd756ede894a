"""Measure what sticky tokens cost in similarity, retrieval, clustering, classification and intrusion."""

from stickytoken.impacts._measure import impact
from stickytoken.impacts.results import Impact, open_impact
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import Side

__all__ = ["Impact", "ImpactSettings", "Side", "impact", "open_impact"]
