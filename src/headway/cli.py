"""headway demo | run | resume | evaluate | export | samples | report | doctor
headway status | trace | simulate | explain | watch | play

headway demo
headway run functions --max_lead 2 --collectors 2
headway run --config runs/functions-20260401-101500/config.yaml --seed 1
headway run --replay runs/functions-20260401-101500
headway resume runs/functions-20260401-101500
headway resume runs/functions-20260401-101500 --checkpoint 000001-v40
headway evaluate runs/functions-20260401-101500 --checkpoint best
headway export runs/grpo-20260401-101500 --checkpoint best --to a-model
headway samples runs/grpo-20260401-101500 --best
headway report runs/functions-20260401-101500
headway doctor runs/functions-20260401-101500
headway simulate --collect lognormal:1,0.5 --learn 0.8 --collectors 4
headway simulate --run runs/functions-20260401-101500
headway status runs/functions-20260401-101500
headway trace runs/functions-20260401-101500
headway explain off_policy_degree=-1
headway watch runs/colorlines-20260401-101500 --checkpoint best
headway play
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, get_args

import yaml
from rich.console import Console
from rich.table import Table

from headway.coordinate.best_weights import LAST
from headway.coordinate.checkpoint import CheckpointError, CheckpointStore
from headway.coordinate.coordinator import RunResult
from headway.coordinate.rerun import ReplayError, replay
from headway.coordinate.role_calls import RunFailed
from headway.coordinate.roles import Stations
from headway.coordinate.system_failures import SystemFailed
from headway.coordinate.waits import Stalled
from headway.core.naming import unknown
from headway.core.protocols import RoleRaised
from headway.core.refusals import refusal
from headway.demo import demo as demonstrate
from headway.demo import toy as demonstrate_toy
from headway.evaluating import Measured, Spread
from headway.evaluating import evaluate as evaluate_again
from headway.exporting import export as export_run
from headway.launching import build_sinks, has_tensorboard, launch, statistics_rows
from headway.names import lightzero_names, nested_names
from headway.names.known_names import KNOWN_NAMES, SYSTEMS, KnownName, OtherMeaning
from headway.names.nested_names import PATHS, WITHOUT_EFFECT
from headway.observe.fingerprint import fingerprint
from headway.observe.folder import RunFolder
from headway.observe.messages import to_stderr
from headway.observe.recorder import read_events
from headway.observe.run_history import read_story
from headway.observe.sample_view import show
from headway.observe.samples import EVAL, TRAIN, choose, read_samples
from headway.observe.sinks import Sink
from headway.observe.statistics import statistics_block
from headway.observe.status import read_status
from headway.observe.trace import write_trace
from headway.recipes import RECIPES, Recipe, lightzero, load_recipe
from headway.recipes.config import ConfigError, RunConfig, Said, read_values, understand
from headway.reporting import PORT, ReportServer, examine, leave_report, write_report
from headway.simulate.fitting import fit
from headway.simulate.simulation import Outcome, Workshop, compare, recommend
from headway.simulate.workloads import parse_duration

OUT = Console(highlight=False, soft_wrap=True)


class UsageError(ValueError):
    """The command line is not understood."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The `headway` command. 0: done; 1: the run failed, or the operating system did; 2: the input is wrong; 130: ended
    by hand."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {"demo": demo, "run": run, "resume": resume, "simulate": simulate, "explain": explain}
    commands |= {"watch": watch, "play": play, "status": status, "trace": trace}
    commands |= {"report": report, "doctor": doctor, "evaluate": evaluate, "export": export, "samples": samples}
    try:
        if not words or words[0] in ("-h", "--help"):
            OUT.print(__doc__, markup=False)
            return 0
        if words[0] not in commands:
            raise UsageError(unknown("command", words[0], commands))
        code = commands[words[0]](words[1:])
        sys.stdout.flush()
        return code
    except (UsageError, ConfigError, CheckpointError, ReplayError, ValueError) as error:
        print(f"headway: {error}", file=sys.stderr)
        return 2
    except (RunFailed, Stalled) as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1
    except (OSError, MemoryError, RuntimeError) as error:
        what = refusal(error)
        if what is None:
            raise
        to_stderr(f"{'' if _is_heard() else 'standard output: '}{what}")
        return 1
    except KeyboardInterrupt:
        print("headway: ended by hand; nothing was saved since the last checkpoint", file=sys.stderr)
        return 130


def _is_heard() -> bool:
    """Can standard output be written? If not it is closed, so that nothing tries again at the end of the process."""
    try:
        sys.stdout.flush()
        return True
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False


def demo(words: list[str]) -> int:
    """headway demo [--toy] [--runs FOLDER]: CartPole (or a toy problem) without and with a lead, side by side."""
    options = _options(words)
    if "help" in options or "h" in options:
        OUT.print(demo.__doc__, markup=False)
        return 0
    root, is_toy = Path(str(options.pop("runs", "runs"))), options.pop("toy", False)
    for name in options:
        raise UsageError(unknown("option", name, ["toy", "runs"]))
    if not isinstance(is_toy, bool):
        raise UsageError(f"--toy takes no value, received {is_toy!r}")
    OUT.print((demonstrate_toy if is_toy else demonstrate)(root), markup=False)
    return 0


# -- run --------------------------------------------------------------------------------------------


def run(words: list[str]) -> int:
    """headway run [RECIPE] [--config FILE] [--names SYSTEM] [--replay RUN] [--runs FOLDER] [--quiet] [--FIELD VALUE]

    RECIPE is a name, or a file of your own that ends in .py. Settings known from other systems are understood too,
    nested ones as group.name=value: see headway explain. --names says whose they are, where systems mean different
    things by one name.
    """
    recipe_name = words.pop(0) if words and not words[0].startswith("-") and "=" not in words[0] else ""
    if not recipe_name and words[:1] in (["-h"], ["--help"]):
        return _help_run()
    options = _options(words)
    if "replay" in options:
        path = Path(str(options.pop("replay")))
        if options or recipe_name:
            raise UsageError("--replay repeats a run as it was: it takes no recipe and no other option")
        return _replay(path)
    values: dict[str, Any] = {}
    if "config" in options:
        named, values = lightzero.read_file(Path(str(options.pop("config"))))
        recipe_name = recipe_name or named
    if not recipe_name:
        raise UsageError(f"run needs a recipe: {', '.join(RECIPES)}")
    recipe = load_recipe(recipe_name)
    if "help" in options or "h" in options:
        return _help_recipe(recipe)
    root = Path(str(options.pop("runs", "runs")))
    quiet = bool(options.pop("quiet", False))
    start(recipe, values, options, root=root, quiet=quiet)
    return 0


def start(recipe: Recipe, *layers: Mapping[str, Any], root: Path, quiet: bool) -> RunResult:
    """A new run in a folder of its own under `root`, with settings as `read_values` takes them."""
    config = read_values(recipe.config, *layers)
    for said in understand(recipe.config, *layers)[1]:
        if isinstance(said.meaning, str):
            OUT.print(f"{said.name}={said.value} has no effect: {said.meaning}", markup=False)
    stations = recipe.stations(config)  # before there is a folder: what cannot be leaves nothing behind
    folder = RunFolder.create(root, recipe.title, config.name)
    try:
        return _launch(recipe, stations, config, folder, resume=False, quiet=quiet)
    except SystemFailed:
        if not folder.config.is_file():  # there was no room for that much
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def resume(words: list[str]) -> int:
    """headway resume RUN [--checkpoint NAME|VERSION] [--FIELD VALUE ...]

    Goes on from the last checkpoint, with a longer plan if you like; with --checkpoint from an earlier one (000007-v42,
    or the number of its version). What was recorded and saved after that one is set aside. Checkpoints are pickles:
    resume only runs you trust.
    """
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(resume.__doc__, markup=False)
        return 0
    if not words or words[0].startswith("-"):
        raise UsageError("resume needs the folder of a run: headway resume RUN")
    folder = RunFolder.existing(Path(words[0]))
    options = _options(words[1:])
    quiet = bool(options.pop("quiet", False))
    with folder.hold():  # before anything is read
        begin = options.pop("checkpoint", None)
        if begin is not None:
            store = CheckpointStore(folder.checkpoints)
            if begin is True:
                there = ", ".join(path.name for path in store.all()) or "none"
                raise UsageError(f"--checkpoint needs a name or a version; there: {there}")
            store.find(begin)  # before anything is built
        name, values = folder.read_config()
        recipe = load_recipe(name)
        config = read_values(recipe.config, values, options)
        _launch(recipe, recipe.stations(config), config, folder, resume=True, checkpoint=begin, quiet=quiet)
    return 0


def _launch(
    recipe: Recipe,
    stations: Stations,
    config: RunConfig,
    folder: RunFolder,
    *,
    resume: bool,
    quiet: bool,
    checkpoint: str | int | None = None,
) -> RunResult:
    runtime = config.build_runtime()
    sinks = _sinks(config, folder, is_new=not resume)
    OUT.print(f"{recipe.title}: {'resumed in' if resume else 'running in'} {folder.path}", markup=False)
    OUT.print(_metrics_line(config, folder, sinks), markup=False)
    try:
        result = launch(
            stations,
            config.settings(),
            runtime=runtime,
            folder=folder,
            keep_checkpoints=config.keep_checkpoints,
            resume=resume,
            checkpoint=checkpoint,
            show_status=not quiet,
            print_events=config.log_level == "debug",
            sinks=sinks,
            metrics_interval_s=config.metrics_interval_s,
            metric_aliases=config.metric_aliases,
            alarms=config.alarms,
            monitor=config.monitor,
            monitor_every_s=config.monitor_every_s,
            statistics_every_s=config.statistics_every_s,
            keep_best=config.keep_best,
            config=(recipe.name, config.model_dump(mode="json")),
        )
    except SystemFailed:  # its line says how to go on; a page or a file more may be just what there is no room for
        raise
    except (RunFailed, Stalled) as error:
        if config.report:
            OUT.print(leave_report(folder), markup=False)
        if isinstance(error.__cause__, RoleRaised) and error.__cause__.details:
            _leave_error(folder, error.__cause__.details)
        if CheckpointStore(folder.checkpoints).all():
            print(f"to go on from the last checkpoint: headway resume {folder.path}", file=sys.stderr)
        raise
    _print_result(result, folder)
    if config.report:
        OUT.print(leave_report(folder), markup=False)
    if not folder.summary.is_file():
        raise SystemExit(1)  # `launch` has said why
    return result


def _leave_error(folder: RunFolder, details: str) -> None:
    try:
        folder.write_error(details)
        print(f"the traceback is in {folder.error}", file=sys.stderr)
    except OSError as error:
        to_stderr(f"no traceback: {refusal(error)}")


def _sinks(config: RunConfig, folder: RunFolder, *, is_new: bool) -> list[Sink]:
    """What the settings ask for. A new run that cannot have them leaves nothing behind."""
    try:
        return build_sinks(
            folder,
            tensorboard=config.tensorboard,
            use_wandb=config.use_wandb,
            wandb_project=config.wandb_project,
            wandb_mode=config.wandb_mode,
            prometheus_port=config.prometheus_port,
            prometheus_host=config.prometheus_host,
            config=config.model_dump(mode="json"),
            name=config.name,
        )
    except (ValueError, OSError):
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _metrics_line(config: RunConfig, folder: RunFolder, sinks: Sequence[Sink]) -> str:
    places = [str(folder.metrics), *map(str, sinks)]
    if config.tensorboard is None and not has_tensorboard():
        places.append("not for TensorBoard, which is not installed (pip install 'headway[tensorboard]')")
    return f"metrics: {', '.join(places)}"


def _print_result(result: RunResult, folder: RunFolder) -> None:
    OUT.print(statistics_block(statistics_rows(result)), markup=False)
    OUT.print(f"weights {fingerprint(result.weights)}, version {result.version}; in {folder.path}", markup=False)
    if not result.is_complete:
        OUT.print(f"to go on: headway resume {folder.path}", markup=False)


def _replay(path: Path) -> int:
    folder = RunFolder.existing(path)
    name, values = folder.read_config()
    recipe = load_recipe(name)

    def stations_for(config: Mapping[str, Any] | None) -> Stations:
        """Of one session: with the settings it had."""
        told = values if config is None else {key: value for key, value in config.items() if key != "recipe"}
        return recipe.stations(read_values(recipe.config, told))

    done = replay(stations_for, read_events(folder.events))
    print_now = fingerprint(done.weights)
    OUT.print(f"replayed {done.updates} updates to version {done.version}: weights {print_now}", markup=False)
    recorded = folder.recorded_fingerprint()
    if recorded is None:
        OUT.print("the run did not finish, so there is nothing to compare with", markup=False)
        return 0
    same = recorded == print_now
    OUT.print("the same bits as recorded" if same else f"NOT the recorded {recorded}", markup=False)
    return 0 if same else 1


# -- evaluate ---------------------------------------------------------------------------------------


def evaluate(words: list[str]) -> int:
    """headway evaluate RUN [--checkpoint best|last|VERSION] [--seed N] [--repeat K] [--SETTING VALUE ...]

    Scores a checkpoint again, without training: the newest one, unless another is named. Without other settings and
    with the run's seed the score is the one the run found. --repeat evaluates with K seeds from there on. Settings of
    the recipe that concern evaluation may be others: --eval_episodes 200, --eval_samples 16. Checkpoints are pickles:
    evaluate only runs you trust.
    """
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(evaluate.__doc__, markup=False)
        return 0
    folder, options = RunFolder.existing(_one_run("evaluate", words[:1])), _options(words[1:])
    which = options.pop("checkpoint", LAST)
    numbers = {name: options.pop(name) for name in ("seed", "repeat") if name in options}
    numbers = {name: _whole_numbers({name: value}, **{name: 0})[name] for name, value in numbers.items()}
    _print_measured(evaluate_again(folder, checkpoint=which, changes=options, **numbers), folder)
    return 0


def _print_measured(measured: Measured, folder: RunFolder) -> None:
    kept, seeds = measured.kept, measured.seeds
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    recorded = "" if kept.score is None else f"; the run's own score was {kept.score:.6g}"
    OUT.print(f"version {kept.version} of {folder.path}, {said}{recorded}", markup=False)
    rows = [(name, Spread.of(values)) for name, values in measured.values().items()]
    if len(seeds) == 1:
        _print_table(["what", "value"], [[name, f"{found.mean:.6g}"] for name, found in rows])
        return
    heads = ["what", "mean", "deviation", "lowest", "highest"]
    numbers = [[found.mean, found.deviation, found.low, found.high] for _, found in rows]
    lines = zip(rows, numbers, strict=True)
    _print_table(heads, [[name, *(f"{number:.6g}" for number in line)] for (name, _), line in lines])


# -- export -----------------------------------------------------------------------------------------


def export(words: list[str]) -> int:
    """headway export RUN --to FOLDER [--checkpoint best|last|VERSION] [--adapters true]

    The trained language model of a run as a folder that transformers and vLLM load: the newest checkpoint, unless
    another is named. Adapters are folded in, or with --adapters true written by themselves, for peft. Checkpoints are
    pickles: export only runs you trust.
    """
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(export.__doc__, markup=False)
        return 0
    folder, options = RunFolder.existing(_one_run("export", words[:1])), _options(words[1:])
    to = options.pop("to", True)
    if to is True:
        raise UsageError("export needs a folder to write to: headway export RUN --to FOLDER")
    done = export_run(folder, Path(str(to)), **options)
    kept = done.kept
    OUT.print(f"version {kept.version}, weights {fingerprint(kept.weights)}: {done.folder}", markup=False)
    return 0


# -- report and doctor ------------------------------------------------------------------------------


def report(words: list[str]) -> int:
    """headway report RUN [RUN ...] [--output FILE] [--serve] [--port N]: what happened, as one page.

    Without --output the page is report.html in the folder of the first run. With --serve it is shown on this machine
    and follows a run that goes on, until Ctrl-C.
    """
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(report.__doc__, markup=False)
        return 0
    serve = "--serve" in words  # it takes no value: what follows may be a run
    words = [word for word in words if word != "--serve"]
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    runs, options = [Path(word) for word in words[:first]], _options(words[first:])
    for name in options:
        if name not in ("output", "port"):
            raise UsageError(unknown("option", name, ["output", "serve", "port"]))
    if not runs:
        raise UsageError("report needs the folder of a run: headway report RUN [RUN ...]")
    port = options.get("port", PORT)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise UsageError(f"--port must be a whole number from 0 to 65535, received {port!r}")
    if serve and "output" in options:
        raise UsageError("--output is for a page that is written; with --serve there is none")
    if serve:
        return _serve(runs, port)
    if "port" in options:
        raise UsageError("--port is for --serve")
    output = options.get("output")
    path = write_report(runs, None if output is None else Path(str(output)))
    OUT.print(f"report: {path}", markup=False)
    return 0


def _serve(runs: Sequence[Path], port: int) -> int:
    """Ctrl-C is waited for, not raised: an exception in the middle of a line would have it printed twice."""
    ended: SimpleQueue[int] = SimpleQueue()  # a handler may put into it whatever the main thread holds
    with ReportServer(runs, port) as server:
        before = signal.signal(signal.SIGINT, lambda number, _: ended.put(number))
        try:
            serving = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
            serving.start()
            OUT.print(f"report: {server.address} (Ctrl-C ends it)", markup=False)
            ended.get()
        finally:
            signal.signal(signal.SIGINT, before)
        OUT.print("ended", markup=False)
        server.shutdown()
        serving.join()
    return 0


def doctor(words: list[str]) -> int:
    """headway doctor RUN: which side is the bottleneck and what to change, each with its evidence."""
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(doctor.__doc__, markup=False)
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError("doctor needs the folder of one run: headway doctor RUN")
    OUT.print(examine(Path(words[0])), markup=False)
    return 0


# -- simulate ---------------------------------------------------------------------------------------

SIMULATE_OPTIONS = {
    "collect": "seconds per rollout: 1.0, exponential:1, lognormal:1,0.5 or pareto:1,1.5 (default 1.0)",
    "learn": "seconds per update, likewise (default 1.0)",
    "evaluate": "seconds per evaluation, likewise (default 0)",
    "evaluate_every": "versions between evaluations (default 0: none)",
    "evaluate_in_background": "evaluations beside the rest (default false)",
    "collectors": "collectors at once (default 1)",
    "lanes": "rollouts one collector works on at once (default 1)",
    "tickets_per_batch": "rollouts per update (default 1)",
    "publish_every": "updates per version (default 1)",
    "order": "oldest, window(N) or ready (default oldest)",
    "max_staleness": "age limit of one rollout",
    "on_stale": "wait, drop, requeue or keep (default wait)",
    "dispatch": "pinned or free (default: pinned where possible)",
    "updates": "updates to simulate (default 500)",
    "seed": "of the durations (default 0)",
    "leads": "the leads to compare, numbers or auto (default 0,1,2,4,8)",
    "run": "fit durations and cut to this recorded run; other options override",
}


COUNTS = (
    "evaluate_every",
    "collectors",
    "lanes",
    "tickets_per_batch",
    "publish_every",
    "max_staleness",
    "updates",
    "seed",
)


def simulate(words: list[str]) -> int:
    """headway simulate [--run RUN] [--collect D] [--learn D] [--leads 0,1,2,4,8] ...: what each lead would give."""
    options = _options(words)
    if "help" in options or "h" in options:
        _print_table(["option", "meaning"], [[f"--{name}", meaning] for name, meaning in SIMULATE_OPTIONS.items()])
        return 0
    for name in options:
        if name not in SIMULATE_OPTIONS:
            raise UsageError(unknown("option", name, SIMULATE_OPTIONS))
    leads = _leads(options.pop("leads", "0,1,2,4,8"))
    path = options.pop("run", None)
    if path is None:
        workshop = Workshop(collect=parse_duration("1.0"), learn=parse_duration("1.0"))
    else:
        workshop = fit(read_story(Path(str(path))))
    for name, value in options.items():
        if name in ("collect", "learn", "evaluate"):
            options[name] = parse_duration(str(value))
        elif name in COUNTS and (isinstance(value, bool) or not isinstance(value, int)):
            raise UsageError(f"--{name} must be a whole number, received {value!r}")
        elif name in ("order", "on_stale", "dispatch"):
            options[name] = str(value)
    outcomes = compare(replace(workshop, **options), leads)
    _print_outcomes(leads, outcomes)
    return 0


def _leads(value: Any) -> list[float | Literal["auto"]]:
    leads: list[float | Literal["auto"]] = []
    for part in str(value).split(","):
        try:
            leads.append("auto" if part.strip() == "auto" else float(part))
        except ValueError:
            leads.append(-1.0)
    if any(lead != "auto" and not 0 <= lead < inf for lead in leads):
        raise UsageError(f"leads must be numbers >= 0 or auto, such as 0,1,2,auto, received {value!r}")
    return leads


def _print_outcomes(leads: Sequence[float | str], outcomes: list[Outcome]) -> None:
    base = outcomes[0]
    rows = [
        [
            f"auto ({outcome.lead:g})" if lead == "auto" else f"{lead:g}",
            f"{outcome.updates_per_s:.4g}",
            f"{outcome.updates_per_s / base.updates_per_s:.2f}x",
            f"{100 * outcome.learner_idle:.1f}%",
            f"{100 * outcome.collectors_idle:.1f}%",
            f"{outcome.staleness_mean:.2f} / {outcome.staleness_p99} / {outcome.staleness_max}",
            str(outcome.dropped),
            f"{100 * outcome.length_bias:+.1f}%",
        ]
        for lead, outcome in zip(leads, outcomes, strict=True)
    ]
    heads = [
        "lead",
        "updates/s",
        f"over lead {base.lead:g}",
        "learner idle",
        "collectors idle",
        "staleness mean / p99 / max",
        "dropped",
        "length bias",
    ]
    if OUT.width < sum(len(head) + 2 for head in heads):  # in two lines they fit into 80 columns
        heads = [head.replace(" ", "\n", 1).replace(" / ", "/") for head in heads]
    _print_table(heads, rows)
    fixed = [outcome for lead, outcome in zip(leads, outcomes, strict=True) if lead != "auto"]
    best = recommend(fixed or outcomes)
    OUT.print(
        f"recommended: max_lead={best.lead:g} (the smallest within 2 % of the best throughput; "
        f"mean staleness {best.staleness_mean:.2f})",
        markup=False,
    )


# -- looking at a run -------------------------------------------------------------------------------


def status(words: list[str]) -> int:
    """headway status RUN: how far a run is and what each role does, from its folder, while it goes on or afterwards."""
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(status.__doc__, markup=False)
        return 0
    seen = read_status(_one_run("status", words))
    OUT.print(seen.headline, markup=False)
    OUT.print(seen.status.line(), markup=False)
    OUT.print(seen.status.block_of_roles())
    return 0


def trace(words: list[str]) -> int:
    """headway trace RUN [--out FILE]: write trace.json for Perfetto, also of a run that goes on or was killed."""
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(trace.__doc__, markup=False)
        return 0
    path, options = _one_run("trace", words[:1]), _options(words[1:])
    out = options.pop("out", None)
    for name in options:
        raise UsageError(unknown("option", name, ["out"]))
    written = write_trace(RunFolder(path), None if out is None else Path(str(out)))
    OUT.print(f"{written}: open it at https://ui.perfetto.dev", markup=False)
    return 0


def _one_run(command: str, words: list[str]) -> Path:
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError(f"{command} needs the folder of a run: headway {command} RUN")
    return Path(words[0])


def samples(words: list[str]) -> int:
    """headway samples RUN [--last N] [--split train|eval] [--best | --worst]: what was generated, as text.

    The newest N (10), oldest first; or those with the highest, or the lowest, reward. Of a run that goes on too.
    """
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(samples.__doc__, markup=False)
        return 0
    folder, options = RunFolder.existing(_one_run("samples", words[:1])), _options(words[1:])
    split = options.pop("split", None)
    if split not in (None, TRAIN, EVAL):
        raise UsageError(unknown("split", str(split), [TRAIN, EVAL]))
    wanted = _whole_numbers(options, last=10, best=False, worst=False)
    if wanted["best"] and wanted["worst"]:
        raise UsageError("--best and --worst exclude each other")
    if not folder.samples.is_file():
        raise UsageError(f"{folder.path} has no samples: its recipe generates no text, or log_samples was 0")
    by = "best" if wanted["best"] else "worst" if wanted["worst"] else "newest"
    found = choose(read_samples(folder.samples), at_most=wanted["last"], split=split, by=by)
    show(found[::-1] if by == "newest" else found, OUT)
    return 0


# -- explain ----------------------------------------------------------------------------------------


def explain(words: list[str]) -> int:
    """headway explain [NAME | NAME=VALUE ...] [--names SYSTEM] or [RECIPE] --config FILE

    What names from other systems are here. A name that means different things in different systems is shown with all
    of its meanings, or with --names in that of one.
    """
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(explain.__doc__, markup=False)
        return 0
    if "--config" in words:
        return _explain_file(words)
    if words:
        words, names = _named_system(words)
        pairs = [word.lstrip("-").partition("=") for word in words]
        together = {name: _any_value(text) for name, has_value, text in pairs if has_value}
        for name, has_value, text in pairs:
            if nested_names.find_path(name) or nested_names.is_theirs(name, {}):
                _explain_path(name, together)
                continue
            known = KNOWN_NAMES.get(name)
            if known is None and name in lightzero_names.ALONE:
                path = lightzero_names.ALONE[name]
                _explain_path(path, {**together, **({path: together[name]} if has_value else {})})
                continue
            if known is None:
                ours = RunConfig.model_fields
                if name in ours:
                    OUT.print(f"{name}: {ours[name].description}", markup=False)
                    continue
                raise UsageError(unknown("name", name, [*KNOWN_NAMES, *lightzero_names.ALONE, *ours]))
            value = _scalar(text) if has_value else known.example
            for settings, meaning in _meanings(known, value, names, together):
                OUT.print(f"{name}={value}  ->  {settings}   ({meaning})", markup=False)
        return 0
    rows = [
        [f"{known.name}={known.example}", ours, meaning]
        for known in KNOWN_NAMES.values()
        for ours, meaning in _meanings(known, known.example)
    ]
    _print_table(["known name", "in Headway", "meaning"], rows)
    for paths, without_effect in ((PATHS, WITHOUT_EFFECT), (lightzero_names.PATHS, lightzero_names.WITHOUT_EFFECT)):
        OUT.print()
        _print_table(["nested name", "in Headway"], [[known.path, known.ours] for known in paths.values()])
        OUT.print()
        _print_table(["without effect", "because"], [[path, why] for path, why in without_effect.items()])
    return 0


def _named_system(words: list[str]) -> tuple[list[str], str | None]:
    """What `--names` says, and the other words."""
    place = next((at for at, word in enumerate(words) if word.partition("=")[0] == "--names"), None)
    if place is None:
        return words, None
    end = place + (1 if "=" in words[place] else 2)
    system = str(_options(words[place:end])["names"])
    if system not in SYSTEMS:
        raise UsageError(unknown("system of names", system, SYSTEMS))
    return words[:place] + words[end:], system


def _meanings(
    known: KnownName, value: Any, names: str | None = None, together: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """What a name is here and what it means: once for each meaning, or in that of the system `names`."""
    also = "" if known.implies is None else f"; implies {known.implies.setting}={known.implies.value} if none is set"
    whose = f"; {' and '.join(known.systems)}" if known.others else ""
    meanings = [(_assignments(known.translate(value)), f"{known.meaning}{whose}{also}")]
    for other in known.others:
        one = (_in_other_words(other, value, together or {}), f"{other.meaning}; {' and '.join(other.systems)}")
        if names in other.systems and other.is_possible(("group_size", "num_envs"), together or {}):
            return [one]
        meanings.append(one)
    return meanings[:1] if names in known.systems else meanings


def _in_other_words(other: OtherMeaning, value: Any, together: Mapping[str, Any]) -> str:
    """The settings; where they depend on what is not said, their name alone."""
    try:
        return _assignments(other.translate(value, together, {})) if other.translate else f"({other.ours})"
    except ValueError:
        return f"({other.ours})"


def _explain_path(path: str, together: dict[str, Any]) -> None:
    known = nested_names.find_path(path)
    value = together.get(path, None if known is None else known.example)
    fields = load_recipe(lightzero_names.recipe_for(path, value) or "grpo").config.model_fields
    _print_said(Said(path, value, nested_names.mean(path, {**together, path: value}, fields)))


def _explain_file(words: list[str]) -> int:
    """Every name of a file (and of what else is said) that is not ours, line by line."""
    name = words[0] if not words[0].startswith("-") and "=" not in words[0] else ""
    options = _options(words[bool(name) :])
    named, values = lightzero.read_file(Path(str(options.pop("config"))))
    recipe = load_recipe(name or named or "grpo")
    said = understand(recipe.config, values, options)[1]
    for one in said:
        _print_said(one)
    if not said:
        OUT.print("every name in it is ours", markup=False)
    read_values(recipe.config, values, options)  # what cannot be is said here as well
    return 0


def _print_said(said: Said) -> None:
    has_effect = isinstance(said.meaning, dict)
    ours = _assignments(said.meaning) if isinstance(said.meaning, dict) else f"no effect: {said.meaning}"
    OUT.print(f"{said.name}={said.value}  ->  {ours}", markup=False, style=None if has_effect else "dim")


def _assignments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "(the default)"


# -- watch and play ---------------------------------------------------------------------------------


def watch(words: list[str]) -> int:
    """headway watch RUN [--checkpoint best|last|VERSION] [--seed N] [--max_moves N] [--quiet]: a policy plays a game.

    Only runs of colorlines can be watched; the newest checkpoint is, unless another is named. Checkpoints are pickles:
    watch only runs you trust.
    """
    if words[:1] in (["-h"], ["--help"]):
        OUT.print(watch.__doc__, markup=False)
        return 0
    if not words or words[0].startswith("-"):
        raise UsageError("watch needs the folder of a run: headway watch RUN")
    folder, watching = RunFolder.existing(Path(words[0])), _watching()
    options = _options(words[1:])
    which = options.pop("checkpoint", watching.LAST)
    options = _whole_numbers(options, seed=0, max_moves=watching.MAX_MOVES, quiet=False)
    frames = watching.watch(folder, None if options.pop("quiet") else OUT, checkpoint=which, **options)
    OUT.print(f"{frames[-1].score} points; the game as a page: {folder.path / watching.PAGE}", markup=False)
    return 0


def play(words: list[str]) -> int:
    """headway play [--seed N]: Colour Lines by hand."""
    _watching().play_by_hand(OUT, **_whole_numbers(_options(words), seed=0))
    return 0


def _watching() -> Any:
    try:
        from headway import watching
    except ModuleNotFoundError as error:
        raise UsageError(f"Colour Lines needs {error.name}: pip install 'headway[games]'") from None
    return watching


def _whole_numbers(options: dict[str, Any], **defaults: int) -> dict[str, Any]:
    """Options that are whole numbers (or flags, where the default is one)."""
    for name, value in options.items():
        if name not in defaults:
            raise UsageError(unknown("option", name, defaults))
        if isinstance(value, bool) != isinstance(defaults[name], bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"--{name} must be a whole number, received {value!r}")
    return defaults | options


# -- the command line -------------------------------------------------------------------------------


def _options(words: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value` and bare `--flag`, values as YAML scalars, dashes as underscores.

    Nested names need no dashes: `group.name=value`, where a value may be a list too.
    """
    options: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        nested = NESTED.fullmatch(word)
        if nested is not None:
            options[nested[1]] = _any_value(nested[2])
            continue
        if not word.startswith("-"):
            raise UsageError(f"expected --name value, received {word!r}")
        name, has_value, text = word.lstrip("-").partition("=")
        is_next = bool(rest) and (rest[0].startswith("--") or rest[0] == "-h" or NESTED.fullmatch(rest[0]) is not None)
        if not has_value and rest and not is_next:
            text, has_value = rest.pop(0), "="
        name = name.replace("-", "_")
        options[name] = True if not has_value else text if name in TEXTS else _scalar(text)
    return options


TEXTS = ("name",)
"""Options that are taken as they are written: a run may be called 007."""


NESTED = re.compile(r"\+{0,2}(\w+(?:\.\w+)+)=(.*)", re.DOTALL)


def _scalar(text: str) -> Any:
    """A word as YAML reads it, or as it stands."""
    value = _any_value(text)
    return text if isinstance(value, dict | list) else value


def _any_value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _help_run() -> int:
    OUT.print(run.__doc__, markup=False)
    _print_table(["recipe", "what it is"], [[name, what] for name, what in RECIPES.items()])
    OUT.print("headway run RECIPE --help lists its settings", markup=False)
    return 0


def _help_recipe(recipe: Recipe) -> int:
    rows = []
    for field_name, field in recipe.config.model_fields.items():
        choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
        what = (field.description or "").replace("\n", " ")
        rows.append([f"--{field_name}", str(field.default), what + (f" [{', '.join(choices)}]" if choices else "")])
    OUT.print(f"headway run {recipe.name}: {recipe.what}", markup=False)
    _print_table(["setting", "default", "what it does"], rows)
    return 0


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    OUT.print(table)


if __name__ == "__main__":
    sys.exit(main())
