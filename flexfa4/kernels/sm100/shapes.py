"""The products, shared memory layouts and tensor memory views of the sm100 forward, from its tiles. Static values only: made
alike on the host, where TMA descriptors are built, and in the kernel."""

from __future__ import annotations


import cutlass.cute as cute
import cutlass.utils as utils
import cutlass.utils.blackwell_helpers as blackwell
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

from flexfa4.ir import DType
from flexfa4.plan import Sm100Forward

from ..arguments import ELEMENT
from ..carried import Fixed


class Shapes(Fixed):
    def __init__(self, tiles: Sm100Forward, dtype: DType):
        self.tiles, self.dtype = tiles, ELEMENT[dtype]
        self.group = tcgen05.CtaGroup.TWO if tiles.ctas == 2 else tcgen05.CtaGroup.ONE
        # A product of a pair has the query tiles of both CTAs as its rows; each CTA holds its half of the columns of K and V.
        self.qk_tile = (tiles.q_tile * tiles.ctas, tiles.kv_tile, tiles.head_dim)
        self.pv_tile = (tiles.q_tile * tiles.ctas, tiles.head_dim_v, tiles.kv_tile)
        self.columns = {r.name: r for r in tiles.tmem}

    def qk_mma(self) -> cute.TiledMma:
        """S = Q K^T: both from shared memory, head dim contiguous."""
        k = OperandMajorMode.K
        return blackwell.make_trivial_tiled_mma(
            self.dtype, self.dtype, k, k, Float32, self.group, self.qk_tile[:2]
        )

    def pv_mma(self) -> cute.TiledMma:
        """O += P V: P from tensor memory, V with its head dim contiguous."""
        return blackwell.make_trivial_tiled_mma(
            self.dtype, self.dtype, OperandMajorMode.K, OperandMajorMode.MN, Float32, self.group,
            self.pv_tile[:2], tcgen05.OperandSource.TMEM,
        )

    def q_layout(self):
        return blackwell.make_smem_layout_a(self.qk_mma(), self.qk_tile, self.dtype, self.tiles.q_tiles)

    def q_rows(self):
        """The same bytes as `q_layout`, as rows of query tiles: what TMA writes."""
        tile = (self.tiles.q_tile, self.tiles.head_dim)
        return blackwell.make_smem_layout_epi(self.dtype, utils.LayoutEnum.ROW_MAJOR, tile, self.tiles.q_tiles)

    def k_layout(self):
        """K and V tiles take turns in one ring: a stage is as large as the larger."""
        return self._staged(blackwell.make_smem_layout_b(self.qk_mma(), self.qk_tile, self.dtype, self.tiles.kv_stages))

    def v_layout(self):
        return self._staged(blackwell.make_smem_layout_b(self.pv_mma(), self.pv_tile, self.dtype, self.tiles.kv_stages))

    def out_layout(self):
        tile = (self.tiles.q_tile, self.tiles.head_dim_v)
        return blackwell.make_smem_layout_epi(self.dtype, utils.LayoutEnum.ROW_MAJOR, tile, self.tiles.q_tiles)

    def _staged(self, layout):
        outer = layout.outer
        stage = self.tiles.kv_tile * max(self.tiles.head_dim, self.tiles.head_dim_v) // self.tiles.ctas
        staged = cute.make_layout(outer.shape, stride=(*outer.stride[:-1], stage))
        return cute.make_composed_layout(layout.inner, 0, staged)

    @property
    def q_bytes(self) -> int:
        """Of one query tile of each CTA, as TMA counts them."""
        return self._bytes(self.q_layout())

    @property
    def k_bytes(self) -> int:
        return self._bytes(self.k_layout())

    @property
    def v_bytes(self) -> int:
        return self._bytes(self.v_layout())

    def _bytes(self, layout) -> int:
        return cute.size_in_bytes(self.dtype, stage_of(layout)) * self.tiles.ctas

    def s(self, q_tile):
        """S of one query tile in tensor memory: (rows, columns), float32."""
        mma = self.qk_mma()
        fragment = mma.make_fragment_C(mma.partition_shape_C(self.qk_tile[:2]))[(None, None), 0, 0]
        return cute.make_tensor(fragment.iterator + q_tile * self.tiles.kv_tile, fragment.layout)

    def o(self, q_tile):
        """O of one query tile in tensor memory: (rows, head dim), float32."""
        mma = self.pv_mma()
        fragment = mma.make_fragment_C(mma.partition_shape_C(self.pv_tile[:2]))[(None, None), 0, 0]
        first = self.columns["o0"].first
        return cute.make_tensor(fragment.iterator + first + q_tile * self.tiles.head_dim_v, fragment.layout)

    def p(self, q_tile):
        """P of one query tile as the softmax writes it: (rows, columns / 2) words of two elements."""
        s = self.s(q_tile)
        words = cute.make_layout((self.tiles.q_tile, self.tiles.kv_tile // 2))
        return cute.make_tensor(s.iterator + self._p_offset, cute.composition(s.layout, words))

    @property
    def _p_offset(self) -> int:
        return self.columns["p0"].first - self.columns["s0"].first


def stage_of(layout):
    """One stage of a staged operand layout."""
    return cute.select(layout, mode=[0, 1, 2])


def over(tensor: cute.Tensor, layout: cute.ComposedLayout) -> cute.Tensor:
    """Another layout in the place of a tensor in shared memory."""
    return cute.make_tensor(cute.recast_ptr(tensor.iterator, layout.inner), layout.outer)
