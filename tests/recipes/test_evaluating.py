"""`headway evaluate`: a checkpoint is scored again, without training, by the evaluator of its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytest.importorskip("transformers")
from command_runs import refused, run_of
from grpo_runs import make_material, tiny_values
from search_runs import TINY, TINY_MODEL

from headway.cli import main
from headway.cli.evaluate import ScoreSpread, evaluate
from headway.runs.event_log import read_events
from headway.runs.folder import RunFolder

pytestmark = pytest.mark.timeout(120)
Output = pytest.CaptureFixture[str]

PPO = {"num_envs": 2, "segment_steps": 8, "updates": 4, "evaluate_every": 2, "eval_episodes": 4}
RECIPES: dict[str, dict[str, Any]] = {
    "functions": {"updates": 4, "evaluate_every": 2, "collect_ms": 0, "train_ms": 0, "evaluate_ms": 0},
    "cartpole": PPO,
    "ppo": {**PPO, "env": "Pendulum-v1", "eval_episodes": 2, "normalise": True},
    "colorlines": {**PPO, "width": 2, "segment_steps": 2, "eval_episodes": 2},
    "muzero": {**TINY, **TINY_MODEL["muzero"], "evaluate_every": 6, "eval_episodes": 2, "eval_simulations": 2},
    "unizero": {
        **{**TINY, **TINY_MODEL["unizero"], "evaluate_every": 3, "eval_episodes": 2, "eval_simulations": 2},
        **{"env": "tictactoe", "opponents": ["random"], "value_range": 1.0, "gamma": 1.0},
    },
}


def last_score(folder: RunFolder) -> dict[str, Any]:
    return [event for event in read_events(folder.events) if event["e"] == "score"][-1]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module")
def llm(material: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_of(
        tmp_path_factory.mktemp("llm"),
        "grpo",
        **tiny_values(material, updates=2, evaluate_every=1, eval_prompts=3, eval_samples=2, eval_temperature=1.0),
    )


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("functions"), "functions", **RECIPES["functions"])


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("cartpole"), "cartpole", **RECIPES["cartpole"])


# -- the run's own score ----------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_score_is_the_one_the_run_found(recipe: str, tmp_path: Path) -> None:
    folder = run_of(tmp_path, recipe, **RECIPES[recipe])
    (again,) = evaluate(folder).scores
    recorded = last_score(folder)
    assert (again.version, again.value, dict(again.metrics)) == (recorded["v"], recorded["value"], recorded["m"])


def test_the_score_of_a_language_model_is_the_one_the_run_found(llm: RunFolder) -> None:
    (again,) = evaluate(llm).scores
    recorded = last_score(llm)
    assert (again.version, again.value, dict(again.metrics)) == (2, recorded["value"], recorded["m"])
    assert set(again.metrics) == {"pass@1", "pass@2", "prompts", "reply_tokens"}


def test_the_best_weights_have_the_best_score(cartpole: RunFolder) -> None:
    scores = {e["v"]: e["value"] for e in read_events(cartpole.events) if e["e"] == "score"}
    best = evaluate(cartpole, checkpoint="best")
    assert best.scores[0].value == best.kept.score == max(scores.values())
    assert scores[best.kept.version] == best.kept.score


def test_a_run_that_never_evaluated_can_be_evaluated(material: Path, tmp_path: Path) -> None:
    folder = run_of(tmp_path, "grpo", **tiny_values(material, updates=1))
    measured = evaluate(folder, changes={"eval_prompts": 2})
    assert measured.kept.score is None
    assert measured.scores[0].value is not None


# -- seeds and settings -----------------------------------------------------------------------------


def test_seeds_decide_the_score_and_repeats_take_the_next_ones(cartpole: RunFolder) -> None:
    both = evaluate(cartpole, seed=7, repeat=2)
    assert list(both.seeds) == [7, 8]
    assert both.scores == [evaluate(cartpole, seed=seed).scores[0] for seed in (7, 8)]
    assert both.scores[0] != both.scores[1]


def test_settings_of_evaluation_may_be_others(cartpole: RunFolder, llm: RunFolder) -> None:
    assert evaluate(cartpole, changes={"eval_episodes": 6}).scores[0].metrics["episodes"] == 6
    assert "pass@3" in evaluate(llm, changes={"eval_samples": 3}).scores[0].metrics
    nested = {"actor_rollout_ref.rollout.val_kwargs.n": 4}
    assert "pass@4" in evaluate(llm, changes=nested).scores[0].metrics


def test_the_run_stays_as_it_is(cartpole: RunFolder) -> None:
    before = {path: path.read_bytes() for path in cartpole.path.rglob("*") if path.is_file()}
    evaluate(cartpole, checkpoint="best", changes={"eval_episodes": 2})
    assert {path: path.read_bytes() for path in cartpole.path.rglob("*") if path.is_file()} == before


def test_mean_and_deviation_are_those_of_the_sample() -> None:
    assert ScoreSpread.of([1.0, 3.0]) == ScoreSpread(2.0, 2**0.5, 1.0, 3.0)
    assert ScoreSpread.of([5.0]) == ScoreSpread(5.0, 0.0, 5.0, 5.0)


# -- the command ------------------------------------------------------------------------------------


def test_the_command_prints_the_score_with_its_metrics(cartpole: RunFolder, capsys: Output) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(cartpole.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    recorded = last_score(cartpole)
    assert lines[0] == f"version 4 of {cartpole.path}, seed 0; the run's own score was {recorded['value']:.6g}"
    assert [line.split() for line in lines[1:]] == [
        ["what", "value"],
        ["score", f"{recorded['value']:.6g}"],
        *([name, f"{value:.6g}"] for name, value in recorded["m"].items()),
    ]


def test_repeats_are_printed_as_mean_and_spread(functions: RunFolder, capsys: Output) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(functions.path), "--repeat", "3", "--seed", "5"]) == 0
    first, heads, score = capsys.readouterr().out.splitlines()
    assert f"version 4 of {functions.path}, seeds 5 to 7;" in first
    assert heads.split() == ["what", "mean", "deviation", "lowest", "highest"]
    value = f"{last_score(functions)['value']:.6g}"
    assert score.split() == ["score", value, "0", value, value]


def test_what_cannot_be_evaluated_is_said_in_one_line(functions: RunFolder, tmp_path: Path, capsys: Output) -> None:
    run, absent = str(functions.path), tmp_path / "absent"
    kept = functions.checkpoints
    for words, line in {
        (): "evaluate needs the folder of a run: headway evaluate RUN",
        (str(absent),): f"no run folder at {absent}",
        (run, "--checkpoint", "3"): f"no checkpoint of version 3 in {kept}; there: 4, 4 (best)",
        (run, "--checkpoint", "first"): "a checkpoint is called best, last or by its version, received 'first'",
        (run, "--repeat", "0"): "repeat must be >= 1, received 0",
        (run, "--seed", "a"): "--seed must be a whole number, received 'a'",
        (run, "--updates", "9"): "updates is a setting of the run and stays as it was; for evaluation: evaluate_ms",
    }.items():
        assert refused(capsys, "evaluate", *words) == line
    assert refused(capsys, "evaluate", run, "--evaluate_m", "9").startswith(
        "unknown setting 'evaluate_m'; did you mean"
    )


def test_a_recipe_without_an_evaluator_says_so(tmp_path: Path, capsys: Output) -> None:
    source = "from headway.coordinator.functions import stations_from_functions\n"
    source += "from headway.runs.bandit import FunctionsConfig as CONFIG\n"
    source += "def one(weights, ticket):\n    return 1\ndef more(weights, rollouts):\n    return weights + 1\n"
    source += "def stations(config):\n    return stations_from_functions(one, more, weights=0)\n"
    recipe = tmp_path / "counting_without_end.py"
    recipe.write_text(source)
    folder = run_of(tmp_path, str(recipe), updates=2)
    line = refused(capsys, "evaluate", str(folder.path))
    assert line == "recipe counting_without_end has no evaluator"
