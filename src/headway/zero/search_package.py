"""Monte-Carlo tree search over arrays: all roots in lock-step, one network batch per simulation.

interface ──> tree ──> kernels ──> batched: search(), choose_actions()
"""

from headway.zero.search_batched import choose_actions, search
from headway.zero.search_interface import Leaves, SearchModel, SearchResult, SearchSettings
from headway.zero.search_tree import Tree

__all__ = ["Leaves", "SearchModel", "SearchResult", "SearchSettings", "Tree", "choose_actions", "search"]
