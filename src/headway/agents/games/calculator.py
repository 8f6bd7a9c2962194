"""A sum of several operations, and a calculator that does one at a time. The answer ends the game."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Iterator

from headway.agents.env import Step
from headway.agents.games.text_game import TextGame, first_number, require_at_least

OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
RULES = 'What is {sum}? Reply with "calculate a + b" (or - or *) for one operation, or with "answer x".'
NOT_UNDERSTOOD = 'I read neither. Reply with "calculate a + b" or with "answer x".'
NO_OPERATION = 'I read no operation of two numbers. Reply with "calculate a + b".'
NO_NUMBER = 'I read no number. Reply with "answer x".'
RESULT = "The result is {result}."
TOO_SMALL = "The result is less than 0."
TOO_LARGE = "The result is more than {largest}."
RIGHT = "Right, it is {result}."
WRONG = "Wrong, it is {result}."
ACTION = re.compile(r"\b(calculate|answer)\b(.*)", re.DOTALL)
OPERATION = re.compile(r"(\d{1,9})(?!\d)\s*([-+*])\s*(\d{1,9})(?!\d)")
DIGITS = 2, 9
"""The smallest and the largest number of a question."""


class Calculator(TextGame):
    """The right answer to `steps` operations, none of which has a result outside of 0 to `largest`, is worth 1."""

    def __init__(self, steps: int = 2, largest: int = 99) -> None:
        require_at_least(1, steps=steps)
        require_at_least(2 * DIGITS[1], largest=largest)
        super().__init__(steps + 2)
        self.steps, self.largest = steps, largest
        self._operations: list[tuple[str, int]] = []
        self._result = 0
        self._shown: list[int] = []  # what the expert has had calculated

    def begin(self) -> str:
        first = value = self.rng.randint(*DIGITS)
        self._operations = []
        while len(self._operations) < self.steps:
            sign, number = self.rng.choice(list(OPERATIONS)), self.rng.randint(*DIGITS)
            result = OPERATIONS[sign](value, number)
            if 0 <= result <= self.largest:
                self._operations.append((sign, number))
                value = result
        self._result, self._shown = value, [first]
        return RULES.format(sum=self._sum())

    def answer(self, reply: str) -> Step:
        action = ACTION.search(reply.lower())
        if action is None:
            return Step(NOT_UNDERSTOOD)
        if action[1] == "calculate":
            return Step(self._calculated(action[2]))
        given = first_number(action[2])
        if given is None:
            return Step(NO_NUMBER)
        is_right = given == self._result
        text = (RIGHT if is_right else WRONG).format(result=self._result)
        return Step(text, reward=float(is_right), done=True, success=is_right)

    def state_key(self) -> str:
        return f"{self._sum()} {self._shown}"

    def random_reply(self, rng: random.Random) -> str:
        if rng.random() < 0.5:
            return f"answer {rng.randint(0, self.largest)}"
        return f"calculate {rng.randint(*DIGITS)} {rng.choice(list(OPERATIONS))} {rng.randint(*DIGITS)}"

    def expert_reply(self) -> str:
        place = len(self._shown) - 1
        if place == self.steps:
            return f"answer {self._shown[-1]}"
        sign, number = self._operations[place]
        return f"calculate {self._shown[-1]} {sign} {number}"

    def texts(self) -> Iterator[str]:
        yield from (text for text in (NOT_UNDERSTOOD, NO_OPERATION, NO_NUMBER, TOO_SMALL))
        yield RULES.format(sum="(+ - *)")
        yield TOO_LARGE.format(largest=self.largest)
        for number in range(self.largest + 1):
            yield from (text.format(result=number) for text in (RESULT, RIGHT, WRONG))

    def _calculated(self, asked: str) -> str:
        found = OPERATION.search(asked)
        if found is None:
            return NO_OPERATION
        result = OPERATIONS[found[2]](int(found[1]), int(found[3]))
        place = len(self._shown) - 1
        if place < self.steps and (self._shown[-1], *self._operations[place]) == (
            int(found[1]),
            found[2],
            int(found[3]),
        ):
            self._shown.append(result)
        if result < 0:
            return TOO_SMALL
        return TOO_LARGE.format(largest=self.largest) if result > self.largest else RESULT.format(result=result)

    def _sum(self) -> str:
        """Writes the question with every bracket, the first operation innermost."""
        text = str(self._shown[0])
        for place, (sign, number) in enumerate(self._operations):
            text = f"{text} {sign} {number}" if place == 0 else f"({text}) {sign} {number}"
        return text
