"""Cutting data into tasks: streams from arrays."""
