"""FLOPs and bytes of operators from recorded shapes (DEFINITIONS §7): the models, a module for each family, and what counts in a trace.

An operator without a model, or whose shapes, types or scalar arguments were not recorded where they matter, has no figure: None, never 0.
"""

from tracekit.analyses.flops.attention import attended_pairs, attention_flops
from tracekit.analyses.flops.convolution import convolution_flops, convolution_output
from tracekit.analyses.flops.count import PRECISIONS, CountedOperators, counted, counted_operators
from tracekit.analyses.flops.coverage import Coverage, coverage
from tracekit.analyses.flops.matmul import FIRST_FACTOR, matmul_flops, product_sizes
from tracekit.analyses.flops.work import (
    DTYPES,
    MOST,
    ODD_INPUTS,
    Family,
    Inputs,
    Operator,
    Work,
    json_list,
    model_patterns,
    models,
    operator_work,
)

__all__ = [
    "DTYPES",
    "FIRST_FACTOR",
    "MOST",
    "ODD_INPUTS",
    "PRECISIONS",
    "CountedOperators",
    "Coverage",
    "Family",
    "Inputs",
    "Operator",
    "Work",
    "attended_pairs",
    "attention_flops",
    "convolution_flops",
    "convolution_output",
    "counted",
    "counted_operators",
    "coverage",
    "json_list",
    "matmul_flops",
    "model_patterns",
    "models",
    "operator_work",
    "product_sizes",
]
