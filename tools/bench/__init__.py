"""Speed, as ratios against rivals measured in the same run, turn by turn.

Absolute times say little on a noisy machine. Each row times our work and its rival in
alternation and compares the least of several rounds.
"""

from tools.bench.parts import step_parts
from tools.bench.rows import rows

__all__ = ["rows", "step_parts"]
