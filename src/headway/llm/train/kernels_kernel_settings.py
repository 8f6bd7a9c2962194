"""What a learner of a language model can be told about how its model is run."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headway.llm.train.kernels import Attention, Compiling


class KernelSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Speed: how the model is run in training."""

    trainer_attention: Attention = "auto"
    """dense: a mask of every pair of tokens. flex: FlexAttention over trees end to end, which leaves out what no token
    sees. flash: the same rows by flash kernels, for models without windows and caps. auto: on a GPU flash, else flex,
    where the model gives the same numbers and the same gradient; else dense."""
    compile_trainer: Compiling = "auto"
    """Compile the layers of the model: on, off, or auto, which is on where a GPU reads by flash or flex. Takes seconds
    for each length of a row when it is first met, less where the disk still has it, and saves many small kernels."""
    trainer_gpu_share: float = Field(default=0.6, gt=0, le=1)
    """The share of a GPU's multiprocessors on which is trained while an engine of the same process (runtime threads)
    generates on that GPU. Raising it makes training quicker and generation slower. 1: both use all of them, and
    generation goes first. Who is alone has all of them in any case."""
