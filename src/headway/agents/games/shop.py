"""A shop with a catalogue: search it, look at what is found, buy what was wished for.

wish: a red shirt of size small, at most 20
search red shirt  ->  the numbers of all red shirts
look 3            ->  3 is a red shirt, size large, price 12
buy 5             ->  the end: worth 1 if everything fits
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from headway.agents.env import Step
from headway.agents.games.text_game import TextGame, first_number, require_at_least, words_of

KINDS = ("shirt", "hat", "coat", "bag")
COLOURS = ("red", "blue", "green", "black")
SIZES = ("small", "medium", "large")
PRICES = range(5, 41, 5)
RULES = (
    "Buy a {colour} {kind} of size {size} for at most {limit}. "
    "Reply with search and words, or look and a number, or buy and a number."
)
NOT_UNDERSTOOD = "I read neither search nor look nor buy."
NO_WORDS = "I know these words: {words}."
NO_NUMBER = "I read no number of 1 to {items}."
FOUND = "Found {numbers}."
NOTHING = "Found nothing."
SHOWN = "{number} is a {colour} {kind}, size {size}, price {price}."
BOUGHT = "You bought {number}: {met} of 4 wishes are met."
ACTION = re.compile(r"\b(search|look|buy)\b(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Goods:
    """Is one thing that can be bought."""

    kind: str
    colour: str
    size: str
    price: int


class Shop(TextGame):
    """What was bought is worth a quarter for each wish that it meets: kind, colour, size and price."""

    def __init__(self, items: int = 10, alike: int = 3, turns: int = 6) -> None:
        require_at_least(1, alike=alike)
        require_at_least(alike, items=items)
        super().__init__(turns)
        if turns < alike + 2:
            raise ValueError(f"{alike} alike things need at least {alike + 2} turns, received {turns!r}")
        self.num_items, self.alike = items, alike
        self._catalogue: list[Goods] = []
        self._wish = Goods("", "", "", 0)  # its price is the most that may be paid
        self._found: list[int] = []
        self._seen: set[int] = set()

    def begin(self) -> str:
        wanted = self._drawn()
        self._wish = wanted
        goods = [wanted]
        while len(goods) < self.num_items:
            other = self._drawn()
            if len(goods) < self.alike:  # as found by a search, and still not what was wished for
                other = Goods(wanted.kind, wanted.colour, other.size, other.price)
            elif (other.kind, other.colour) == (wanted.kind, wanted.colour):
                continue
            if self._met(other) < 4:
                goods.append(other)
        self.rng.shuffle(goods)
        self._catalogue, self._found, self._seen = goods, [], set()
        wish = self._wish
        return RULES.format(colour=wish.colour, kind=wish.kind, size=wish.size, limit=wish.price)

    def answer(self, reply: str) -> Step:
        action = ACTION.search(reply.lower())
        if action is None:
            return Step(NOT_UNDERSTOOD)
        if action[1] == "search":
            return Step(self._searched(action[2]))
        number = first_number(action[2])
        if number is None or not 1 <= number <= self.num_items:
            return Step(NO_NUMBER.format(items=self.num_items))
        goods = self._catalogue[number - 1]
        if action[1] == "look":
            self._seen.add(number)
            return Step(_described(number, goods))
        met = self._met(goods)
        return Step(BOUGHT.format(number=number, met=met), reward=met / 4, done=True, success=met == 4)

    def state_key(self) -> str:
        return f"{self._wish} {self._catalogue} {self._found} {sorted(self._seen)}"

    def random_reply(self, rng: random.Random) -> str:
        action = rng.choice(("search", "look", "buy"))
        if action == "search":
            return f"search {rng.choice(COLOURS)} {rng.choice(KINDS)}"
        return f"{action} {rng.choice(self._found or range(1, self.num_items + 1))}"

    def expert_reply(self) -> str:
        """Returns a search for colour and kind, then a look at one after another, then what fits."""
        fitting = [number for number in self._seen if self._met(self._catalogue[number - 1]) == 4]
        if fitting:
            return f"buy {min(fitting)}"
        alike = [number for number in self._found if number not in self._seen]
        return f"look {alike[0]}" if alike else f"search {self._wish.colour} {self._wish.kind}"

    def texts(self) -> Iterator[str]:
        every = " ".join((*KINDS, *COLOURS, *SIZES, *map(str, PRICES), *map(str, range(self.num_items + 1))))
        yield from (every, NOT_UNDERSTOOD, NOTHING, NO_WORDS.format(words=""), NO_NUMBER.format(items=self.num_items))
        yield RULES.format(colour="", kind="", size="", limit="")
        yield SHOWN.format(number="", colour="", kind="", size="", price="")
        yield f"{FOUND.format(numbers=', ')} {BOUGHT.format(number='', met='0 1 2 3 4')}"

    def _searched(self, words: str) -> str:
        known = [word for word in words_of(words) if word in {*KINDS, *COLOURS, *SIZES}]
        if not known:
            return NO_WORDS.format(words=", ".join((*KINDS, *COLOURS, *SIZES)))
        numbered = enumerate(self._catalogue, 1)
        self._found = [number for number, one in numbered if {*known} <= {one.kind, one.colour, one.size}]
        return FOUND.format(numbers=", ".join(map(str, self._found))) if self._found else NOTHING

    def _met(self, goods: Goods) -> int:
        """Counts the wishes that something meets."""
        wish = self._wish
        is_met = (goods.kind == wish.kind, goods.colour == wish.colour, goods.size == wish.size)
        return sum(is_met) + (goods.price <= wish.price)

    def _drawn(self) -> Goods:
        choose = self.rng.choice
        return Goods(choose(KINDS), choose(COLOURS), choose(SIZES), choose(PRICES))


def _described(number: int, goods: Goods) -> str:
    return SHOWN.format(number=number, colour=goods.colour, kind=goods.kind, size=goods.size, price=goods.price)
