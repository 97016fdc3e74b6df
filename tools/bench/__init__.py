"""Speed, as ratios against rivals measured in the same run, turn by turn: `python -m tools.bench`.

Absolute times say little on a noisy machine. Each row times our work and its rival in
alternation. Ours is what a user gets: the recommended settings through the public interface.
"""
