"""How far it goes: one model on several processes, large networks, streams on disk, many tasks.

Each writes its figures into results/scale/NAME.json and prints them: `python -m tools.scale NAME`.
"""
