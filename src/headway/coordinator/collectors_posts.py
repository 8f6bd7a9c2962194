"""Which collectors a run has, how their seats are called, and who comes in addition."""

from __future__ import annotations

from collections.abc import Iterator

from headway.coordinator.collectors_lanes import Post
from headway.coordinator.roles import collector_name
from headway.coordinator.settings import Settings
from headway.core.text_naming import place_of, seat_name, seats_of


class Posts:
    """The collectors by number and by seat, those included that have left."""

    def __init__(self, settings: Settings) -> None:
        self._collectors, self._lanes = settings.collectors, settings.lanes  # as the seats were laid out
        self.names = [seat_name(seat, settings.collectors, settings.lanes) for seat in range(settings.seats)]
        """How each seat is called on the board."""
        self._numbers = [place_of(seat, settings.collectors, settings.lanes)[0] for seat in range(settings.seats)]
        """The collector of each seat."""
        self._posts = [self._new(number) for number in range(settings.collectors)]
        self.num = settings.collectors
        """How many there are, without those that are leaving."""
        self._drain = False

    def _new(self, number: int) -> Post:
        return Post(collector_name(number), seats_of(number, self._collectors, self._lanes))

    def __iter__(self) -> Iterator[Post]:
        return iter(self._posts)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(post.role for post in self._posts)

    def at(self, seat: int) -> Post:
        return self._posts[self._numbers[seat]]

    def of(self, number: int) -> Post:
        return self._posts[number]

    def number_at(self, seat: int) -> int:
        return self._numbers[seat]

    def drain(self) -> None:
        """Everywhere, another version waits until all has landed."""
        self._drain = True
        for post in self._posts:
            post.drains = True

    def add(self, number: int) -> Post:
        """There is a collector with this number, as new as its post: a further one, or one that has left before."""
        for further in range(len(self._posts), number + 1):
            post = self._new(further)
            post.is_up = False
            self._posts.append(post)
            self._numbers += [further] * self._lanes
            self.names += [seat_name(seat, self._collectors, self._lanes) for seat in post.seats]
        post = self._posts[number] = self._new(number)
        post.drains = self._drain
        return post
