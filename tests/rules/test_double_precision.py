from __future__ import annotations

from planted import MS, Planted, finding


def products(dtype: str, length: int = 5 * MS) -> Planted:
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("op", "aten::mm", 0, length, dtypes=f'["{dtype}", "{dtype}"]')
    made.span("op", "aten::add", length, 10 * MS, dtypes=f'["{dtype}", "{dtype}"]')
    return made


def test_names_products_in_float64() -> None:
    found = finding(products("double").trace(devices=()), "kernels", "double_precision")
    assert found is not None
    assert found.ns_at_stake == 2.5 * MS
    assert found.title == "Matrix products and convolutions in float64 take 50.0 % of the time"
    assert "float32" in found.advice


def test_silent_on_other_types_and_on_little_time() -> None:
    assert finding(products("float").trace(devices=()), "kernels", "double_precision") is None
    assert finding(products("double", MS // 2).trace(devices=()), "kernels", "double_precision") is None
