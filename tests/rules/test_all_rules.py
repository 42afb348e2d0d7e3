"""What holds for every rule: it is registered, and it runs on every real trace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paths import PUBLIC, SAMPLES
from real_traces import scope_of, traces

from tracekit.analyses import rules
from tracekit.analyses.registry import BUILT_IN, get_analysis
from tracekit.analyses.rules import RULES, run
from tracekit.analyses.rules.rule import SETTINGS
from tracekit.analyses.traits import WORDS
from tracekit.cli.main import declared
from tracekit.findings import BOUNDS, SEVERITIES, Finding
from tracekit.manifest import CaptureOptions, Settings
from tracekit.verdict.general_advice import GENERAL

"""The samples, and public traces beside the checkout where there are any."""

# What fires on a trace, so that a change of a rule shows; traces that are not there are not asked.
EXPECTED = {
    "a100_alexnet": {
        "low_utilisation",
        "incomplete_capture",
        "cold_start",
        "long_calls",
        "autograd_in_inference",
    },
    "a100_cupti_counters": {"incomplete_capture", "counter_replay", "autograd_in_inference"},
    "cpu_only": {"exposed_communication", "incomplete_capture"},
    "cuda_event_sync_multi_stream": {
        "low_utilisation",
        "incomplete_capture",
        "allocation_calls",
        "long_gaps",
    },
    "ddp_rank0": {"low_utilisation", "exposed_communication", "incomplete_capture"},
    "ddp_rank1": {"low_utilisation", "exposed_communication", "incomplete_capture"},
    "h100_bert_small": {
        "low_utilisation",
        "host_bound_launches",
        "short_kernels",
    },
    "h100_timesformer": {"unfused_attention", "pageable_copies"},
    "mi250_minitoy": {
        "low_utilisation",
        "incomplete_capture",
        "cold_start",
        "blocking_synchronisation",
        "long_gaps",
    },
    "mi300_bert_small": {"low_utilisation", "host_bound_launches"},
    "torch_compile_triton": {"incomplete_capture", "far_below_roof"},
    "v100_resnet50_2021_workers0": {
        "low_utilisation",
        "incomplete_capture",
        "data_loading",
        "no_tensor_cores",
        "optimizer_not_fused",
        "short_kernels",
        "pageable_copies",
    },
    "vllm_decode_cuda_graph": {"incomplete_capture"},
}


def fired(path: Path) -> list[Finding]:
    scope = scope_of(path)
    found = [f for analysis in BUILT_IN for f in run(analysis, scope).findings]
    for finding in found:
        assert finding.severity in SEVERITIES
        assert finding.ns_at_stake is None or 0 <= finding.ns_at_stake <= scope.duration, finding
        assert finding.title
        assert finding.evidence.endswith(".")
        assert finding.advice.endswith(".")
        assert "None" not in finding.title + finding.evidence + finding.advice
    assert len({f.id for f in found}) == len(found)
    return found


def test_every_rule_is_registered_and_has_a_test() -> None:
    folder = Path(str(rules.__file__)).parent
    records = [
        line.split('"')[1]
        for path in folder.glob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith('    id="')
    ]
    assert sorted(records) == sorted(rules.RULES)
    assert {p.stem.removeprefix("test_") for p in Path(__file__).parent.glob("test_*.py")} >= set(rules.RULES)
    for rule in rules.RULES.values():
        get_analysis(rule.analysis)
        assert rule.answers <= set(BOUNDS)


def test_every_flag_is_one_of_capture() -> None:
    known = {
        name
        for parameter in declared("capture").params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(SETTINGS) <= known
    assert set(SETTINGS.values()) - {""} <= {*Settings.__struct_fields__, *CaptureOptions.__struct_fields__}
    assert {flag for rule in rules.RULES.values() for flag in rule.advice.flags} <= set(SETTINGS)


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_rules_run_on_real_traces(path: Path) -> None:
    found = {f.id for f in fired(path)}
    expected = EXPECTED.get(path.name.removesuffix(".json.gz"))
    if expected is not None:
        assert found == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES))
def test_nothing_of_a_device_fires_on_a_cpu_trace(path: Path) -> None:
    assert {f.id for f in fired(path)} <= {
        "exposed_communication",
        "optimizer_not_fused",
        "step_variability",
        "data_loading",
        "unfused_attention",
        "sdpa_fallback",
        "many_embeddings",
        "value_reads",
        "stalled_calls",
        "short_operators",
    }


def test_advice_names_only_traits_that_exist() -> None:
    words = [
        *(
            getattr(rule.advice, part) or ""
            for rule in RULES.values()
            for part in ("text", "processor", "plain")
        ),
        *(text or "" for _, one in GENERAL.values() for text in (one.text, one.plain)),
    ]
    conditions = [each for text in words for each in re.findall(r"^\[(.+?)\] ", text, re.MULTILINE)]
    assert len(conditions) > 20
    assert {word.removeprefix("!") for each in conditions for word in each.split()} <= WORDS
