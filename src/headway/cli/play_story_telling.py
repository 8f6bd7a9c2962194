"""A story game in the terminal: the scene, the score, and numbered candidates."""

from __future__ import annotations

import sys
from contextlib import closing

from rich.console import Console

from headway.cli.options_words import UsageError
from headway.text_games.story_interface import Scene, StoryGame, StoryLost
from headway.text_games.story_players import PlayedStory, play_story, typed_player

ME = "me"


def tell_story(game: StoryGame, who: str, seed: int, out: Console) -> PlayedStory:
    """Plays one story and prints it while it goes on; `me` types."""
    is_typed = who == ME
    player = typed_player(sys.stdin, lambda: out.print(">", end=" ", markup=False)) if is_typed else who
    scores = list[float]()

    def show(scene: Scene) -> None:
        if not scores and game.objective:  # some games know it only when they have begun
            out.print(game.objective, markup=False, style="bold")
        out.print(scene.text, markup=False)
        scores.append(scene.score)
        if not scene.is_over:
            most = "" if game.max_score is None else f" of {game.max_score:g}"
            out.print(f"score {scene.score:g}{most}", markup=False, style="dim")
            numbered = [f"{number} {action}" for number, action in enumerate(scene.candidates, 1)]
            out.print("   ".join(numbered), markup=False, style="dim")

    def acted(action: str, scene: Scene) -> None:
        if not is_typed:  # a person has just seen it
            out.print(f"> {action}", markup=False, style="bold")
        if scene.score != scores[-1]:
            out.print(f"  reward {scene.score - scores[-1]:g}", markup=False, style="dim")

    with closing(game):
        try:
            story = play_story(game, player, seed, on_scene=show, on_action=acted)
        except StoryLost as lost:
            raise UsageError(lost.what) from None
    end = "won" if story.is_won else ("over" if story.scenes[-1].is_over else "not over")
    steps = len(story.actions)
    out.print(f"{end}: score {story.score:g} after {steps} step{'' if steps == 1 else 's'}, seed {seed}", markup=False)
    return story
