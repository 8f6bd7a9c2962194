"""The examples are run as a user would: a recipe of one's own, a monitor, and what happens when a file is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material  # noqa: E402

from headway.cli import main  # noqa: E402
from headway.core.types import Snapshot, Ticket  # noqa: E402
from headway.runs.config import read_values  # noqa: E402
from headway.runs.recipes_package import load_recipe  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
REWARD = """
def score(prompt, response, truth, info):
    return sum(c.isdigit() for c in response) / max(len(response), 1) + int(truth) % 2
"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads, path = torch.get_num_threads(), list(sys.path)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    sys.path[:] = path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("examples"), REWARD)


def words(folder: Path, **more: Any) -> list[str]:
    """Options of a tiny run."""
    values = {
        "model": folder / "model",
        "task": f"jsonl:{folder / 'prompts.jsonl'}",
        "task_options": f"{{reward: '{folder / 'rewards.py'}:score'}}",
        "max_tokens": 8,
        "max_prompt_tokens": 64,
        "tickets_per_batch": 3,
        "group_size": 4,
        "updates": 3,
        "max_lead": 1,
        "evaluate_every": 0,
        "metrics_interval_s": 0,
        "device": "cpu",
        **more,
    }
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def the_run(root: Path) -> Path:
    (run,) = root.iterdir()
    return run


@pytest.mark.parametrize("name", ["own_metrics", "own_generation", "own_monitor"])
def test_an_example_has_less_than_thirty_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 30


@pytest.mark.timeout(400)
@pytest.mark.parametrize("runtime", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_trainer_adds_metrics_of_its_own(folder: Path, tmp_path: Path, runtime: str) -> None:
    recipe = str(EXAMPLES / "own_metrics.py")
    assert main(["run", recipe, *words(folder, runtime=runtime), "--runs", str(tmp_path), "--quiet"]) == 0
    run = the_run(tmp_path)
    assert run.name.startswith("own_metrics-")
    with open(run / "metrics.jsonl") as file:
        points = [point for point in map(json.loads, file) if "learn/always_solved" in point]
    assert len(points) == 3
    assert all(point["learn/always_solved"] + point["learn/never_solved"] == pytest.approx(1.0) for point in points)
    if runtime == "threads":  # the file is remembered: resume and replay find it
        assert main(["resume", str(run), "--updates", "5", "--quiet"]) == 0
        assert main(["run", "--replay", str(run)]) == 0


def test_a_rollouter_generates_in_a_way_of_its_own(folder: Path) -> None:
    own, plain = (load_recipe(name) for name in (str(EXAMPLES / "own_generation.py"), "grpo"))
    options = words(folder)
    values = {name.removeprefix("--"): text for name, text in zip(options[::2], options[1::2], strict=True)}
    config = read_values(own.config, values)
    ticket, snapshot = Ticket(3, 7, 0, 0), Snapshot(0, None)
    mine, theirs = (recipe.stations(config).collector(0).collect(ticket, snapshot) for recipe in (own, plain))
    assert len(mine.payload.rewards) == len(theirs.payload.rewards) == 4
    spread = [float(rollout.payload.rewards.std()) for rollout in (mine, theirs)]
    assert spread[0] > spread[1]
    assert sorted(mine.payload.rewards) == list(mine.payload.rewards)


def test_a_monitor_looks_at_a_language_model_learning(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = f"{EXAMPLES / 'own_monitor.py'}:look"
    values = words(folder, monitor=spec, monitor_every_s=0.05, max_lead=6, updates=8, statistics_every_s=0.2)
    assert main(["run", "grpo", *values, "--runs", str(tmp_path), "--quiet"]) == 0
    assert "ALARM by look: a sample was 6 versions old; 0 wait" in capsys.readouterr().err
    log = (the_run(tmp_path) / "run.log").read_text()
    assert "engine of collector-0: running " in log


def test_a_monitor_ends_a_run_that_has_collapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import own_monitor

    from headway.runs.monitor import StopRun

    statistics: dict[str, dict[str, Any]] = {
        "learn": {"grad_norm": float("nan")},
        "freshness": {"max_sample_age": 1},
        "queue": {"queue_size": 2},
        "trainer": {"global_steps": 7},
    }
    with pytest.raises(StopRun, match="the gradient is nan at version 7"):
        own_monitor.look(statistics)
    assert own_monitor.look({**statistics, "learn": {}}) is None


# -- recipe files that cannot be --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.py", None, "missing.py does not exist"),
        ("broken_recipe.py", "def stations(:\n", "cannot be loaded: SyntaxError"),
        ("half_recipe.py", "CONFIG = None\n", "has no stations: a recipe gives CONFIG and stations"),
        ("json.py", "CONFIG = stations = None\n", "'json' is the name of another module"),
    ],
)
def test_a_recipe_file_that_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main(["run", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_shows_the_settings_of_a_recipe_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(EXAMPLES / "own_metrics.py"), "--help"]) == 0
    assert "--group_size" in capsys.readouterr().out
