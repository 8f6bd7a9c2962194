"""Random fault schedules: a few hundred hold every rule, and a ledger with one rule wrong does not get through them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_schedules import Faults, draw
from schedule_runs import PROMISES, run_schedule, unexplained

from headway.coordinator.learning_feed import QueueFeed
from headway.coordinator.line import Line
from headway.coordinator.run_result_evaluations import Evaluations
from headway.coordinator.scaling import Scaling
from headway.coordinator.settings import Settings
from headway.coordinator.tickets_flights import Flights
from headway.coordinator.tickets_ticket_queue import TicketQueue
from headway.core import ledger_choosing as choosing_module
from headway.core.ledger import Ledger
from headway.core.ledger_choosing import Choice, Chooser
from headway.core.ledger_live_tickets import Entry
from headway.core.ledger_seat_plan import SeatPlan
from headway.core.rules import Budget, Bytes, Capacity, MaxLead, ReplayRatio
from headway.core.rules_order import Expiry
from headway.core.types import Batch, DropReason, Phase, Ticket
from headway.testing.auditor import RULES

SCRIPT = Path(__file__).parents[2] / "bench" / "fuzz.py"
SCHEDULES = 300
TWO_LINES = 100
ENOUGH = 400
"""Schedules within which a broken rule must show."""


@pytest.mark.parametrize("number", [51553, 52240, 78216, 88220, 92338, 99761, 151, 305, 475, 4981])
def test_a_schedule_that_once_broke_a_rule_breaks_none(number: int) -> None:
    """A score between an insert and its updates ended a pinned run early; an age was the limit to the digit. With two
    lines, a checkpoint found a batch taken and not learned from; both lost a rollout, one after the other; a line
    opened its tickets when another one had slots.
    """
    assert not run_schedule(number).violations, f"python bench/fuzz.py --seed {number} --verbose"


@pytest.mark.parametrize("number", [341, 899, 2193, 981, 8484, 4966, 601, 3975, 6961, 8615, 500019, 500995, 519929])
def test_a_schedule_with_two_lines_that_once_broke_a_rule_breaks_none(number: int) -> None:
    """A rollout that was lost and flew again let go twice of what it used of a line that does not take it; a landing
    opened tickets of a line that has no limit in bytes; newer targets came between the states of two learners; weights
    were lost that only a line uses which does not take the rollout; a line that ended in the middle of a version opened
    nothing when the run went on; a line that had failed was saved; a run ended between an insert and its update;
    collectors that were leaving made rollouts older as they were brought back, or were not, with tickets nobody had
    opened; collectors were asked for in the moment in which a run failed.
    """
    assert not run_schedule(number, 2).violations, f"python bench/fuzz.py --lines 2 --seed {number} --verbose"


def test_no_schedule_with_two_lines_breaks_a_rule() -> None:
    seen: Counter[str] = Counter()
    for number in range(TWO_LINES):
        outcome = run_schedule(number, 2)
        assert not outcome.violations, f"python bench/fuzz.py --lines 2 --seed {number} --verbose"
        seen.update(outcome.faults.keys() | set(outcome.traits) | {outcome.end})
    wanted = (
        "two lines, pinned", "two lines, free", "replay inside", "replay shared", "second queue", "second replay",
        "second every > 1", "second auto lead", "second max_staleness, drop", "learner dies", "publish fails", "crash",
    )  # fmt: skip
    assert not [name for name in wanted if not seen[name]]


def test_no_schedule_breaks_a_rule() -> None:
    seen: Counter[str] = Counter()
    for number in range(SCHEDULES):
        outcome = run_schedule(number)
        assert not outcome.violations, f"python bench/fuzz.py --seed {number} --verbose"
        seen.update(outcome.faults.keys() | set(outcome.kinds) | set(outcome.traits) | {outcome.end})
        seen["resumes"] += outcome.resumes
    assert seen["resumes"] > SCHEDULES / 4
    wanted = (
        "finished", "failed", "pinned", "free", "lanes", "partial", "auto lead", "reanalysis", "queue_bytes_limit",
        "replay inside", "replay shared", "order oldest", "order window(3)", "order ready", "max_staleness, wait",
        "max_staleness, drop", "max_staleness, requeue", "max_staleness, keep", "max_age_s, drop",
        "max_age_s, requeue", "max_age_s, keep", "evaluates in background", "evaluates, blocking", "crash", "hang",
        "raise", "lose", "slow", "publish fails", "restart", "reissue", "requeue", "restage", "skip_evaluation",
        "drop stale", "drop expired", "drop filtered", "two lines, pinned", "two lines, free", "scaled", "scale",
        "leave",
    )  # fmt: skip
    assert not [name for name in wanted if not seen[name]]


def test_a_schedule_is_the_same_in_every_process_and_in_any_order() -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}; from schedule_runs import run_schedule as run\n"
    code += "print(*(run(number).digest for number in map(int, sys.argv[1:])))"
    numbers = [str(number) for number in range(12)]
    found = []
    for hash_seed, order in (("1", numbers), ("2", numbers[::-1])):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code, *order]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=True)
        found.append(dict(zip(order, done.stdout.split(), strict=True)))
    assert found[0] == found[1]
    assert len(set(found[0].values())) == len(numbers)


# -- mutants: one rule of the real thing is wrong -------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[set[str], Patch]] = {}


def mutant(*rules: str) -> Callable[[Patch], Patch]:
    """A mistake, and the rules of which one must catch it."""
    assert set(rules) <= RULES.keys() | PROMISES.keys()

    def note(patch: Patch) -> Patch:
        MUTANTS[patch.__name__] = set(rules), patch
        return patch

    return note


@mutant("slots")
def one_slot_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MaxLead, "may_open", lambda self, tally: tally.live <= self.slots)


@mutant("free slot", "ends", "reason")
def one_slot_too_few(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MaxLead, "may_open", lambda self, tally: tally.live < max(1, self.slots - 1))


@mutant("counts", "free slot", "reason")
def a_dropped_ticket_keeps_its_slot(patch: pytest.MonkeyPatch) -> None:
    drop = Ledger.drop

    def keeps(self: Ledger, index: int, reason: DropReason) -> None:
        drop(self, index, reason)
        self.tally.live += 1

    patch.setattr(Ledger, "drop", keeps)


@mutant("budget")
def a_ticket_more_than_can_be_learned_from(patch: pytest.MonkeyPatch) -> None:
    opens = Budget.may_open

    def may_open(self: Budget, tally: Any) -> bool:
        spare = self.max_tickets is not None and tally.learned + tally.live <= self.max_tickets
        return spare or opens(self, tally)

    patch.setattr(Budget, "may_open", may_open)


@mutant("room")
def a_buffer_with_one_place_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Capacity, "may_open", lambda self, tally: tally.untaken <= self.max_tickets)


@mutant("room")
def bytes_of_what_is_on_its_way_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def may_open(self: Bytes, tally: Any) -> bool:
        if tally.untaken < self.tickets_per_batch or not tally.landed:
            return bool(tally.untaken < self.tickets_per_batch)
        return bool(tally.waiting_bytes + tally.landed_bytes / tally.landed <= self.max_bytes)

    patch.setattr(Bytes, "may_open", may_open)


@mutant("staleness")
def one_version_too_old(patch: pytest.MonkeyPatch) -> None:
    def is_stale(self: Expiry, staleness: int) -> bool:
        return self.max_staleness is not None and staleness > self.max_staleness + 1

    patch.setattr(Expiry, "is_stale", is_stale)


@mutant("expiry", "counts")
def dropped_a_version_too_early(patch: pytest.MonkeyPatch) -> None:
    def is_stale(self: Expiry, staleness: int) -> bool:
        return self.max_staleness is not None and staleness >= max(1, self.max_staleness)

    patch.setattr(Expiry, "is_stale", is_stale)


@mutant("age", "counts")
def too_long_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    def is_expired(self: Expiry, age_s: float) -> bool:
        return self.max_age_s is not None and age_s > 1.5 * self.max_age_s

    patch.setattr(Expiry, "is_expired", is_expired)


@mutant("staleness", "reason")
def waiting_begins_an_update_too_late(patch: pytest.MonkeyPatch) -> None:
    required = choosing_module.required_by_age

    def late(births: dict[int, int], **more: Any) -> Any:
        return required(births, **{**more, "updates_left": more["updates_left"] + 1})

    patch.setattr(choosing_module, "required_by_age", late)


@mutant("order", "same bits", "plain program")
def a_window_that_is_one_too_wide(patch: pytest.MonkeyPatch) -> None:
    def candidates(self: Chooser) -> Any:
        missing = None
        for index, entry in self._live.untaken.items():
            if missing is not None and index > missing + self._terms.order.window:
                return
            if entry.phase is Phase.READY:
                yield entry
            elif missing is None:
                missing = index

    patch.setattr(Chooser, "_candidates", candidates)


@mutant("order")
def last_come_first_served(patch: pytest.MonkeyPatch) -> None:
    candidates = Chooser._candidates

    def reversed_candidates(self: Chooser) -> Any:
        found = list(candidates(self))
        return reversed(found) if self._terms.order.is_first_come else iter(found)

    patch.setattr(Chooser, "_candidates", reversed_candidates)


@mutant("batch", "order")
def a_batch_that_is_not_complete(patch: pytest.MonkeyPatch) -> None:
    choose = Ledger.choose

    def short(self: Ledger, *args: Any, **more: Any) -> Choice:
        choice = choose(self, *args, **more)
        return Choice(choice.batch[:-1], choice.expired) if len(choice.batch) > 1 else choice

    patch.setattr(Ledger, "choose", short)


@mutant("trained once", "counts", "stations", "reason")
def what_was_taken_is_ready_again_after_a_resume(patch: pytest.MonkeyPatch) -> None:
    state_dict = Ledger.state_dict

    def forgets(self: Ledger, **more: Any) -> dict[str, Any]:
        state = state_dict(self, **more)
        for saved in state["live"]:
            saved["taken"] = False
        return state

    patch.setattr(Ledger, "state_dict", forgets)


@mutant("counts", "life", "same bits", "ends", "reason", "nothing left behind")
def what_was_in_flight_is_lost_with_a_resume(patch: pytest.MonkeyPatch) -> None:
    state_dict = Ledger.state_dict

    def forgets(self: Ledger, **more: Any) -> dict[str, Any]:
        state = state_dict(self, **more)
        state["live"] = [saved for saved in state["live"] if saved["span"] is not None]
        return state

    patch.setattr(Ledger, "state_dict", forgets)


@mutant("age", "expiry", "counts")
def the_time_a_run_is_down_makes_rollouts_young(patch: pytest.MonkeyPatch) -> None:
    load = Ledger.load_state_dict

    def younger(self: Ledger, state: dict[str, Any], **more: Any) -> None:
        load(self, {**state, "live": [{**saved, "age_s": 0.0} for saved in state["live"]]}, **more)

    patch.setattr(Ledger, "load_state_dict", younger)


@mutant("settles when published", "slots", "life")
def slots_come_free_before_the_version_is_published(patch: pytest.MonkeyPatch) -> None:
    account = QueueFeed.account

    def early(self: QueueFeed, batch: Batch, report: Any) -> Any:
        self._flights.settle(self._line)
        return account(self, batch, report)

    patch.setattr(QueueFeed, "account", early)


@mutant("newest snapshot", "pinned birth", "stations", "reason")
def tickets_take_off_with_an_older_snapshot(patch: pytest.MonkeyPatch) -> None:
    opens = Ledger.open

    def older(self: Ledger, version: int) -> Ticket | None:
        return opens(self, max(0, version - 1))

    patch.setattr(Ledger, "open", older)


@mutant("counts")
def staleness_is_measured_from_the_newest_version_of_a_span(patch: pytest.MonkeyPatch) -> None:
    land = Ledger.land

    def newest(self: Ledger, index: int, *, span: Any = None, **more: Any) -> Any:
        landed = land(self, index, span=span, **more)
        entry: Entry = self.entry(index)
        if entry.span is not None:
            entry.span = type(entry.span)(entry.span.newest, entry.span.newest)
        return landed

    patch.setattr(Ledger, "land", newest)


@mutant("counts")
def a_requeued_ticket_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    requeue = Ledger.requeue

    def silent(self: Ledger, index: int, version: int) -> Ticket:
        ticket = requeue(self, index, version)
        self.counts.requeued -= 1
        return ticket

    patch.setattr(Ledger, "requeue", silent)


@mutant("replay ratio", "ends", "reason", "same bits")
def the_learner_draws_ahead_of_the_ratio(patch: pytest.MonkeyPatch) -> None:
    def may_learn(self: ReplayRatio, tally: Any) -> bool:
        return bool(tally.inserted >= self.min_size and self._error(tally.inserted, tally.sampled) >= 0)

    patch.setattr(ReplayRatio, "may_learn", may_learn)


@mutant("evaluations", "last evaluation", "counts", "ends")
def an_evaluation_that_waits_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Evaluations, "unfinished", property(lambda self: ()))


@mutant("last evaluation")
def the_last_version_is_not_evaluated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Evaluations, "has_seen", lambda self, version: True)


@mutant("versions", "reason")
def a_version_has_an_update_too_many(patch: pytest.MonkeyPatch) -> None:
    init = Line.__init__

    def begin_late(self: Line, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        self.updates_in_version = -1

    patch.setattr(Line, "__init__", begin_late)


@mutant("pinned birth", "one ticket a seat", "reason", "ends")
def pinned_tickets_go_to_whoever_is_idle(patch: pytest.MonkeyPatch) -> None:
    init = TicketQueue.__init__

    def free(self: TicketQueue, num_collectors: int, *, pinned: bool, lanes: int = 1) -> None:
        init(self, num_collectors, pinned=False, lanes=lanes)

    patch.setattr(TicketQueue, "__init__", free)


@mutant("order", "settles when published", "life", "same bits")
def a_checkpoint_does_not_wait_for_the_other_line(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flights, "turns_of_others", lambda self: contextlib.nullcontext())


@mutant("slots", "staleness", "counts")
def the_other_line_has_a_slot_too_many(patch: pytest.MonkeyPatch) -> None:
    made = Settings.build_ledger

    def wider(self: Settings, lead: MaxLead, line: str = "") -> Ledger:
        return made(self, MaxLead(lead.max_lead + 1, lead.tickets_per_version) if line else lead, line)

    patch.setattr(Settings, "build_ledger", wider)


@mutant("scaling")
def whoever_leaves_still_gets_tickets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TicketQueue, "leave", lambda self, collector: None)


@mutant("scaling")
def whoever_leaves_does_not_wait_for_its_tickets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flights, "are_settled_of", lambda self, seat: True)


@mutant("one ticket a seat", "life", "pinned birth", "scaling", "reason", "ends")
def one_that_is_added_has_the_seat_of_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scaling, "_begin_loops", _begin_first_loops_again(Scaling._begin_loops))


def _begin_first_loops_again(begin: Any) -> Any:
    return lambda self, numbers: begin(self, [0] * len(numbers) if 0 not in numbers else numbers)


@mutant("same bits", "pinned birth", "reason", "ends")
def a_change_forgets_from_which_ticket_on_it_holds(patch: pytest.MonkeyPatch) -> None:
    change = SeatPlan.change
    patch.setattr(SeatPlan, "change", lambda self, since, seats: change(self, since + 1, seats))


@mutant("reason")
def a_run_fails_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Faults, "_happens", lambda self, name: name == "crash" and self._random.random() < 0.02)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_caught_within_some_hundred_schedules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, change = MUTANTS[name]
    change(monkeypatch)
    for number in range(ENOUGH):
        broken = {violation.rule for violation in run_schedule(number).violations}
        if broken & rules:
            return
    pytest.fail(f"{name} got through {ENOUGH} schedules")


def test_a_failure_needs_a_reason_that_was_injected() -> None:
    settings = Settings(plan=draw(0).settings.plan)
    message = "ticket 3 at version 1 failed on collector-0: crashed"
    assert unexplained(message, settings, Counter(crash=1), 1) == ""
    assert unexplained(message, settings, Counter(crash=1), 0) == "nothing was injected"
    assert "was injected" in unexplained(message, settings, Counter(final=1), 1)
    assert unexplained("the sky fell", settings, Counter(crash=1), 1) == "unknown failure"
    assert unexplained("ticket 3\nfailed", settings, Counter(crash=1), 1) == "more than one line"


# -- the command ----------------------------------------------------------------------------------------


def command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=100, check=False
    )


def test_the_command_ends_with_a_table_and_does_not_depend_on_the_number_of_processes() -> None:
    one = command("--schedules", "24", "--start", "7")
    two = command("--schedules", "24", "--start", "7", "--jobs", "2")
    assert one.returncode == two.returncode == 0, one.stderr + two.stderr
    tables = [dict(line.split(None, 1) for line in done.stdout.splitlines()) for done in (one, two)]
    assert tables[0]["failures"] == "0"
    assert tables[0]["schedules"].startswith("24 in ")
    for name in ("ended", "tickets", "faults", "fingerprint"):
        assert tables[0][name] == tables[1][name]


def test_the_command_begins_nothing_after_its_limit() -> None:
    done = command("--schedules", "100000", "--limit_s", "0")
    assert done.returncode == 0
    assert done.stdout.startswith("schedules                    0 in 0 s")


def test_one_schedule_is_shown_with_all_that_happened() -> None:
    done = command("--seed", "5", "--verbose")
    assert done.returncode == 0
    assert done.stdout.startswith("schedule 5\n  settings: ")
    assert " publish " in done.stdout
    assert run_schedule(5).end in done.stdout.splitlines()[-1]


def test_a_schedule_that_breaks_a_rule_is_named_with_the_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    specification = importlib.util.spec_from_file_location("fuzz", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    fuzz = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "fuzz", fuzz)
    specification.loader.exec_module(fuzz)
    one_slot_too_many(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--schedules", "5"])
    assert fuzz.main() == 1
    said = capsys.readouterr().out
    number = next(line.split()[1] for line in said.splitlines() if line.startswith("schedule "))
    assert f"(python bench/fuzz.py --seed {number} --verbose):" in said
    assert "rule: live tickets never exceed floor((1 + lead) * tickets per version)" in said
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--seed", number, "--verbose"])
    assert fuzz.main() == 1
    assert "^^^^^^ slots: at event " in capsys.readouterr().out
