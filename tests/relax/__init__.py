"""The operators and importers on a TVM whose graphs are Relax's; other tests need Relay."""
