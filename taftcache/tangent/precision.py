"""float32 arithmetic that stays float32, whatever a program has set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_float32(device: torch.device | str) -> Iterator[None]:
    """Products in float32 proper: no TF32, no bfloat16 shortcuts and no autocast, restored afterwards.

    cuDNN convolutions use TF32 by default, and a program may have lowered the precision of matrix
    products; either would put rounding of 1e-3 into features that are stored for good. Kernels of cuDNN whose sums
    have no fixed order are left out too: the same run gives the same bytes.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            torch.autocast(torch.device(device).type, enabled=False),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
