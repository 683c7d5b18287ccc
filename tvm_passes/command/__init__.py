"""The subcommands of the console command `tvm-passes`, whose options are in the package `tvm_passes_cli`.

There is one file per subcommand: `doctor`, `inspect`, `compile`, `run`, `profile` and so on; `main` runs it.
The other files are shared by them. Of these, `draw`, `images`, `chart` and `progress` are public.

Only this part of `tvm_passes` uses `frontends`, and imports them only when a subcommand runs.
"""
