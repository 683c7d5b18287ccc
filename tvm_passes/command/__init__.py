"""The console command `tvm-passes`, also `python -m tvm_passes`.

There is one file per subcommand: `doctor`, `inspect`, `compile`, `run`, `profile`; `main` has their options.
The other files are shared by them. Of these, `draw`, `images`, `chart` and `progress` are public.

Only this part of `tvm_passes` uses `frontends`, and imports them only when a subcommand runs.
"""
