"""Why each device was idle, by cause, and what each stream waited for, with HTA's split (DEFINITIONS §4)."""

from tracekit.analyses.idle.analysis import KERNEL_WAIT_NS, TABLES, Idle, idle

__all__ = ["KERNEL_WAIT_NS", "TABLES", "Idle", "idle"]
