"""The lead of one line: the rule that admits its tickets and, where it is `auto`, what moves it."""

from __future__ import annotations

from headway.coordinator.activities_waits import Board
from headway.coordinator.settings_line_settings import LineSettings
from headway.core.rules import MaxLead
from headway.core.rules_lead import Interval
from headway.core.types import State


class LineLead:
    """How far collection may run ahead of one learner, now."""

    def __init__(self, settings: LineSettings, seats: int, learner: str) -> None:
        """`learner` is the role whose waiting tells whether the lead is large enough."""
        self._lead = settings.build_lead()
        self.rule = MaxLead(self._lead.current, settings.tickets_per_version)
        self._is_auto = settings.max_lead == "auto"
        self._watch = _LeadWatch(settings.lead_interval, seats, learner)

    @property
    def current(self) -> float:
        return self.rule.max_lead

    def expect_from(self, seats: int) -> None:
        """So many tickets are collected at once from now on."""
        self._watch.seats = seats

    def note(self, effective_sample_size: float | None) -> None:
        """What an update said about its batch."""
        self._watch.note(effective_sample_size)

    def moved(self, version: int, now: float, board: Board) -> float | None:
        """A version was published: the lead after a look at what the last ones cost, if it is another one."""
        if not self._is_auto:
            return None
        interval = self._watch.interval(version, now, board, is_searching=self._lead.is_searching)
        if interval is None:
            return None
        lead = self._lead.observe(interval)
        if lead == self.rule.max_lead:
            return None
        self.rule.retune(lead)
        return lead

    def state_dict(self) -> State:
        return self._lead.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._lead.load_state_dict(state)
        self.rule.retune(self._lead.current)


class _LeadWatch:
    """Cuts the run into intervals for the auto lead and says what each one was like."""

    def __init__(self, every: int, seats: int, learner: str) -> None:
        self._every = every
        self.seats = seats
        self._learner = learner
        self._since = 0.0
        self._idle = self._blocked = 0.0
        self._sizes: list[float] = []
        self._has_begun = False

    def note(self, effective_sample_size: float | None) -> None:
        if effective_sample_size is not None:
            self._sizes.append(effective_sample_size)

    def interval(self, version: int, now: float, board: Board, *, is_searching: bool) -> Interval | None:
        """After every so many versions; four times as often while nobody knows which lead is needed."""
        if version % (max(1, self._every // 4) if is_searching else self._every):
            return None
        spent = board.time_spent()
        idle, blocked = spent.total(self._learner, "data"), spent.total("collector", "slot")
        elapsed = max(now - self._since, 1e-9)
        interval = Interval(
            learner_idle=(idle - self._idle) / elapsed,
            collectors_blocked=(blocked - self._blocked) / elapsed / self.seats,
            effective_sample_size=sum(self._sizes) / len(self._sizes) if self._sizes else None,
        )
        self._since, self._idle, self._blocked = now, idle, blocked
        self._sizes.clear()
        if not self._has_begun:  # the learner waits for the first rollouts under any lead: that says nothing
            self._has_begun = True
            return None
        return interval
