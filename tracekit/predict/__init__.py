"""Predict times of runs from those that were measured: tables of runs, models fitted to them, and how well each foretells others.

>>> from pathlib import Path
>>> from tracekit.predict import description_of, runs_from
>>> import polars as pl
>>> said = {"target": {"column": "ms", "unit": "ms"}, "columns": {"batch": "batch"}}
>>> runs = runs_from(pl.DataFrame({"batch": ["1", "2"], "ms": ["3.5", "5"]}), description_of(said, Path("t")), Path("t"))
>>> runs.target.tolist()
[3.5, 5.0]
"""

from tracekit.predict.auto import Predictor, fit
from tracekit.predict.describe import Description, description_of, read_description
from tracekit.predict.evaluate import BASELINES, Evaluation, evaluate
from tracekit.predict.from_trace import FromTrace, predict_from_trace
from tracekit.predict.grid import grid_of, priced, settings_of
from tracekit.predict.model import MODELS, Term
from tracekit.predict.recognise import recognised
from tracekit.predict.store import load, save
from tracekit.predict.table import Runs, columns_of, read_runs, runs_from

__all__ = [
    "BASELINES",
    "MODELS",
    "Description",
    "Evaluation",
    "FromTrace",
    "Predictor",
    "Runs",
    "Term",
    "columns_of",
    "description_of",
    "evaluate",
    "fit",
    "grid_of",
    "load",
    "predict_from_trace",
    "priced",
    "read_description",
    "read_runs",
    "recognised",
    "runs_from",
    "save",
    "settings_of",
]
