"""Bayesian continual learning in PyTorch."""
