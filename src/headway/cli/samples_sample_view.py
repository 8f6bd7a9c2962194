"""Samples in the terminal: wrapped, the reward in colour, and nothing a model wrote read as markup.

What was said to the model is dim, what it drew is not; of a conversation every turn has its reward and its versions.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from headway.runs.samples import Sample, in_words, number, turns_in_words


def show(samples: Sequence[Sample], console: Console) -> None:
    """Green is the highest reward of them, red the lowest."""
    rewards = [number(one.get("reward")) for one in samples]
    for sample, reward in zip(samples, rewards, strict=True):
        words = in_words(sample)
        colour = "green" if reward >= max(rewards) else "red" if reward <= min(rewards) else "yellow"
        head = Text(f"{words.where}: ", style="bold").append(words.reward, style=colour)
        console.print(head.append(f", {words.how}", style="not bold"), soft_wrap=False)
        turns = turns_in_words(sample)
        parts = [(words.prompt, "dim", 2), *([] if turns else [(words.reply, "", 4)])]
        for turn in turns:
            parts += [(turn.reply, "", 4), (turn.how, "italic", 6), (turn.observation, "dim", 2)]
        for text, style, indent in parts:
            if text:
                console.print(Padding(Text(text, style=style), (0, 0, 0, indent), expand=False), soft_wrap=False)
        console.print()
