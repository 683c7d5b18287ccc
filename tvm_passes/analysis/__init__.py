"""What is known about a graph before it is rewritten: values, shapes, bounds, rows, layouts, weights."""
