"""The console command `tvm-passes`, which is `python -m tvm_passes` too.

One file a subcommand: `doctor`, `inspect`, `compile`, `run`, `profile`; `main` has their options. The other
files are what they share, and may be used from Python: `draw`, `history`, `graph_page`.

This is the one place of `tvm_passes` that uses `frontends`, and only when it runs.
"""
