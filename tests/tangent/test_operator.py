"""J over rows: what does not depend on the tail."""

from __future__ import annotations

import pytest
import torch

from taftcache.tangent.operator import RowSum, TangentOperator
from tests.solve.problems import K, N, case, rows


class Counted:
    """A source that counts how often it is read."""

    def __init__(self, source):
        self.source, self.rows, self.reads = source, source.rows, 0

    def blocks(self, size, start=0):
        self.reads += 1
        return self.source.blocks(size, start)


@pytest.mark.parametrize(("vit", "spec"), [("narrow-mlp", "keep"), ("all", "class-token")])
def test_the_head_alone_is_that_part_of_the_whole(vit, spec):
    base = case(vit, spec).base
    whole, head = (
        TangentOperator(base, rows(vit, spec), trained=layout, dtype=torch.float64)
        for layout in (base.layout, base.head_layout)
    )
    generator = torch.Generator().manual_seed(3)
    v = torch.randn(head.layout.size, dtype=torch.float64, generator=generator)
    r = torch.randn(N, K, dtype=torch.float64, generator=generator)
    wide = torch.zeros(whole.layout.size, dtype=torch.float64)
    for name, part in head.layout.views(v).items():
        whole.layout.views(wide)[name].copy_(part)
    assert torch.equal(torch.cat(list(head.matvec(v))), torch.cat(list(whole.matvec(wide))))
    pulled, wide_pulled = (J.accumulate(None, lambda z, change, y: r) for J in (head, whole))
    parts = whole.layout.views(wide_pulled)
    for name, part in head.layout.views(pulled).items():
        assert torch.equal(part, parts[name])


def test_rows_of_the_head_stay_in_a_hundredth_of_the_memory():
    base = case().base
    few = N * (base.config.width + K) * 8
    for layout, stays in ((base.head_layout, True), (base.layout, False)):
        source = Counted(rows()[0])
        operator = TangentOperator(base, [source], trained=layout, dtype=torch.float64, memory=few)
        for _ in range(3):
            assert sum(len(labels) for _, labels in operator.blocks()) == N
        assert (source.reads == 1) is stays


@pytest.mark.parametrize("sizes", [(N,), (11, N - 11)])
def test_several_sums_of_one_pass_have_the_bits_of_each_alone(sizes):
    base, generator = case().base, torch.Generator().manual_seed(4)
    sources = [Counted(source) for source in rows(sizes=sizes)]
    operator = TangentOperator(base, sources)
    v, w, onto = torch.randn(3, operator.layout.size, generator=generator)

    def asked() -> list[RowSum]:
        return [
            RowSum(v, lambda z, change, y: change),
            RowSum(None, lambda z, change, y: z, onto.clone()),
            RowSum(w, lambda z, change, y: z - change),
        ]

    together = operator.sums(*asked())
    assert [source.reads for source in sources] == [1] * len(sizes)
    for found, alone in zip(together, asked(), strict=True):
        assert torch.equal(found, operator.sums(alone)[0])
