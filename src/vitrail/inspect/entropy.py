"""How spread out a head's attention is: the entropy of its rows, in bits.

0 bits is a head that looks at one token; log2(N) bits is one that looks at all N alike.
2 ** entropy reads as "about so many tokens".
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["EntropyMeter"]


class EntropyMeter:
    """Adds up chunks of softmax rows; `result` is (images, heads), the mean over all queries."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.queries = 0

    def add(self, attention: Tensor, queries: slice) -> None:
        bits = torch.special.entr(attention).sum(-1).double().sum(-1) / torch.log(torch.tensor(2.0)).item()
        self.total = bits if self.total is None else self.total + bits
        self.queries += queries.stop - queries.start

    def result(self) -> Tensor:
        assert self.total is not None, "no attention rows were added"
        return self.total / self.queries
