"""What the runs of a sweep come to, from their folders: each run in numbers, and the curves of each setting.

    metrics.jsonl of each run --> RunNumbers --> settings (runs that differ by their seed alone)
                                                   curves: mean and interquartile mean with intervals, on three axes
                                                   finals: last scores with intervals; which setting beats which

A curve is drawn from where all runs of its setting have a number to where the shortest of them ends; a run that ended
because it reached its target stays where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headway.core.types_opaque import JsonObject
from headway.runs.parsed_json import parsed
from headway.tools.report.series import finite
from headway.tools.sweep import results_aggregate as aggregate
from headway.tools.sweep.grid import SweepRun, label_of
from headway.tools.sweep.grid_folder import Sweep, SweepFolder, SweepRunState

MEASURES = {
    "score": ("evaluate/score", "Score of the evaluations"),
    "return": ("learn/return", "Return while training"),
    "reward": ("learn/reward", "Reward while training"),
    "accuracy": ("learn/accuracy", "Accuracy while training"),
    "score_length": ("evaluate/length", "Length of the episodes of evaluations"),
    "length": ("learn/length", "Length of the episodes while training"),
}
"""What curves are drawn of: its name in metrics.jsonl, and its title. The first that any run has is what runs are
compared by."""
AXES = {"steps": "env_steps", "updates": "update", "seconds": "time_s"}
TARGET_REACHED = "reached a score of"
TASK = "env"
"""The setting whose values are tasks, where other settings are varied too: settings are compared over all of them."""


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """One run: how far it came, and its curves."""

    run: SweepRun
    state: SweepRunState
    env_steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    is_held: bool = False
    points: Mapping[str, Sequence[tuple[float, float, float, float]]] = field(default_factory=dict)
    """Measure -> (environment steps, updates, seconds, value), in order."""

    def curve(self, measure: str, axis: str) -> aggregate.Curve | None:
        """One measure along an axis; of several values at one place the last."""
        place = list(AXES).index(axis)
        at = {point[place]: point[3] for point in self.points.get(measure, ())}
        if not at:
            return None
        x = np.array(sorted(at))
        return aggregate.Curve(x, np.array([at[one] for one in x]), self.is_held)

    def last(self, measure: str) -> float | None:
        points = self.points.get(measure)
        return points[-1][3] if points else None

    def best(self, measure: str) -> float | None:
        return max((point[3] for point in self.points.get(measure, ())), default=None)


def read_run(folder: SweepFolder, run: SweepRun, state: SweepRunState) -> RunNumbers:
    """What the folder of a run says; nothing yet, where it has not begun."""
    place = folder.run_folder(run)
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    last: JsonObject = {}
    try:
        with open(place.metrics, encoding="utf-8") as lines:
            for line in lines:
                try:
                    told = parsed(line)
                except ValueError:
                    break  # the last line of a run that goes on
                where = tuple(float(told.get(name, 0.0)) for name in AXES.values())
                for measure, (name, _) in MEASURES.items():
                    value = finite(told.get(name))
                    if value is not None:
                        points.setdefault(measure, []).append((*where, value))  # type: ignore[arg-type]
                last = told if told.get("update", 0) >= last.get("update", 0) else last
    except OSError:
        pass
    by_step = {measure: sorted(found, key=lambda point: (point[1], point[2])) for measure, found in points.items()}
    reason = _stop_reason(place.summary.read_text()) if place.summary.is_file() else ""
    return RunNumbers(
        run,
        state,
        env_steps=int(last.get("env_steps", 0)),
        updates=int(last.get("update", 0)),
        seconds=float(last.get("time_s", 0.0)),
        is_held=reason.startswith(TARGET_REACHED),
        points=by_step,
    )


def _stop_reason(text: str) -> str:
    try:
        return str(parsed(text)["stop_reason"])
    except (ValueError, KeyError):
        return ""


# -- together ---------------------------------------------------------------------------------------


def document(folder: SweepFolder, sweep: Sweep, states: Mapping[str, SweepRunState]) -> JsonObject:
    """All of it in plain values: results.json, and what the page draws."""
    rows = [read_run(folder, run, states[run.folder]) for run in sweep.runs]
    measures = [name for name in MEASURES if any(row.points.get(name) for row in rows)]
    by_label: dict[str, list[RunNumbers]] = {}
    for row in rows:
        by_label.setdefault(row.run.label, []).append(row)
    compared = measures[0] if measures else None
    return {
        "sweep": sweep.name or folder.path.resolve().name,
        "recipe": sweep.recipe,
        "command": sweep.command,
        "fixed": dict(sweep.fixed),
        "seeds": sweep.seeds,
        "measures": {name: MEASURES[name][1] for name in measures},
        "compared_by": compared,
        "settings": [_setting(label, runs, measures, compared) for label, runs in by_label.items()],
        **_comparison(by_label, compared),
        "runs": [_run(row, measures, compared) for row in rows],
    }


def _run(row: RunNumbers, measures: Sequence[str], compared: str | None) -> JsonObject:
    return {
        "folder": row.run.folder,
        "setting": row.run.label,
        "varied": dict(row.run.varied),
        "seed": row.run.seed,
        "state": row.state.state,
        "error": row.state.error,
        "attempts": row.state.attempts,
        "env_steps": row.env_steps,
        "updates": row.updates,
        "seconds": finite(row.seconds),
        "best": None if compared is None else finite(row.best(compared)),
        "last": {measure: finite(row.last(measure)) for measure in measures},
    }


def _setting(label: str, runs: Sequence[RunNumbers], measures: Sequence[str], compared: str | None) -> JsonObject:
    finals = _finals(runs, compared)
    told: JsonObject = {
        "label": label,
        "varied": dict(runs[0].run.varied),
        "runs": len(runs),
        "finished": sum(row.state.state == "finished" for row in runs),
        "final": _estimates([finals]) if len(finals) else None,
        "env_steps": _mean([row.env_steps for row in runs]),
        "updates": _mean([row.updates for row in runs]),
        "seconds": _mean([row.seconds for row in runs]),
        "curves": {measure: {axis: _curve(runs, measure, axis) for axis in AXES} for measure in measures},
    }
    return told


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if value]
    return finite(float(np.mean(known))) if known else None


def _finals(runs: Sequence[RunNumbers], measure: str | None) -> np.ndarray:
    """The last value of each run that has got to its end: what is under way would count against its setting."""
    if measure is None:
        return np.zeros(0)
    over = [row.last(measure) for row in runs if row.state.state == "finished"]
    return np.array([value for value in over if value is not None])


def _estimates(strata: Sequence[np.ndarray]) -> JsonObject:
    found = {name: aggregate.estimate(strata, of) for name, of in aggregate.STATISTICS.items()}
    return {name: [finite(one.value), finite(one.low), finite(one.high)] for name, one in found.items()}


def _curve(runs: Sequence[RunNumbers], measure: str, axis: str) -> JsonObject | None:
    """The curve of a setting, and those of its runs."""
    known = [(row, curve) for row in runs if (curve := row.curve(measure, axis)) is not None]
    if not known:
        return None
    curves = [curve for _, curve in known]
    each = [_thinned(row.run.seed, curve) for row, curve in known]
    told: JsonObject = {"x": [], "runs": each, "count": len(curves)}
    points = aggregate.common_points(curves)
    if not len(points):
        return told
    values = aggregate.at_points(curves, points)
    told["x"] = [finite(float(x)) for x in points]
    for name, statistic in aggregate.STATISTICS.items():
        middle, low, high = aggregate.bootstrap([values], statistic)
        told[name] = {
            part: [finite(float(one)) for one in column]
            for part, column in (("y", middle), ("low", low), ("high", high))
        }
    return told


def _thinned(seed: int, curve: aggregate.Curve) -> JsonObject:
    points = aggregate.common_points([aggregate.Curve(curve.x, curve.y)])
    values = np.interp(points, curve.x, curve.y)
    return {"seed": seed, "x": [finite(float(x)) for x in points], "y": [finite(float(y)) for y in values]}


# -- which setting beats which ----------------------------------------------------------------------


def _comparison(by_label: Mapping[str, Sequence[RunNumbers]], measure: str | None) -> JsonObject:
    """The settings by their last values, and for each pair how likely the first beats the second.

    Where the environment is varied among other settings, it is the task: scores are brought to 0 to 1 on each task, and
    a setting's runs are those of all tasks, drawn anew within each.
    """
    strata, tasks = _strata(by_label, measure)
    ranked = {label: _estimates(own) for label, own in strata.items()}
    order = sorted(ranked, key=lambda label: -ranked[label]["iqm"][0])
    pairs = []
    for place, one in enumerate(order):
        for other in order[place + 1 :]:
            found = aggregate.improvement(strata[one], strata[other])
            numbers = [finite(found.value), finite(found.low), finite(found.high)]
            pairs.append({"better": one, "than": other, "probability": numbers})
    aggregates = [{"label": label, "runs": sum(map(len, strata[label])), **ranked[label]} for label in order]
    return {"tasks": tasks, "aggregates": aggregates, "improvement": pairs}


def _strata(
    by_label: Mapping[str, Sequence[RunNumbers]], measure: str | None
) -> tuple[dict[str, list[np.ndarray]], list[str]]:
    """Setting -> the last values of its finished runs on each task. Only settings that have some on every task."""
    finals = {label: _finals(runs, measure) for label, runs in by_label.items()}
    varied = {label: dict(runs[0].run.varied) for label, runs in by_label.items()}
    several = any(TASK in own and len(own) > 1 for own in varied.values())
    if not several:
        return {label: [own] for label, own in finals.items() if len(own)}, []
    tasks = list(dict.fromkeys(str(own[TASK]) for own in varied.values()))
    table: dict[str, dict[str, np.ndarray]] = {}
    for label, own in varied.items():
        setting = label_of({name: value for name, value in own.items() if name != TASK})
        table.setdefault(setting, {})[str(own[TASK])] = finals[label]
    whole = {name: row for name, row in table.items() if all(len(row.get(task, ())) for task in tasks)}
    scaled = {task: aggregate.normalised([row[task] for row in whole.values()]) for task in tasks if whole}
    return {name: [scaled[task][place] for task in tasks] for place, name in enumerate(whole)}, tasks
