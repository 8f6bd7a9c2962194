"""Monte-Carlo tree search over arrays: all roots in lock-step, one network batch per simulation.

interface ──> tree ──> kernels ──> batched: search(), choose_actions()
"""

from headway.search.batched import choose_actions, search
from headway.search.interface import Leaves, SearchModel, SearchResult, SearchSettings
from headway.search.tree import Tree

__all__ = ["Leaves", "SearchModel", "SearchResult", "SearchSettings", "Tree", "choose_actions", "search"]
