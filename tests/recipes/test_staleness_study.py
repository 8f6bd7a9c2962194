"""bench/staleness.py: each run has exactly the staleness it says, repeats to the bit, and is done once."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from waiting import patient

SCRIPT = Path(__file__).parents[2] / "bench" / "staleness.py"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("staleness_study", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def tiny(study: ModuleType, name: str) -> Any:
    few = {"updates": 6, "evaluate_every": 3, "num_envs": 4, "segment_steps": 8, "eval_episodes": 2}
    network = {"cartpole": {"hidden": (8,)}, "colorlines": {"width": 4}}[name]
    return replace(study.GAMES[name], **few, network=network)


@pytest.mark.parametrize("name", ["cartpole", "colorlines"])
def test_a_cell_repeats_to_the_bit_and_only_its_settings_change_it(study: ModuleType, name: str) -> None:
    game = tiny(study, name)
    lines = [study.run_cell(study.Cell(game, *cell)) for cell in ((2, "clip", 0), (2, "clip", 0), (2, "clip", 1))]
    assert lines[0]["weights"] == lines[1]["weights"] != lines[2]["weights"]
    assert lines[0]["curve"] == lines[1]["curve"] and len(lines[0]["curve"]) == 2
    assert lines[0]["failed"] == ""
    assert lines[0]["area"] == pytest.approx(sum(lines[0]["curve"]) / 2, abs=1e-3)


@pytest.mark.parametrize("correction", ["none", "clip", "vtrace", "decoupled"])
def test_every_correction_runs_at_a_lead_also_none_which_recipes_refuse(study: ModuleType, correction: str) -> None:
    line = study.run_cell(study.Cell(tiny(study, "cartpole"), 4, correction, 0))  # raises unless ages are 0, 1, .. 4, 4
    assert (line["lead"], line["correction"], line["failed"]) == (4, correction, "")
    assert 0 < line["ess"] < 1


def test_without_a_lead_the_corrections_of_ppo_are_the_same_run(study: ModuleType) -> None:
    cells = [study.Cell(tiny(study, "cartpole"), 0, name, 0) for name in ("clip", "decoupled", "none")]
    clip, decoupled, none = (study.run_cell(cell)["weights"] for cell in cells)
    assert clip == decoupled != none


def test_a_run_that_fails_counts_as_nothing_from_there_on(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    game = tiny(study, "cartpole")
    game = replace(game, ppo={**game.ppo, "learning_rate": 1e38, "final_learning_rate": None})
    line = study.run_cell(study.Cell(game, 0, "none", 0))
    assert "not finite" in line["failed"]
    assert line["curve"][-1] == 0.0 and len(line["curve"]) == game.num_evaluations


def test_other_settings_are_another_study(study: ModuleType) -> None:
    game = study.GAMES["cartpole"]
    assert game.scaled(0.1).digest != game.digest == game.scaled(1.0).digest
    assert game.scaled(0.0).num_evaluations == 1
    line = {"game": "cartpole", "study": game.digest, "lead": 1, "correction": "clip", "seed": 0, "last": 3.0}
    assert study.values_of([line, {**line, "seed": 1, "last": 5.0}], game, "last") == {(1, "clip"): [3.0, 5.0]}
    assert study.values_of([line], game.scaled(0.1), "last") == {}


def test_the_table_has_mean_and_standard_error(study: ModuleType) -> None:
    game = study.GAMES["cartpole"]
    shared = {"game": "cartpole", "study": game.digest, "lead": 1, "correction": "clip", "ess": 0.5}
    lines = [{**shared, "seed": seed, "last": 10.0 * seed, "area": 1.5} for seed in (1, 2, 3)]
    table = study.table(lines, game)
    assert "3 seeds" in table
    assert "20.0 +- 5.8" in table and "1.5 +- 0.0" in table and "0.50 +- 0.00" in table
    assert "none" not in table


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_command_runs_every_cell_once_draws_and_goes_on_where_it_was(
    study: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, pictures = tmp_path / "results.jsonl", tmp_path / "pictures"
    few = ["--games", "cartpole", "--leads", "0", "2", "--corrections", "none", "clip", "--budget", "0.01"]
    words = [*few, "--jobs", "2", "--results", str(results), "--pictures", str(pictures)]

    def run(*more: str) -> str:
        command = [sys.executable, str(SCRIPT), *words, *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=patient(110), check=True).stdout

    assert "0 of 4 runs" in run("--seeds", "1")
    picture = (pictures / "staleness-cartpole.svg").read_bytes()
    assert b"CartPole-v1" in picture
    study.main([*words, "--seeds", "1", "--plot-only"])
    assert "effective sample size" in capsys.readouterr().out
    assert (pictures / "staleness-cartpole.svg").read_bytes() == picture
    with open(results, "a") as file:
        file.write('{"game": "cut off')  # as by a kill
    assert "4 of 8 runs" in run("--seeds", "2", "--run-only")
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    cells = {(line["lead"], line["correction"], line["seed"]) for line in lines}
    assert len(lines) == len(cells) == 8
    assert cells == set(product((0, 2), ("none", "clip"), (0, 1)))
