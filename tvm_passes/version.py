"""The version of the project, also where it runs from a checkout that is not installed."""

VERSION = "0.1.0"
