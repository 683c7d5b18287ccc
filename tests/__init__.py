import topi_ext  # noqa: F401  before anything imports tvm: it finds the TVM that has Relay
