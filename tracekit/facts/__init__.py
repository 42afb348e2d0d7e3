"""Facts about profilers, launch APIs and kernels: each stands in one place, here."""

__all__: list[str] = []
