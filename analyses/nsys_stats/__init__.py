"""The reports of `nsys stats` and the rules of `nsys analyze`, as queries on a `Trace` of any format.

`catalogue` holds their names and columns, and `tables` makes them: `tracekit nsys-stats` on the command line. Names,
columns and definitions are those of NVIDIA's Post-Collection Analysis Guide. If it does not define a detail, the
module of the report does.
"""
