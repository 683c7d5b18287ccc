"""Passes that find geometric transformations of images."""
