"""`python -m tvm_passes` is the command `tvm-passes`, which begins a second later than by that name."""

import sys

from tvm_passes_cli.main import console

if __name__ == "__main__":
    sys.exit(console())
