from __future__ import annotations

import json

import pytest
from planted import EVERYTHING, MS, US, Planted, finding

from tracekit.findings import Finding
from tracekit.trace import DeviceInfo

H100 = DeviceInfo(0, "NVIDIA H100 80GB HBM3", (9, 0), 132, 85_000_000_000, 2048, 32)
TOKENS, WIDTH, VOCABULARY = 8192, 4096, 50257
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_NNN"
ALIGN1 = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align1>(Params)"


class Products(Planted):
    """Products one after the other, each at a rate; `other` is time of other kernels."""

    clock: int = 0

    def product(
        self,
        tflops: float,
        m: int,
        k: int,
        n: int,
        *,
        batch: int = 0,
        kind: str = "c10::BFloat16",
        kernel: str = GEMM,
    ) -> int:
        """Adds a product m×k · k×n; returns its time in ns."""
        ns = round(2 * max(batch, 1) * m * k * n / tflops / 1e3)
        front = [batch] if batch else []
        shapes = json.dumps([[*front, m, k], [*front, k, n]])
        name = "aten::bmm" if batch else "aten::mm"
        self.span(
            "op", name, self.clock, self.clock + 10 * US, shapes=shapes, dtypes=json.dumps([kind, kind])
        )
        self.activity(kernel, self.clock + 20 * US, ns, launch=self.clock + US, call_ns=US)
        self.clock += ns + 30 * US
        return ns

    def other(self, ns: int) -> None:
        self.activity("elementwise", self.clock, ns, launch=None)
        self.clock += ns


def found(made: Planted, *, device: DeviceInfo = H100, shapes: bool = True) -> Finding | None:
    captured = EVERYTHING if shapes else EVERYTHING - {"shapes"}
    return finding(made.trace(devices=(device,), captured=captured), "ops", "odd_sizes")


def vocabulary(tflops: float = 67.0, **how: str) -> tuple[Products, int]:
    made = Products()
    made.product(712.0, TOKENS, WIDTH, 4 * WIDTH, **how)
    made.product(712.0, TOKENS, 4 * WIDTH, WIDTH, **how)
    made.span("module", "nn.Module: Head_0", made.clock, made.clock + 10 * US)
    return made, made.product(tflops, TOKENS, WIDTH, VOCABULARY, **how)


def test_fires_if_aligned_products_are_far_faster() -> None:
    made, ns = vocabulary()
    one = found(made)
    assert one is not None
    assert one.ns_at_stake == pytest.approx(ns * (1 - 67 / 712), rel=1e-3)
    assert one.severity == "critical"
    assert "unaligned sizes (50,257)" in one.title
    assert "[8192, 4096] × [4096, 50257] reaches 67 TFLOP/s in layer Head_0" in one.evidence
    assert "others of similar sizes reach 712 TFLOP/s" in one.evidence
    assert "Pad 50,257 to 50,304" in one.advice
    (place,) = one.stretches
    assert place[1] - place[0] == ns


def test_sizes_that_do_no_harm_elsewhere_are_not_named() -> None:
    """An odd number of tokens is in all products, also in fast ones."""
    made = Products()
    made.product(700.0, TOKENS + 1, WIDTH, 4 * WIDTH)
    made.product(70.0, TOKENS + 1, WIDTH, VOCABULARY)
    one = found(made)
    assert one is not None
    assert "unaligned sizes (50,257)" in one.title


@pytest.mark.slow
def test_silent_if_odd_sizes_are_as_fast_or_nothing_can_be_compared() -> None:
    assert found(vocabulary(600.0)[0]) is None
    assert found(vocabulary()[0], shapes=False) is None
    alone = Products()
    alone.product(67.0, TOKENS, WIDTH, VOCABULARY)
    assert found(alone) is None  # the names of its kernels show no missing alignment
    small = Products()  # another size: its rate says nothing about a large product
    small.product(700.0, TOKENS, WIDTH, 4 * WIDTH)
    small.product(1.0, TOKENS, 65, 3)
    assert found(small) is None
    damaged = vocabulary()[0]
    damaged.host = [
        {**row, "shapes": str(row.get("shapes")).replace(str(VOCABULARY), "9" * 400)} for row in damaged.host
    ]
    assert found(damaged) is None
    other_type = vocabulary()[0]
    other_type.host = [
        {**row, "dtypes": '["float", "float"]'}
        if VOCABULARY not in json.loads(row.get("shapes", "[[0], [0]]"))[1]
        else row
        for row in other_type.host
    ]
    assert found(other_type) is None


def test_silent_if_all_is_aligned_and_below_one_part_in_fifty() -> None:
    aligned = Products()
    aligned.product(700.0, TOKENS, WIDTH, 4 * WIDTH)
    aligned.product(60.0, TOKENS, WIDTH, 50304)
    assert found(aligned) is None
    little, ns = vocabulary()
    little.other(100 * ns)
    assert found(little) is None


def test_silent_on_short_calls() -> None:
    made = Products()
    for _ in range(50):
        made.product(60.0, 256, 1024, 1024)
        made.product(20.0, 256, 1024, 723)
    assert found(made) is None  # 9 µs and 19 µs


def test_the_name_of_a_kernel_shows_the_missing_alignment() -> None:
    """Scores of attention over 3137 tokens: 61 operations a byte, so the memory allows 206 TFLOP/s."""
    made = Products()
    ns = made.product(63.6, 3137, 64, 3137, batch=96, kernel=ALIGN1)
    made.other(10 * MS)
    one = found(made)
    assert one is not None
    assert one.ns_at_stake == pytest.approx(ns * (1 - 63.6 / 206), rel=0.01)
    assert "the device allows up to 206 TFLOP/s" in one.evidence
    assert "fused attention" in one.advice
    assert found(made, device=DeviceInfo(0, "Unknown", (9, 0), 132, None, 2048, 32)) is None
    fast = Products()
    fast.product(150.0, 3137, 64, 3137, batch=96, kernel=ALIGN1)
    assert found(fast) is None


@pytest.mark.parametrize(("width", "fires"), [(4 * WIDTH + 4, False), (4 * WIDTH + 2, True)])
def test_types_have_multiples_of_their_own(width: int, fires: bool) -> None:
    """Four numbers of 32 bits are 16 bytes."""
    made = Products()
    made.product(300.0, TOKENS, WIDTH, 4 * WIDTH, kind="float")
    made.product(40.0, TOKENS, WIDTH, width, kind="float")
    assert (found(made) is not None) is fires


def test_products_of_attention_that_should_be_fused_were_to_be_padded() -> None:
    def attention(*, softmax: bool) -> Products:
        made = Products()
        made.product(400.0, 3136, 64, 3136, batch=64)
        made.product(60.0, 3137, 64, 3137, batch=64)
        if softmax:
            made.span("op", "aten::_softmax", made.clock, made.clock + 10 * US, shapes="[[64, 3137, 3137]]")
            made.activity("softmax", made.clock + 20 * US, MS, launch=made.clock + US, call_ns=US)
            made.clock += 2 * MS
        made.product(60.0, 3137, 3137, 64, batch=64)
        return made

    assert found(attention(softmax=False)) is not None
    assert found(attention(softmax=True)) is None
