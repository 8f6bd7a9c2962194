"""A rollouter with a generation of its own: twice as many replies, of which the best and the worst are trained on.

headway run examples/own_generation.py --task arithmetic
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from headway import Ticket
from headway.core.types import derive_seed
from headway.llm import grpo
from headway.llm.collector import GroupCollector
from headway.llm.engine.protocol_engine import Engine, Sample
from headway.llm.tasks.tasks import Prompt


class Extremes(GroupCollector):
    """The more the rewards of a group differ, the more it says."""

    def generate(self, engine: Engine, prompt: Prompt, encoded: tuple[int, ...], ticket: Ticket) -> Sequence[Sample]:
        again = replace(ticket, seed=derive_seed(ticket.seed, "again"))  # depends on the ticket alone: can be repeated
        samples = [s for t in (ticket, again) for s in super(Extremes, self).generate(engine, prompt, encoded, t)]
        samples.sort(key=lambda sample: self.reward(prompt, sample))
        return samples[: len(samples) // 4] + samples[-(len(samples) // 4) :]


CONFIG = grpo.CONFIG
stations = partial(grpo.stations, collector=Extremes)
