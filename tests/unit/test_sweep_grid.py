"""Which runs a sweep has, and what is refused before any of them begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_runs import refused

from headway.cli import main
from headway.runs.bandit import FunctionsConfig
from headway.runs.recipes_package import load_recipe
from headway.tools.sweep.grid import Grid, plan_runs, read_axis, read_seeds, split

PPO = load_recipe("ppo").config
Output = pytest.CaptureFixture[str]


def test_a_list_is_split_at_commas_that_are_in_no_brackets_and_no_quotes() -> None:
    assert split("a,[1,2],'x,y',window(3,4)") == ["a", "[1,2]", "'x,y'", "window(3,4)"]


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("learning_rate", "0.001,0.1", [0.001, 0.1]),
        ("learning_rate", "[0.001, 0.1]", [0.001, 0.1]),
        ("max_lead", "0,auto", [0, "auto"]),
        ("order", "window(3),ready", ["window(3)", "ready"]),
        ("env", "CartPole-v1", ["CartPole-v1"]),
        ("hidden", "[64],[64,64]", [[64], [64, 64]]),
        ("hidden", "[[64],[64,64]]", [[64], [64, 64]]),
        ("hidden", "[64,64]", [[64, 64]]),
        ("env_kwargs", "{gravity: 9.8},{gravity: 1.6}", [{"gravity": 9.8}, {"gravity": 1.6}]),
    ],
)
def test_a_word_lists_the_values_of_a_setting(name: str, text: str, values: list[object]) -> None:
    assert read_axis(PPO, name, text) == values


@pytest.mark.parametrize("name", ["hidden", "wrappers", "resize"])
def test_commas_in_a_setting_that_is_a_list_itself_are_ambiguous(name: str) -> None:
    with pytest.raises(ValueError, match=rf'{name} has several parts itself: one value is --{name} "\[64,64\]"'):
        read_axis(PPO, name, "64,64")


@pytest.mark.parametrize(("said", "seeds"), [("5", (0, 1, 2, 3, 4)), ("3,7,9", (3, 7, 9)), ("[4]", (4,)), (2, (0, 1))])
def test_seeds_are_how_many_or_which(said: object, seeds: tuple[int, ...]) -> None:
    assert read_seeds(said) == seeds


@pytest.mark.parametrize("said", ["0", "-1", "x", "1.5", "3,3", "1,x", "", [], True, "-1,2"])
def test_seeds_that_cannot_be_are_refused(said: object) -> None:
    with pytest.raises(ValueError, match="seed"):
        read_seeds(said)


def test_every_combination_runs_with_every_seed_and_has_a_folder_that_says_so() -> None:
    runs = plan_runs(
        PPO, Grid({"env": "CartPole-v1"}, [{"learning_rate": ["1e-3", 0.1], "hidden": [[8], [8, 8]]}], (0, 3))
    )
    assert [run.folder for run in runs][:4] == [
        "learning_rate=0.001,hidden=8,seed=0",
        "learning_rate=0.001,hidden=8,seed=3",
        "learning_rate=0.001,hidden=8x8,seed=0",
        "learning_rate=0.001,hidden=8x8,seed=3",
    ]
    assert len({run.folder for run in runs}) == 8
    assert runs[0].label == "learning_rate=0.001, hidden=[8]"
    assert runs[-1].settings == {"env": "CartPole-v1", "learning_rate": 0.1, "hidden": [8, 8], "seed": 3}


def test_several_grids_are_one_after_the_other() -> None:
    grids = [{"max_lead": [0]}, {"max_lead": [1, 2], "collectors": [2]}]
    assert [run.label for run in plan_runs(FunctionsConfig, Grid({}, grids))] == [
        "max_lead=0, collectors=1",
        "max_lead=1, collectors=2",
        "max_lead=2, collectors=2",
    ]


def test_names_of_other_libraries_are_listed_by_what_they_are_here() -> None:
    runs = plan_runs(PPO, Grid({"names": "sb3"}, [{"ent_coef": [0.0, 0.01]}], (0,)))
    assert [run.varied for run in runs] == [{"entropy_weight": 0.0}, {"entropy_weight": 0.01}]


def test_everything_wrong_is_told_at_once_and_nothing_is_left_behind(tmp_path: Path, capsys: Output) -> None:
    words = ["--learning_rate", "x,1", "--updats", "3", "--collectors", "0,1", "--runs", str(tmp_path / "runs")]
    assert main(["sweep", "functions", *words]) == 2
    told = capsys.readouterr().err
    for wrong in ("unknown setting 'updats'; did you mean 'updates'?", "learning_rate='x'", "collectors=0"):
        assert wrong in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "sweep needs a recipe"),
        (["functions", "--seeds", "3,3"], "--seeds 3,3 names one seed twice"),
        (["functions", "--seed", "1", "--seeds", "2"], "--seed and --seeds both say which seeds"),
        (["functions", "--workers", "0"], "--workers must be a whole number from 1 on, received '0'"),
        (["functions", "--learning_rate", "1,1.0"], "learning_rate=1 and learning_rate=1 are the same settings"),
        (["functions", "--learning_rate", "1,"], "--learning_rate 1, lists a value that is empty"),
        (["functions", "--retry"], "--retry is for --resume"),
        (["functions", "--name", "a/b"], "a name has up to 64"),
        (["functions", "--seeds", "2", "--prometheus_port", "9100"], "prometheus_port=9100 is one port for 2 runs"),
        (["--resume"], "--resume needs the folder of a sweep"),
        (["--resume", "nowhere"], "no sweep at nowhere"),
        (["functions", "--resume", "nowhere"], "it takes no recipe"),
        (["--resume", "nowhere", "--updates", "5"], "unknown option of --resume 'updates'"),
    ],
)
def test_a_sweep_that_cannot_be_is_one_line(
    words: list[str], line: str, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in refused(capsys, "sweep", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_file_says_the_settings_and_the_grid_and_the_command_line_goes_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []
    monkeypatch.setattr("headway.cli.sweep._run", lambda folder, **options: planned.append((folder, options)) or 0)
    content = {"recipe": "functions", "updates": 5, "seeds": 3, "workers": 2, "name": "toy", "collect_ms": 0}
    grid = {"learning_rate": ["1e-3", 4], "max_lead": [0, 1]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**content, "grid": grid}))
    words = [
        "--config",
        str(tmp_path / "sweep.yaml"),
        "--seeds",
        "7",
        "--max_lead",
        "2",
        "--runs",
        str(tmp_path / "runs"),
    ]
    assert main(["sweep", *words]) == 0
    ((folder, options),) = planned
    assert options["workers"] == 2
    assert folder.path.name.endswith("-toy")
    sweep = folder.read_plan()
    assert (sweep.labels, sweep.seeds) == (["learning_rate=0.001", "learning_rate=4"], list(range(7)))
    assert {name: sweep.runs[0].settings[name] for name in ("updates", "max_lead", "wandb_job_type")} == {
        "updates": 5,
        "max_lead": 2,
        "wandb_job_type": "learning_rate=0.001",
    }
    assert sweep.runs[0].settings["wandb_group"] == folder.path.name


def test_a_grid_without_lists_is_refused(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "sweep.yaml").write_text("recipe: functions\ngrid: {learning_rate: 3}\n")
    assert "must give a list of values for each name" in refused(
        capsys, "sweep", "--config", str(tmp_path / "sweep.yaml")
    )
