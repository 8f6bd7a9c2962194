"""The Colour Lines policy against brute force over all 6561 moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.ppo import colorlines as lines
from headway.ppo.colorlines import CELLS, COLOURS, MOVES, ColorLines
from headway.ppo.colorlines.network_cells import CHUNK, CellsActor, CellsActorCritic
from headway.ppo.colorlines.network_patterns import CANONICAL, FEATURES, FIRST_KIND, SIGHT, spots_of

LINES = ((0, 1), (1, 0), (1, 1), (1, -1))


def positions(num: int = 6, moves: int = 12, seed: int = 0) -> np.ndarray:
    """[num, 84] uint8, from games between the start and the end."""
    env = ColorLines(num, seed, compact=True)
    player = lines.random_player(num, seed)
    for _ in range(moves):
        env.step(player(env))
    return env.observation()


def lively(width: int = 8, seed: int = 0) -> CellsActorCritic:
    """A network that is far from uniform."""
    network = CellsActorCritic(width, seed=seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + 1)) * 0.5)
    return network


def as_obs(compact: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(compact.astype(np.float32))


# -- what a cell sees ---------------------------------------------------------------------------------


def slow_patterns(cells: list[int], coming: list[int], colour: int, cell: int, is_ball: bool) -> list[int]:
    """The five patterns of a spot, by walking."""
    seen = []
    for dr, dc in LINES:
        index = 0
        for place, step in enumerate([*range(-SIGHT, 0), *range(1, SIGHT + 1)]):
            row, column = cell // 9 + step * dr, cell % 9 + step * dc
            there = cells[row * 9 + column] if 0 <= row < 9 and 0 <= column < 9 else -1
            index += 3**place * (0 if there == 0 else 1 if there == colour else 2)
        seen.append(int(CANONICAL[index]))
    return [*seen, FIRST_KIND + 4 * is_ball + coming.count(colour)]


def test_spots_and_crossings_are_what_a_walk_along_the_lines_finds() -> None:
    compact = positions(2)
    spots = spots_of(compact)
    masks = lines.legal_moves(compact[:, :CELLS])
    assert np.array_equal(spots.legal.reshape(-1, MOVES), masks)
    expected, crossings = [], {}
    for row, position in enumerate(compact.tolist()):
        cells, coming = position[:CELLS], position[CELLS:]
        for cell in range(CELLS):
            for colour in [cells[cell]] if cells[cell] else range(1, COLOURS + 1):
                found = slow_patterns(cells, coming, colour, cell, bool(cells[cell]))
                expected.append((row, cell, colour, bool(cells[cell]), found))
        for move in np.flatnonzero(masks[row]):
            origin, target = divmod(int(move), CELLS)
            dr, dc = target // 9 - origin // 9, target % 9 - origin % 9
            if max(abs(dr), abs(dc)) <= SIGHT and (dr == 0 or dc == 0 or abs(dr) == abs(dc)):
                lifted = [0 if cell == origin else colour for cell, colour in enumerate(cells)]
                crossings[row, int(move)] = slow_patterns(lifted, coming, cells[origin], target, False)
    where = zip(spots.row, spots.cell, spots.colour, spots.is_ball, spots.patterns, strict=True)
    assert [(int(r), int(c), int(k), bool(b), p.tolist()) for r, c, k, b, p in where] == expected
    ways = zip(spots.crossing_row, spots.crossing_move, spots.crossing_patterns, strict=True)
    assert {(int(r), int(m)): p.tolist() for r, m, p in ways} == crossings


@pytest.mark.parametrize(
    ("line", "run", "fullest"),
    [("..oo*oo..", 5, 4), ("x.oo*o.x.", 4, 3), (".ooo*xxxx", 4, 3), ("xxoo*ooxx", 5, 4), ("xxxo*ooxx", 4, -1)],
)
def test_features_tell_the_run_a_ball_makes_and_the_fullest_five(line: str, run: int, fullest: int) -> None:
    for seen in (line, line[::-1]):
        eight = seen[:SIGHT] + seen[SIGHT + 1 :]
        pattern = CANONICAL[sum(3**place * ".ox".index(what) for place, what in enumerate(eight))]
        assert FEATURES[pattern, :4].sum() == run - 1
        assert FEATURES[pattern, 4:9].sum() == fullest + 1


# -- probabilities ------------------------------------------------------------------------------------


def slow_logits(network: CellsActorCritic, position: list[int]) -> dict[int, float]:
    """The score of every legal move, one at a time, from the definition."""
    cells, coming = position[:CELLS], position[CELLS:]
    lines_of, embedding = network.actor, network.actor.patterns
    table = embedding.own + embedding.features @ embedding.shared

    def first(board: list[int], colour: int, cell: int, is_ball: bool) -> torch.Tensor:
        return torch.relu(table[slow_patterns(board, coming, colour, cell, is_ball)].sum(0))

    on_cell = []
    for cell in range(CELLS):
        colours = [cells[cell]] if cells[cell] else range(1, COLOURS + 1)
        on_cell.append(torch.stack([first(cells, c, cell, bool(cells[cell])) for c in colours]).sum(0) / COLOURS)
    board = torch.stack(on_cell).mean(0)
    logits = {}
    for move in np.flatnonzero(lines.legal_moves(np.array([cells], np.uint8))[0]):
        origin, target = divmod(int(move), CELLS)
        lifted = [0 if cell == origin else colour for cell, colour in enumerate(cells)]
        scores = []
        for before, cell, is_ball, head in (
            (cells, origin, True, network.leave),
            (lifted, target, False, network.place),
        ):
            mixed = lines_of.own(first(before, cells[origin], cell, is_ball))
            mixed = mixed + lines_of.beside(on_cell[cell]) + lines_of.around(board)
            scores.append(float(head(torch.relu(mixed))))
        logits[int(move)] = sum(scores)
    return logits


@torch.no_grad()
def test_joint_log_probs_and_entropy_are_those_of_brute_force() -> None:
    network, compact = lively(), positions(3)
    logs = network.outputs(as_obs(compact))
    for row, position in enumerate(compact.tolist()):
        logits = slow_logits(network, position)
        slow = torch.log_softmax(torch.tensor(list(logits.values()), dtype=torch.float64), 0)
        assert torch.allclose(logs[row, list(logits)].double(), slow, atol=2e-4)
        actions = torch.full((1,), next(iter(logits)))
        log_prob, entropy = network.log_probs_and_entropy(as_obs(compact[row : row + 1]), actions, None)
        assert float(log_prob) == pytest.approx(float(slow[0]), abs=2e-4)
        assert float(entropy) == pytest.approx(float(-(slow.exp() * slow).sum()), rel=1e-3, abs=1e-4)


@torch.no_grad()
def test_probabilities_sum_to_one_over_legal_moves_and_vanish_elsewhere() -> None:
    compact = positions(20, 18)
    chances = lively().outputs(as_obs(compact)).exp()
    legal = torch.from_numpy(lines.legal_moves(compact[:, :CELLS]))
    assert torch.allclose(chances.sum(1), torch.ones(20), atol=1e-5)
    assert not chances[~legal].any()


def test_a_full_board_gives_finite_numbers() -> None:
    """The last position of a game is acted on once, by the step that resets."""
    full = np.full((1, 84), 3, np.uint8)
    actor = CellsActor(lively())
    moves, log_probs = actor.act(full.astype(np.float32), np.full((1, 2), 0.999, np.float32), None)
    assert 0 <= moves[0] < MOVES
    assert np.isfinite(log_probs).all()
    assert torch.isfinite(lively().values(as_obs(full))).all()


@torch.no_grad()
def test_many_positions_at_once_give_the_same_without_gradients() -> None:
    network, compact = lively(4), np.repeat(positions(4), CHUNK // 4 + 2, axis=0)
    actions = torch.from_numpy(lines.legal_moves(compact[:, :CELLS]).argmax(1))
    chunked, _ = network.log_probs_and_entropy(as_obs(compact), actions, None)
    with torch.enable_grad():
        whole, _ = network.log_probs_and_entropy(as_obs(compact), actions, None)
    assert torch.allclose(chunked, whole, atol=1e-5)


# -- acting -------------------------------------------------------------------------------------------


def test_acting_is_legal_and_reports_the_learners_log_probs() -> None:
    network, actor = lively(), CellsActor(CellsActorCritic(8))
    actor.load(network.state_dict())
    env = ColorLines(16, 3, compact=True)
    for noise in actor.noise(5, 30, 16):
        obs = env.observation().astype(np.float32)
        moves, log_probs = actor.act(obs, noise, None)
        assert env.masks()[np.arange(16), moves].all()
        learned, _ = network.log_probs_and_entropy(torch.from_numpy(obs), torch.from_numpy(moves), None)
        assert np.allclose(log_probs, learned.detach().numpy(), atol=1e-5)
        assert np.array_equal(actor.best(obs, None), network.outputs(torch.from_numpy(obs)).argmax(1).numpy())
        env.step(moves)


def test_draws_follow_the_joint_distribution() -> None:
    network, compact, num = lively(seed=4), positions(1, seed=4), 4_000
    actor = CellsActor(network)
    chances = network.outputs(as_obs(compact)).exp().detach().numpy()[0]
    moves = np.concatenate(
        [
            actor.act(np.repeat(compact, 500, axis=0).astype(np.float32), noise, None)[0]
            for noise in actor.noise(1, num // 500, 500)
        ]
    )
    counts = np.bincount(moves, minlength=MOVES)
    often = chances * num >= 5
    rest = num * chances[~often].sum()
    expected = np.append(chances[often] * num, rest)
    observed = np.append(counts[often], counts[~often].sum())
    chi_square = ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    assert often.sum() > 10
    assert chi_square < len(expected) + 5 * np.sqrt(2 * len(expected))


def test_the_extreme_numbers_draw_moves_that_are_possible() -> None:
    compact, top = positions(8), np.nextafter(np.float32(1), np.float32(0))
    legal = lines.legal_moves(compact[:, :CELLS])
    for first in (0.0, top):
        for second in (0.0, top):
            noise = np.tile(np.array([first, second], np.float32), (8, 1))
            moves, _ = CellsActor(lively()).act(compact.astype(np.float32), noise, None)
            assert legal[np.arange(8), moves].all()


# -- symmetries and learning --------------------------------------------------------------------------


@torch.no_grad()
def test_images_of_a_position_have_the_same_value_and_the_images_of_its_probabilities() -> None:
    """Why there is no augmentation: it would train on what is known already."""
    network, every = lively(), np.arange(8)
    for seed in range(3):
        compact = np.repeat(positions(1, seed=seed), 8, axis=0)
        _, colours = lines.draw_symmetries(np.random.default_rng(seed), 8)
        images = lines.transform_positions(compact, every, colours)
        logs, turned = network.outputs(as_obs(compact)).numpy(), network.outputs(as_obs(images)).numpy()
        legal = lines.legal_moves(images[:, :CELLS])
        assert np.allclose(turned[legal], lines.transform_policies(logs, every)[legal], atol=1e-4)
        assert np.allclose(network.values(as_obs(images)), network.values(as_obs(compact)), atol=1e-4)


def test_gradients_are_those_of_finite_differences() -> None:
    network, compact = lively(4), positions(2)
    obs, actions = as_obs(compact), torch.from_numpy(lines.legal_moves(compact[:, :CELLS]).argmax(1))

    def loss() -> torch.Tensor:
        log_probs, entropies = network.log_probs_and_entropy(obs, actions, None)
        return (log_probs + 0.3 * entropies + 0.1 * network.values(obs)).sum()

    loss().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        steepest = int(parameter.grad.abs().argmax())
        slope, step = float(parameter.grad.view(-1)[steepest]), 1e-2
        assert slope != 0, name
        with torch.no_grad():
            entry = parameter.view(-1)
            entry[steepest] += step
            up = float(loss())
            entry[steepest] -= 2 * step
            down = float(loss())
            entry[steepest] += step
        assert (up - down) / (2 * step) == pytest.approx(slope, rel=0.1, abs=0.02), name


def test_the_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = CellsActorCritic(8, seed=7).state_dict()
    torch.manual_seed(2)
    two, other = CellsActorCritic(8, seed=7).state_dict(), CellsActorCritic(8, seed=8).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["critic.shared"], other["critic.shared"])
