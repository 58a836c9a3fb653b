"""Experiments from one command: config in, tables out."""
