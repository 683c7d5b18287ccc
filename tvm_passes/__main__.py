"""`python -m tvm_passes doctor` says what this installation can do."""

import argparse
import sys

from .doctor import doctor


def main():
    parser = argparse.ArgumentParser(prog="python -m tvm_passes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="say what works here, what is missing, and how to get it")
    parser.parse_args()
    return doctor()


if __name__ == "__main__":
    sys.exit(main())
