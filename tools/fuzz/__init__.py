"""Wrong input of every kind: mutated files, hostile calls, command lines.

    python -m tools.fuzz --files 1000 --calls 1000 --commands 100

Each case must end with a clear error, one printable line, or be answered; never with a traceback,
never later than a limit, never with more memory than a limit. What fails is kept, with its seed.
"""
