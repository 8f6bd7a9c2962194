"""A run of priorzero is watched: for every move the search's visits, the policy, the prior and the value."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from headway.cli import main
from headway.core.types import Snapshot
from headway.testing.story_priors import UniformPrior
from headway.text_games.action_prior import Opinion, Situation
from headway.text_games.guidance import LINE, Guide, Mode
from headway.text_games.loading import load_story
from headway.text_games.recipe_priorzero import PriorZeroConfig, planner, stations, written_prompt
from headway.text_games.vector_story_games import StoryGames
from headway.text_games.watching_story_page import story_page
from headway.text_games.watching_story_watching import WatchedStory, played_for_an_audience, teller
from headway.zero.planner_planning import Planner
from headway.zero.planner_prior_weight import FixedWeight

SIMULATIONS = 6
CONFIG = PriorZeroConfig(prior="none", embedding=8, latent=8, hidden=8, table=32, num_envs=1)


class KnowsThePlan(UniformPrior):
    """Finds the next step of the shortest plan nearly certain."""

    games: StoryGames

    def opinions(self, situations: Sequence[Situation]) -> list[Opinion]:
        game: Any = self.games.games[0]
        wanted = game.plan()[0]
        told = []
        for opinion, situation in zip(super().opinions(situations), situations, strict=True):
            chances = np.array([0.9 if action == wanted else 0.01 for action in situation.actions], np.float32)
            told.append(Opinion(chances / chances.sum(), opinion.log_probs, opinion.version))
        return told


@pytest.fixture(scope="module")
def weights() -> Any:
    return stations(CONFIG).learner().snapshot()


def story(weights: Any, mode: Mode, max_steps: int, out: Console | None = None) -> WatchedStory:
    games = StoryGames(load_story("mini_world", {}), 1, shape=CONFIG.shape, max_steps=max_steps)
    prior = KnowsThePlan()
    prior.games = games
    guide = Guide(lambda: prior, written_prompt, weight=FixedWeight(0.5), mode=mode)
    search: Planner = planner(CONFIG, SIMULATIONS)
    snapshot = Snapshot(3, weights, {LINE: Snapshot(2, None)})
    tell = None if out is None else teller(out)
    return played_for_an_audience(games, search, guide, snapshot, title="a <story>", tell=tell)


def test_every_move_has_the_visits_and_beside_them_what_model_and_prior_thought(weights: Any) -> None:
    watched = story(weights, "both", 3)
    assert len(watched.moves) == 3
    for move in watched.moves:
        assert sum(one.visits for one in move.candidates) == SIMULATIONS
        assert [one.visits for one in move.candidates] == sorted((one.visits for one in move.candidates), reverse=True)
        assert sum(one.is_chosen for one in move.candidates) == 1
        assert sum(one.policy for one in move.candidates) == pytest.approx(1.0, abs=1e-5)
        assert sum(one.prior or 0.0 for one in move.candidates) == pytest.approx(1.0, abs=1e-5)
        assert all((one.value is None) == (one.visits == 0) for one in move.candidates)
        assert move.candidates[0].visits == next(one.visits for one in move.candidates if one.is_chosen)


def test_whoever_plays_is_the_mode(weights: Any) -> None:
    won = story(weights, "prior", 20)
    assert won.outcome() == "won: 1 of 1 points after 8 moves"
    assert all(max(move.candidates, key=lambda one: one.prior or 0).is_chosen for move in won.moves)
    alone = story(weights, "world_model", 2)
    assert alone.outcome() == "cut: 0 of 1 points after 2 moves"
    assert {one.prior for move in alone.moves for one in move.candidates} == {None}, "nobody was asked"


def test_the_terminal_shows_a_table_for_every_move_and_what_was_done(weights: Any) -> None:
    out = Console(file=io.StringIO(), width=100)
    watched = story(weights, "prior", 20, out)
    said = out.file.getvalue()  # type: ignore[attr-defined]
    assert said.count("candidate") == 8
    heads = next(line for line in said.splitlines() if line.startswith("candidate"))
    assert heads.split() == ["candidate", "visits", "policy", "prior", "value"]
    for move in watched.moves:
        assert f"> {move.action}\n" in said
    assert said.startswith(watched.objective[:40])
    assert "  reward 1\n" in said


def test_the_page_stands_alone_and_shows_every_move(weights: Any) -> None:
    watched = story(weights, "prior", 20)
    page = story_page(watched)
    assert page.count('<section id="move-') == 8
    assert "<title>a &lt;story&gt;</title>" in page
    assert "won: 1 of 1 points after 8 moves" in page
    assert "http" not in page
    assert "<script" not in page


def test_a_run_is_watched_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {name: getattr(CONFIG, name) for name in ("prior", "embedding", "latent", "hidden", "table", "num_envs")}
    small |= {"updates": 1, "num_simulations": 2, "eval_simulations": 2, "batch_size": 4, "replay_min_size": 24}
    small |= {"runtime": "inline", "max_episode_steps": 5, "eval_episodes": 1, "report": False}
    words = [word for name, value in small.items() for word in (f"--{name}", str(value).lower())]
    assert main(["run", "priorzero", "--runs", str(tmp_path), *words]) == 0
    (folder,) = tmp_path.iterdir()
    capsys.readouterr()
    assert main(["watch", str(folder), "--max_moves", "2", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "points after 2 moves (mini_world: version 1, world model, seed 0)" in said.replace("\n", " ")
    assert (folder / "watch.html").read_text().count('<section id="move-') == 2
    assert main(["watch", str(folder), "--mode", "prior"]) == 2
    assert "has no prior that could play: it was run with prior='none'" in capsys.readouterr().err.replace("\n", " ")
    assert main(["watch", str(folder), "--mode", "world"]) == 2
    assert "did you mean 'world_model'?" in capsys.readouterr().err.replace("\n", " ")
    assert main(["evaluate", str(folder)]) == 0
    assert "world_model_score" in capsys.readouterr().out
    assert main(["samples", str(folder)]) == 0
    where, played, *_ = capsys.readouterr().out.splitlines()
    assert where == "eval, version 1, world_model: reward 0, 5 steps of version 1"
    assert len(played.split(" > ")) == 5
