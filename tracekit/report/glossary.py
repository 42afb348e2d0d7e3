"""What the words of a report and the columns of its tables mean, each in one sentence; docs/definitions.md has the exact definitions."""

from __future__ import annotations

from typing import Final

__all__ = ["COLUMNS", "WORDS", "meaning"]

WORDS: Final = {
    "activity": ("A kernel, a copy or a fill on a device. Without a device, the self time of an operator."),
    "window": (
        "The analysed time: from the start of the first step on the host, or the end of earlier work on the device, "
        "to the end of the last step and of its work. Without steps, from the first to the last activity."
    ),
    "utilisation": "The part of the window in which the device ran kernels, copies or fills.",
    "kernel utilisation": (
        "The part of the time of all steps in which a kernel ran; copies and fills do not count. TensorBoard's "
        "profiler calls it GPU utilization."
    ),
    "exposed": ("Communication or copies that ran while the device computed nothing, so they cost time."),
    "overlap": ("The part of the communication that ran at the same time as computation, which hides it."),
    "host wait": (
        "A gap before an activity that the host launched only after the stream had run dry: the host was late."
    ),
    "kernel wait": (
        "A gap below 30 µs before an activity that was already queued: the time to start a kernel."
    ),
    "other wait": (
        "A longer gap before an activity that was already queued. The usual cause is an event of another stream."
    ),
    "queue": (
        "The activities that the host has launched on a stream and that have not started. If it is empty, the stream waits."
    ),
    "launch-bound": (
        "An activity is launch-bound if it is shorter than its launch call. The host then cannot stay ahead of the device."
    ),
    "layer": (
        "A module of the model, or a range around part of it. Names in angle brackets stand for work outside the layers: "
        "the loss, the optimizer, the data."
    ),
    "own": (
        "The time of a layer without the layers below it, or of an operator without the operators inside it."
    ),
    "up to": "The most time in the window that the advice could save.",
    "saves about": "What a replay of the trace with the advised change alone saves of the window (tracekit what-if --rank).",
}
"""The words that need one, in the order of the page."""

COLUMNS: Final = {
    "count": "How many there are in the window.",
    "total_ns": "The sum of the durations; what overlaps counts each time.",
    "mean_ns": "The mean duration.",
    "median_ns": "Half of the durations are shorter.",
    "p95_ns": "95 % of the durations are shorter.",
    "min_ns": "The shortest duration.",
    "max_ns": "The longest duration.",
    "std_ns": "The standard deviation of the durations.",
    "trimmed_mean_ns": "The mean without the lowest and the highest fifth.",
    "share": "The part of the summed time of all rows.",
    "idle.share": "The part of the idle time, of the window or of the cause, as the title says.",
    "layers.share": "The part of the device time in the layer and the layers below it.",
    "ops.share": "The part of the device time that the operator launched itself.",
    "own_share": "The part of the device time in the layer without the layers below it.",
    "device_ns": "The summed time of the device's activities, with those of the layers below.",
    "device_own_ns": "The summed time of the device's activities, without those of the layers below.",
    "workload.device_ns": "The summed time of the activities that the phase launched.",
    "mean_device_ns": "The mean time on the device.",
    "host_ns": "The time of the forward calls on the host, with the layers below.",
    "host_self_ns": "The time on the host without that of what is inside.",
    "host_total_ns": "The time on the host with all that is inside.",
    "mean_host_ns": "The mean time of a call on the host.",
    "device_total_ns": "The summed time of the activities launched inside, at any depth.",
    "device_self_ns": "The summed time of the activities that the operator launched itself.",
    "launched": "The activities launched inside.",
    "calls": "How often it was called in the window.",
    "layers": "How many layers the row stands for.",
    "union_ns": "The time in which at least one of the activities ran.",
    "recomputed_ns": "Forward work that ran again inside the backward pass.",
    "idle_caused_ns": "The device's idle time that the layer, or one below it, caused.",
    "idle_caused_own_ns": "The device's idle time that the layer itself caused.",
    "communication_ns": "The time of communication.",
    "layers.communication_ns": "Reduction of gradients and synchronisation of buffers.",
    "ops.communication_ns": "Reduction of gradients and synchronisation of buffers.",
    "memory_ns": "The time in which copies or fills ran.",
    "compute_ns": "The time in which other kernels than those of communication ran.",
    "exposed_communication_ns": "Communication while the device computed nothing.",
    "exposed_memory_ns": "Copies and fills while the device neither computed nor communicated.",
    "overlap_ns": "Communication while the device computed.",
    "exposed_ns": "Communication while the device computed nothing.",
    "overlap": WORDS["overlap"],
    "busy_ns": "The time in which at least one activity ran.",
    "idle_ns": "The time in which nothing ran.",
    "window_ns": WORDS["window"],
    "utilisation": WORDS["utilisation"],
    "kernel_utilisation": WORDS["kernel utilisation"],
    "sm_efficiency": "Blocks of a kernel per multiprocessor, at most 1, weighted by time.",
    "occupancy": "The mean occupancy of the kernels, weighted by time.",
    "start": "From the beginning of the trace.",
    "time_ns": "From the start of the step to the start of the next, on the host.",
    "steps.duration_ns": "The duration of the step's range on the host.",
    "idle.duration_ns": "How long nothing ran.",
    "outlier": "More than 3.5 robust deviations and 10 % from the median.",
    "span_ns": "From the end of the step before to the end of the last activity that the step launched.",
    "kernel_ns": "A kernel ran.",
    "memcpy_ns": "A copy ran, and no kernel.",
    "memset_ns": "A fill ran, and neither a kernel nor a copy.",
    "runtime_ns": "The host was in a call to the runtime, and nothing ran.",
    "data_loader_ns": "The host was in the data loader, and nothing ran.",
    "operator_ns": "The host was in an operator, and nothing ran.",
    "steps.other_ns": "None of the other columns.",
    "idle.other_ns": WORDS["other wait"],
    "host_wait_ns": WORDS["host wait"],
    "kernel_wait_ns": WORDS["kernel wait"],
    "unknown_ns": "Gaps before activities whose launch was not recorded.",
    "cause": "What the host or the queue did during the gap; docs/definitions.md §4 has the list.",
    "cause_ns": "The part of the gap with this cause.",
    "gaps": "How many gaps there are.",
    "idle.call": "The innermost Python function or API call with more than half of the time.",
    "frame": "The innermost line of your own code around what caused the gap.",
    "open_share": "The part of the window in which it is open.",
    "dependency": "The activity that the stream waited for.",
    "category": "What the activity computes, by its operator or its name.",
    "idle.category": "Whether the host was late, a queued kernel started, or something else was waited for.",
    "method": "How the layer of an activity was determined; docs/definitions.md §5 has the list.",
    "pattern": "The layers whose paths differ only in numbers.",
    "role": "What the call does: launch, wait, allocate, or something else.",
    "mean_call_ns": "The mean duration of the launch call.",
    "mean_delay_ns": "The mean time from the launch call to the start on the device.",
    "launch_bound_share": WORDS["launch-bound"],
    "mean_length": "The mean number of activities in the queue, weighted by time.",
    "max_length": "The longest queue.",
    "bandwidth_gbps": "Bytes over the summed time.",
    "collectives.bandwidth_gbps": "Bytes over time of the fastest call.",
    "algorithm_gbps": "Bytes over time of the shortest call, which waited least for other ranks.",
    "bus_gbps": "What the links carry for each rank over the time of the shortest call, as nccl-tests count it.",
    "link_share": "The bus bandwidth over the peak of the board's links, if all ranks of the group are on one machine.",
    "carries": "What of the layer: its gradients, its parameters, or own data, if the layer launches the call.",
    "bytes": "The bytes in all.",
    "largest_bytes": "The bytes of the largest.",
    "host_memory": "Pageable or pinned memory of the host.",
    "peak_bytes": "The most that the allocator held.",
    "reserved_bytes": "The most that the allocator had reserved.",
    "capacity_bytes": "The memory of the device.",
    "relative": "The file has no totals: they count from the first event.",
    "measured": "The kernels that Nsight Compute measured.",
    "intensity": "FLOPs for each byte of device memory.",
    "flops": "The floating-point operations.",
    "bytes_per_s": "Bytes read and written over the time of the work whose bytes are known.",
    "flops_per_s": "FLOPs over the time of the work whose FLOPs are known.",
    "attainable_flops_per_s": "The rate at the roof: the lower of the peak and of intensity times bandwidth.",
    "efficiency": "The time at the roof over the time that it took. More than 100 %: caches served part of the bytes, or took fewer.",
    "least_ns": "The time at the roof: the longer of FLOPs over the peak and bytes over the bandwidth.",
    "wasted_ns": "The time beyond that at the roof.",
    "faster_ns": "The time of work that was faster than its roof, which no memory but a cache allows; nothing of it counts as wasted.",
    "bound": "What takes longer at the roof: computing, or moving the bytes.",
    "rated_share": "The part of the time whose FLOPs, bytes and ceilings are known; the figures beside it are about this part.",
    "roofline.source": "Hardware counters, the shapes of operators (analytic), or the profiler (recorded).",
    "bytes_source": "Hardware counters, the shapes of operators (analytic: each tensor once), or the profiler (recorded).",
    "roofline.bytes": "The bytes read and written.",
    "bandwidth_efficiency": "The bandwidth over that of the device's memory.",
    "unit": "The units for matrix products (tensor cores), or the others.",
    "model_utilisation": "FLOPs of matrix products over those of the devices at their peak, without what is computed again.",
    "hardware_utilisation": "The same with what is computed again.",
    "roofline.calls": "How many activities there are; how often the operator was called.",
    "roofline.device_ns": "The summed time of the activities.",
    "roofline.layer": "A layer's own work, without that of the layers inside.",
    "overhead": "The median over that of the level without recording.",
    "workload.level": "What was recorded; docs/capture.md has the levels.",
    "roofline.level": "The memory whose bandwidth it is.",
    "mean_communication_ns": "Communication in a step, on average.",
    "mean_exposed_ns": "Communication in a step while the device computed nothing, on average.",
    "name": "As the profiler recorded it.",
    "breakdown.name": "What the device, or the machine's processor, is called.",
    "roofline.name": "The kernel, or the window.",
    "device": "What the device, or the processor, is called.",
    "kind": "A kernel, a copy or a fill; an operator where no device was captured.",
    "device_id": "The number of the device, as the program counts them.",
    "stream_id": "The stream of the device, on which work runs in its order; without a device the thread.",
    "step": "The step of the training loop, as the profiler or a range marks it.",
    "steps.part": "A column of the table of steps.",
    "steps.name": "The range that marks the step.",
    "span_start": "The end of the step before; the first step begins with its range.",
    "phase": "Forward, backward, optimizer or data: what of a step the work belongs to.",
    "layer": WORDS["layer"],
    "type": "The class of the module.",
    "operator": "The innermost operator around the launch of the work.",
    "forward_ns": "In the forward pass.",
    "backward_ns": "In the backward pass.",
    "optimizer_ns": "In the update of the parameters.",
    "data_ns": "Loading of data and copies of it to the device.",
    "layers.other_ns": "In none of these phases.",
    "ops.other_ns": "In none of these phases.",
    "activities": "Kernels, copies and fills; operators where no device was captured.",
    "idle.name": "The activity, or the operator, that ended the gap.",
    "shapes": "The shapes of the inputs.",
    "dtypes": "The types of the inputs' elements.",
    "dtype": "The type of the elements.",
    "precision": "The arithmetic of most of the work, by the types of its inputs and the names of its kernels.",
    "steps": "How many steps the figures are of.",
    "ranks": "How many ranks there are.",
    "figure": "FLOPs or bytes.",
    "reason": "Why it is not known.",
    "measure": "What was measured of each launch.",
    "direction": "Between which memories: of the host, of the device, or from one device to another.",
    "allocations": "How often memory was given.",
    "frees": "How often memory was given back.",
    "peak_time": "When the allocator held the most, from the beginning of the trace.",
    "duration_ns": "How long it took.",
    "end": "From the beginning of the trace.",
    "elements_in": "The elements that this rank gave.",
    "collectives.kernels": "The kernels that the call launched.",
}
"""The meaning of a column, by its name, or by that of the section and its own where it means something else there."""


def meaning(section: str, column: str) -> str:
    """What a column means in the tables of a section, in one sentence; empty where its title says it.

    >>> meaning("kernels", "p95_ns"), meaning("kernels", "no_such_column")
    ('95 % of the durations are shorter.', '')
    """
    return COLUMNS.get(f"{section}.{column}", COLUMNS.get(column, ""))
