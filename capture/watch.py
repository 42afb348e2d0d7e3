"""Recording code that trains by itself, such as a script: its steps are seen from outside, and it runs as it would alone.

A step ends when the optimizer has updated the weights. Code without an optimizer infers: there a step ends with each call
of the model. The first step shows which models are called, and the order of several optimizers; then the profiler warms up,
records a few steps and writes them. Nothing of this stays in torch, and the code goes on.
"""

from __future__ import annotations

import functools
import gc
import os
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.modules import module as modules
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import profile
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from tracekit.capture.device import resolve_device
from tracekit.capture.marks.names import Phase
from tracekit.capture.output import reason_of
from tracekit.capture.seen import Models, Turns, has_parameters
from tracekit.capture.sessions import Session, ended_early, recording, write_session
from tracekit.errors import UsageError
from tracekit.facts.units import count_of
from tracekit.manifest import CaptureOptions, Level, Manifest

__all__ = ["Watch"]

_T = TypeVar("_T")
_CALLS_WITHOUT_UPDATE: Final = 100
"""After so many calls of its models, code that has an optimizer and has never used it is taken to infer."""
_UPDATE: Final = "Optimizer.step#"
"""How the name of torch's own range around an update begins."""


class Watch:
    """Records a few steps of the code in the block, on the thread that entered it, and writes them into `folder`.

    The files are written as soon as the steps are recorded; if the block ends earlier, with the steps until then. With
    `stop`, SystemExit then ends the code. `tell` receives lines for the user.

    `manifest` is that of the capture, None while there is none. `steps` counts the steps that were seen until the last
    recorded one. A failure of the recording does not end the code: it is `failure`.
    """

    def __init__(
        self,
        folder: Path,
        options: CaptureOptions,
        workload: str,
        tell: Callable[[str], None],
        *,
        level: Level = "MLG",
        stop: bool = False,
    ) -> None:
        self.manifest: Manifest | None = None
        self.failure: Exception | None = None
        self._folder, self._options, self._workload, self._tell = folder, options, workload, tell
        self._level, self._stop = level, stop
        self._home = os.getpid(), threading.get_ident()
        self._models, self._device = Models(), torch.device("cpu")
        self._updates, self._calls = Turns(), Turns()
        self._infers = self._trains = self._profiles_itself = self._due = self._several = False
        self._elsewhere = ""
        self._depth = self._called = self.steps = 0
        self._phase: ExitStack | None = None
        self._live: Session | None = None
        self._global: RemovableHandle | None = None
        self._searches = True
        self._recording, self._searching, self._hooks = ExitStack(), ExitStack(), ExitStack()

    def __enter__(self) -> Watch:
        hooks, search = self._hooks, self._searching
        hooks.callback(register_optimizer_step_pre_hook(self._before_update).remove)
        hooks.callback(register_optimizer_step_post_hook(self._after_update).remove)
        hooks.enter_context(_replaced(record_function, "__exit__", self._at_end_of_range))
        hooks.enter_context(
            _replaced(torch.autograd, "backward", functools.partial(self._in_phase, "backward"))
        )
        fetches: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
        if fetches is not None:
            hooks.enter_context(_replaced(fetches, "__next__", functools.partial(self._in_phase, "data")))
        # What torch.compile made of a model asks it, to warn of the hooks.
        search.enter_context(_replaced(modules, "_has_any_global_hook", lambda _original: False))
        search.callback(self._pause)
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._home[0]:  # and not a process that the code forked
            self._finish(error)

    def why_nothing(self, *, failed: bool = False) -> UsageError:
        """The error for code that ended before a step was recorded; `failed`: with an exit code of its own."""
        if self._profiles_itself:
            return UsageError(
                f"nothing was recorded: {self._workload} runs torch's profiler itself",
                remedy="read the trace that it writes, or leave its profiler out",
            )
        if self._several and not self._updates.known:
            return UsageError(
                f"nothing was recorded: {self._workload} ended before the order of its optimizers had repeated, which shows what a "
                "step is",
                remedy="let it run longer",
            )
        if self.steps:
            first = 2 + self._several + self._options.wait + self._options.warmup
            return UsageError(
                f"nothing was recorded: {self._workload} ended after {count_of(self.steps, 'step')}, and the first "
                f"recorded one is number {first}",
                remedy="let it run longer",
            )
        if failed:
            return UsageError(f"nothing was recorded: {self._workload} ended before its first step")
        if self._elsewhere:
            return UsageError(
                f"nothing was recorded: {self._workload} calls its model in the thread {self._elsewhere}, and only the main thread is watched",
                remedy="mark its steps there with tracekit.capture.session",
            )
        return UsageError(
            f"nothing was recorded: {self._workload} called no optimizer, and no model repeatedly, in this process",
            remedy="mark its steps with tracekit.capture.session",
        )

    # -- what torch calls -------------------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """False in the processes of a DataLoader, on other threads, and while torch.compile reads the code."""
        # The compiler reads no further than to the first.
        return not torch.compiler.is_compiling() and (os.getpid(), threading.get_ident()) == self._home

    def _before_update(self, *_: object) -> None:
        if self._is_ours():
            self._open_phase("optimizer")

    def _after_update(self, optimizer: Optimizer, *_: object) -> None:
        if not self._is_ours():
            return
        self._close_phase()
        if self._infers and not (self._live and self._live.recorded_steps):
            self._infers = False  # it trains, and what was seen before was a test
        if not self._infers and self._updates.ends(optimizer):
            self._due = True

    def _at_end_of_range(self, original: Callable[..., object], *values: Any) -> object:
        """The step ends behind torch's range around the update, so that the range is a part of it."""
        result = original(*values)
        if self._due and values[0].name.startswith(_UPDATE) and self._is_ours():
            self._due = False
            self._end_step()
        return result

    def _in_phase(
        self, phase: Phase, original: Callable[..., object], *values: object, **named: object
    ) -> object:
        if self._live is None or self._phase is not None or not self._is_ours():
            return original(*values, **named)
        self._open_phase(phase)
        try:
            return original(*values, **named)
        finally:
            self._close_phase()

    def _listen(self) -> None:
        self._global = modules.register_module_forward_pre_hook(self._before_call)

    def _pause(self) -> None:
        if self._global is not None:
            self._global.remove()
            self._global = None

    def _before_call(self, module: nn.Module, *_: object) -> None:
        """Of a module that the code itself calls, while the models are searched."""
        if not self._is_ours():
            if os.getpid() == self._home[0] and not torch.compiler.is_compiling() and has_parameters(module):
                self._elsewhere = ascii(threading.current_thread().name)
            return
        # Not for the modules inside it: what is compiled meanwhile would be compiled again without the hook.
        self._pause()

        def after(*_: object) -> None:
            handle.remove()
            if model:
                self._calls.ends(module)
            if self._searches:
                self._listen()

        handle = module.register_forward_hook(after, always_call=True)
        model, again = has_parameters(module), self._models.add(module)
        self._called += model
        if model and again and not self._will_train():
            self._infers = True
            self._end_step()

    def _will_train(self) -> bool:
        self._trains = self._trains or bool(_all_of(Optimizer))
        return self._trains and self._called <= _CALLS_WITHOUT_UPDATE

    def _before_model(self, *_: object) -> None:
        if self._is_ours():
            self._depth += 1
            if self._depth == 1:
                self._open_phase("forward")

    def _after_model(self, module: nn.Module, *_: object) -> None:
        if not self._is_ours():
            return
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0:
            self._close_phase()
            if self._infers and self._calls.ends(module):
                self._end_step()

    # -- the recording ----------------------------------------------------------------------------------------

    def _open_phase(self, phase: Phase) -> None:
        if self._live is not None and self._phase is None:
            self._phase = ExitStack()
            self._phase.enter_context(self._live.phase(phase))

    def _close_phase(self) -> None:
        if self._phase is not None:
            self._phase.close()
            self._phase = None

    def _end_step(self) -> None:
        self.steps += 1
        try:
            if self._live is None and not self._infers and self._in_first_round():
                # In the next step, all of them will have had a turn, and their models been called.
                self.steps = 1
                return
            if self._live is None:
                self._begin()
            else:
                self._live.step()
        except Exception as error:  # noqa: BLE001 - the code that is watched must not end by it
            self._fail(error)
        if self._live is not None and self._live.done:
            self._finish(None)
            if self._stop:
                raise SystemExit(0)

    def _in_first_round(self) -> bool:
        """Whether there are several optimizers whose order has not repeated yet."""
        if self._updates.known:
            return False
        self._several = len(_all_of(Optimizer)) > 1
        return self._several

    def _begin(self) -> None:
        """Start the profiler, whose first steps are a warm-up, unless the code has one of its own: torch runs only one."""
        if any(map(_is_at_work, _all_of(profile))):
            self._profiles_itself = True
            return
        models = self._models.named()
        self._device = _device_of(list(models.values()))
        self._end_search()
        self._live = self._recording.enter_context(
            recording(self._level, models, self._device, self._options)
        )
        for module in filter(has_parameters, models.values()):
            # Around the hooks of the layers, whose ranges are thus inside the phase.
            self._hooks.callback(module.register_forward_pre_hook(self._before_model, prepend=True).remove)
            self._hooks.callback(module.register_forward_hook(self._after_model, always_call=True).remove)

    def _end_search(self) -> None:
        self._searches = False
        self._searching.close()

    def _finish(self, error: BaseException | None) -> None:
        """Remove all hooks and write what was recorded. A second call does nothing."""
        self._close_phase()
        self._end_search()
        self._hooks.close()
        live, self._live = self._live, None
        try:
            self._recording.close()
            if live is not None and live.recorded_steps:
                self._write(live, error)
        except Exception as failure:  # noqa: BLE001 - as above
            self._fail(failure)
        self._models.clear()

    def _write(self, live: Session, error: BaseException | None) -> None:
        early = None if live.done else ended_early(live.recorded_steps, self._options.steps)
        ended = isinstance(error, SystemExit) or error is None
        write_session(
            self._folder,
            live,
            self._models.named(),
            self._device,
            self._options,
            level=self._level,
            stopped=early if ended or error is None else reason_of(error),
            workload=self._workload,
            config={},
        )
        self.manifest = live.manifest
        steps = early or count_of(live.recorded_steps, "step was recorded", "steps were recorded")
        goes_on = "; the code goes on" if live.done and not self._stop else ""
        self._tell(f"{steps}{goes_on}; to see them: tracekit report {shlex.quote(str(self._folder))}")

    def _fail(self, failure: Exception) -> None:
        self.failure, self._live = failure, None
        self._end_search()
        self._hooks.close()
        with suppress(Exception):  # the first failure is the one to tell
            self._recording.close()
        self._tell(f"the recording failed ({reason_of(failure)}); the code goes on")


def _all_of(kind: type[_T]) -> list[_T]:
    """The objects of a class that exist; those of which only the claimed class differs are not asked."""
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def _is_at_work(profiler: profile) -> bool:
    """True from the making of a profiler to its results, also in the steps that its schedule leaves out."""
    return getattr(profiler.profiler, "kineto_results", None) is None


def _device_of(models: list[nn.Module]) -> torch.device:
    """The GPU that the models use; the CPU if they use none."""
    used = {p.device.type for module in models for p in module.parameters()}
    if "cuda" in used or (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return resolve_device("cuda")
    return torch.device("cpu")


@contextmanager
def _replaced(owner: Any, name: str, by: Callable[..., object]) -> Iterator[None]:
    """Let calls of a function of torch go through `by`, which gets the function first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def function(*values: object, **named: object) -> object:
        return by(original, *values, **named)

    setattr(owner, name, function)
    try:
        yield
    finally:
        if getattr(owner, name) is function:
            setattr(owner, name, original)
