"""The 15 analyses of XSP over the recordings of a model at several levels.

`catalogue` names them by XSP's numbers, `runs` holds what a run is made of, `layer_tables`, `kernel_tables` and
`model_tables` make the tables. `tracekit xsp` and `tracekit.analyses.xsp.analysis` read the recordings.
"""
