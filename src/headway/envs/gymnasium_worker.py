"""What runs in a worker's process: it steps the environments it is asked to, one after another.

START --> build --> READY;  RESET, STEP --> ARRIVED for each environment;  SAVE --> SAVED;  LOAD --> READY
whatever an environment raises --> RAISED, and the next question;  the collector gone --> close them, end
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import sys
import traceback

import cloudpickle
import numpy as np

from headway.core.text_one_line import said
from headway.envs.gymnasium_vector import Info, as_features_of_one, wrong_shape
from headway.envs.gymnasium_workers_gymnasium_rows import (
    ARRIVED,
    LOAD,
    RAISED,
    READY,
    RESET,
    SAVE,
    SAVED,
    START,
    STEP,
    EnvRows,
    EnvShape,
    MakeEnv,
)
from headway.runtimes.child_process_channel import Channel, HungUp
from headway.runtimes.child_process_in_child import begin

_ARRIVAL = struct.Struct("<BI")  # the kind, the environment


class EnvStepper:
    """One environment and its row. Starts the environment again on the step after it ended."""

    def __init__(self, index: int, make_env: MakeEnv, shape: EnvShape, rows: EnvRows) -> None:
        self._index, self._shape, self._rows = index, shape, rows
        self._env = make_env()
        self._is_over = False

    def reset(self, seed: int) -> None:
        """Copy i of a vector starts from seed + i."""
        obs, info = self._env.reset(seed=seed + self._index)
        self._write(obs, 0.0, False, False, info)

    def step(self) -> None:
        if self._is_over:
            obs, info = self._env.reset()
            self._write(obs, 0.0, False, False, info)
        else:
            action = self._rows.actions[self._index]
            self._write(*self._env.step(action.copy()))

    def close(self) -> None:
        self._env.close()

    def state(self) -> bytes:
        return cloudpickle.dumps((self._env, self._is_over))

    def load_state(self, state: bytes) -> None:
        self._env.close()
        self._env, self._is_over = cloudpickle.loads(state)

    def _write(self, obs: object, reward: object, terminated: bool, truncated: bool, info: Info) -> None:
        rows, index = self._rows, self._index
        features = as_features_of_one(obs, self._shape.observation_space)
        if features.shape != rows.obs.shape[1:]:  # numpy would stretch a shape that fits by chance
            raise ValueError(wrong_shape(features.shape, rows.obs.shape[1:]))
        rows.obs[index] = features
        rows.rewards[index], rows.terminated[index], rows.truncated[index] = reward, terminated, truncated
        mask = info.get("action_mask") if rows.masks.shape[1] else None
        rows.has_mask[index] = mask is not None
        legal = np.zeros(rows.masks.shape[1], bool) if mask is None else np.asarray(mask, bool).reshape(-1)
        if legal.shape != rows.masks[index].shape:
            width = rows.masks.shape[1]
            raise ValueError(f"an action mask needs an entry for each of {width} actions, received {legal.shape}")
        rows.masks[index] = legal
        self._is_over = bool(terminated or truncated)


def main(fd: int, memory: int, lifeline: int) -> None:
    """Host environments until the collector hangs up."""
    channel = begin(fd, lifeline, takes_fds=False)
    os.set_inheritable(memory, False)
    steppers: dict[int, EnvStepper] = {}
    try:
        while True:
            for body, _ in channel.receive():
                _answer(channel, steppers, body, memory)
    except HungUp:
        for stepper in steppers.values():
            stepper.close()
        sys.stdout.flush()
        os._exit(0)  # the collector waits for us, and taking an interpreter down takes a third of a second


def _answer(channel: Channel, steppers: dict[int, EnvStepper], asked: bytes, memory: int) -> None:
    kind, index = asked[0], 0
    try:
        if kind == STEP:
            for index in struct.unpack_from(f"<{len(asked) // 4}I", asked, 1):
                steppers[index].step()
                channel.send(_ARRIVAL.pack(ARRIVED, index))
        elif kind == START:
            packed, shape, indices = cloudpickle.loads(asked[1:])
            rows = EnvRows(shape, mmap.mmap(memory, EnvRows.size_of(shape)))
            for index in indices:
                steppers[index] = EnvStepper(index, cloudpickle.loads(packed), shape, rows)
            channel.send(bytes([READY]))
        elif kind == RESET:
            (seed,) = struct.unpack_from("<q", asked, 1)
            for index, stepper in steppers.items():
                stepper.reset(seed)
                channel.send(_ARRIVAL.pack(ARRIVED, index))
        elif kind == SAVE:
            states = {}
            for index, stepper in steppers.items():
                states[index] = stepper.state()
            channel.send(bytes([SAVED]) + pickle.dumps(states))
        elif kind == LOAD:
            for index, state in pickle.loads(asked[1:]).items():
                steppers[index].load_state(state)
            channel.send(bytes([READY]))
    except HungUp:
        raise
    except Exception as error:  # noqa: BLE001 - whatever an environment raises is told with its name
        told = index, f"{type(error).__name__}: {said(error)}", traceback.format_exc()
        channel.send(bytes([RAISED]) + pickle.dumps(told))
