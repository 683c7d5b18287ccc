"""What is known of a graph before it is rewritten: values, shapes, bounds, rows, layouts, weights."""
