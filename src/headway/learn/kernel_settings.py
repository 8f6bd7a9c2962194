"""What a learner of a language model can be told about how its model is run."""

from __future__ import annotations

from pydantic import BaseModel

from headway.llm.kernels import Attention, Compiling


class KernelSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Speed: how the model is run in training."""

    trainer_attention: Attention = "auto"
    """dense: a mask of every pair of tokens. flex: FlexAttention over trees end to end, which leaves out what no token
    sees. flash: the same rows by flash kernels, for models without windows and caps. auto: on a GPU flash, else flex,
    where the model gives the same numbers and the same gradient; else dense."""
    compile_trainer: Compiling = "auto"
    """Compile the layers of the model: on, off, or auto, which is on where a GPU reads by flash or flex. Takes seconds
    for each length of a row when it is first met, less where the disk still has it, and saves many small kernels."""
