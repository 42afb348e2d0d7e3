"""The reports of `nsys stats` and the rules of `nsys analyze`, as queries on a `Trace` of any format.

`catalogue` names them with their columns, `tables` makes them: `tracekit nsys-stats` on the command line. Names,
columns and definitions are those of NVIDIA's Post-Collection Analysis Guide; where it is silent, the module of the
report says what was chosen.
"""
