"""headway demo [--toy] [--runs FOLDER]: CartPole (or a toy problem) without and with a lead, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, sin
from pathlib import Path
from typing import TypeVar

from headway.cli.options_output import say
from headway.cli.options_words import UsageError, read_options
from headway.coordinator.roles import LEARNER, Stations
from headway.coordinator.run_result import RunResult
from headway.core.text_naming import unknown
from headway.core.text_statistics import side_by_side
from headway.core.types import Snapshot, Ticket, derive_seed
from headway.core.types_opaque import JsonObject
from headway.runs.bandit import FunctionsConfig
from headway.runs.bandit import stations as toy_stations
from headway.runs.config import RunConfig
from headway.runs.event_log import read_events
from headway.runs.files_run_summary import statistics_rows
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.tools.report.report_page import REPORT, write_report
from headway.tools.report.terminal_charts_chart import Canvas, beside, curve_chart
from headway.tools.report.terminal_charts_timeline import text_timeline

TARGET, MOST_RETURN = 475, 500
WAITING = "headway.envs.waiting_cartpole:headway/WaitingCartPole-v1"


@dataclass(frozen=True, slots=True)
class Done:
    """One of the two runs."""

    result: RunResult
    folder: RunFolder

    @property
    def events(self) -> list[JsonObject]:
        return list(read_events(self.folder.events))


def demo(root: Path, *, updates: int = 80) -> str:
    """Train CartPole twice, on the same budget, and say what happened. Its simulator answers a little late, as most do:
    a few lines of numpy would leave nothing to overlap."""
    try:
        from headway.ppo.cartpole import CartPoleConfig, stations
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the demo trains CartPole, which needs {error.name}: pip install 'headway[games]' "
            f"(headway demo --toy needs nothing more)"
        ) from None
    first = CartPoleConfig(updates=1, evaluate_every=1, eval_episodes=1, target_score=None)
    launch(stations(first), first.settings(), runtime="inline")  # compiles the kernels: neither run shall pay for it
    runs: dict[str, Done] = {}
    for lead in (0, 1):
        config = CartPoleConfig(
            env=WAITING,
            max_lead=lead,
            updates=updates,
            target_score=None,  # the budget is the same for both
            evaluate_every=10,
            evaluate_in_background=lead > 0,
            correction="clip",
            gamma=0.98,
            lam=0.8,
            final_learning_rate=0.0,
        )
        runs[f"max_lead={lead}"] = _run(root, "cartpole", config, stations(config))
    serial, ahead = runs.values()
    parts = [
        side_by_side({name: statistics_rows(run.result) for name, run in runs.items()}),
        "\nreturn (mean of the last 100 episodes) against time\n" + _curves(runs),
        _timelines(runs, seconds=8 * _round_s(serial.result)),
        "\n" + _film(config, stations, ahead.result),
        "",
        *(f"{name}: {_when_reached(run)}, {run.result.wall_s:.1f} s in all" for name, run in runs.items()),
        _verdict(serial.result, ahead.result),
        _shares(serial.result) + "; headway demo --toy shows the overlap where both sides wait and take as long",
        _places(runs),
    ]
    return "\n".join(parts)


def toy(root: Path, *, updates: int = 150) -> str:
    """Run the toy problem twice and say what happened."""
    runs = {}
    for lead in (0, 2):
        config = FunctionsConfig(max_lead=lead, updates=updates, evaluate_every=25)
        runs[f"max_lead={lead}"] = _run(root, "functions", config, toy_stations(config))
    serial, ahead = (run.result for run in runs.values())
    parts = [
        side_by_side({name: statistics_rows(run.result) for name, run in runs.items()}),
        _timelines(runs, seconds=10 * _round_s(serial)),
        "",
        _verdict(serial, ahead),
        _places(runs),
    ]
    return "\n".join(parts)


def _run(root: Path, recipe: str, config: RunConfig, stations: Stations) -> Done:
    folder = RunFolder.create(root, "demo")
    folder.write_config(recipe, config.model_dump(mode="json"))
    return Done(launch(stations, config.settings(), folder=folder, show_status=True), folder)


# -- what happened ----------------------------------------------------------------------------------


def _verdict(serial: RunResult, ahead: RunResult) -> str:
    measured, possible = serial.wall_s / ahead.wall_s, serial.wall_s / floor_s(serial, ahead)
    share = 100 * (measured - 1) / (possible - 1)
    return (
        f"speed-up measured {measured:.2f}x, possible {possible:.2f}x ({share:.0f} % of what overlap can give); "
        f"score {last_score(serial):.4g} without and {last_score(ahead):.4g} with a lead, "
        f"on data {ahead.ledger.mean_staleness:.1f} versions old"
    )


def work_s(result: RunResult) -> dict[str, float]:
    """Seconds of each kind of work, as if every role had a core of its own."""
    spent = result.time_spent
    return {
        "collecting": spent.total("collector", "collect") / result.settings.seats,
        "learning": spent.total(LEARNER, "learn"),
        "evaluating": spent.total("evaluator", "evaluate"),
    }


def floor_s(serial: RunResult, ahead: RunResult) -> float:
    """The least time the serial run's work can take the way the other run did it: the busiest role's alone, and that of
    evaluations that pause the others. Beside a run evaluations may be skipped: only as many count."""
    work = work_s(serial)
    if ahead.settings.evaluate_in_background:
        share = len(ahead.scores) / max(1, len(serial.scores))
        return max(work["collecting"], work["learning"], work["evaluating"] * share)
    return max(work["collecting"], work["learning"]) + work["evaluating"]


def _shares(serial: RunResult) -> str:
    work = work_s(serial)
    shares = ", ".join(f"{100 * seconds / serial.wall_s:.0f} % {name}" for name, seconds in work.items())
    return f"the synchronous run spent {shares}; at best the longest of them remains"


def _round_s(serial: RunResult) -> float:
    """One rollout and the update after it."""
    return serial.time_spent.mean("collector", "collect") + serial.time_spent.mean(LEARNER, "learn")


def last_score(result: RunResult) -> float:
    return next(score.value for score in reversed(result.scores) if score.value is not None)


def _timelines(runs: Mapping[str, Done], *, seconds: float) -> str:
    """The same stretch of both runs: rounds, and the beginning of an evaluation."""
    parts = []
    for name, run in runs.items():
        events = run.events
        begin = next(event["t"] for event in events if event["e"] == "start")
        evaluations = [event["t"] for event in events if event["e"] == "evaluate"]
        skip_s = evaluations[len(evaluations) // 2] - begin - 0.7 * seconds
        parts.append(f"\n{name}: {1000 * seconds:.0f} ms of the run")
        parts.append(text_timeline(events, skip_s=max(0.0, skip_s), seconds=seconds))
    return "\n".join(parts)


def _when_reached(run: Done) -> str:
    events = run.events
    begin = next(event["t"] for event in events if event["e"] == "open")
    for event in events:
        if event["e"] == "score" and event["value"] is not None and event["value"] >= TARGET:
            return f"a mean return of {TARGET} after {event['t'] - begin:.1f} s (version {event['v']})"
    return f"a mean return of {TARGET} was not reached"


def _curves(runs: Mapping[str, Done]) -> str:
    """What the learner saw, against the clock, on the same axes."""
    right = max(run.result.wall_s for run in runs.values())
    charts = []
    for name, run in runs.items():
        events = run.events
        begin = next(event["t"] for event in events if event["e"] == "open")
        points = [
            (event["t"] - begin, event["m"]["return"])
            for event in events
            if event["e"] == "learn" and "return" in event["m"]
        ]
        charts.append([f"{'':6}{name}", *curve_chart(points, right=right, top=MOST_RETURN, unit=" s")])
    return "\n".join(line.rstrip() for line in beside(charts))


def _places(runs: Mapping[str, Done]) -> str:
    """Where everything is. The page with both runs lies with the second."""
    folders = [run.folder.path for run in runs.values()]
    page = write_report(folders, folders[-1] / REPORT)
    return (
        f"event logs, configurations and checkpoints: {', '.join(map(str, folders))}\n"
        f"both runs side by side, with the timeline: {page}"
    )


# -- CartPole for an audience -----------------------------------------------------------------------

Config = TypeVar("Config", bound=RunConfig)
NUM_FRAMES = 5
FRAME = (13, 5)  # characters
TRACK = 2.4  # half of it


def _film(config: Config, stations: Callable[[Config], Stations], result: RunResult) -> str:
    """An episode of the first version and one of the last, five frames each, from the same start."""
    alone = config.model_copy(update={"num_envs": 1, "segment_steps": MOST_RETURN, "seed": config.seed + 1})
    roles = stations(alone)
    strips = []
    for version, weights in ((0, roles.learner().snapshot()), (result.version, result.weights)):
        ticket = Ticket(0, derive_seed(alone.seed, "film"), version)
        segment = roles.collector(0).collect(ticket, Snapshot(version, weights)).payload
        ended = [step for step, end in enumerate(segment.terminated[:, 0], 1) if end]
        length = min([*ended, MOST_RETURN])
        steps = [round(length * place / (NUM_FRAMES - 1)) for place in range(NUM_FRAMES)]
        frames = [[*_frame(*segment.obs[step, 0, [0, 2]]), f"step {step}".center(FRAME[0])] for step in steps]
        strips.append("\n".join([f"version {version}", *(line.rstrip() for line in beside(frames, gap=1))]))
    return "\n".join(strips)


def _frame(position: float, angle: float) -> list[str]:
    """Track, cart and pole."""
    canvas = Canvas(*FRAME)
    middle = (position / TRACK + 1) / 2 * (canvas.across - 1)
    canvas.line((0, 0), (canvas.across - 1, 0))
    for height in (1, 2, 3):
        canvas.line((middle - 3, height), (middle + 3, height))
    reach = canvas.up - 5
    canvas.line((middle, 4), (middle + reach * sin(angle), 4 + reach * cos(angle)))
    return canvas.rows()


def command(words: list[str]) -> int:
    """The command."""
    options = read_options(words)
    root, is_toy = Path(str(options.pop("runs", "runs"))), options.pop("toy", False)
    for name in options:
        raise UsageError(unknown("option", name, ["toy", "runs"]))
    if not isinstance(is_toy, bool):
        raise UsageError(f"--toy takes no value, received {is_toy!r}")
    say(toy(root) if is_toy else demo(root))
    return 0
