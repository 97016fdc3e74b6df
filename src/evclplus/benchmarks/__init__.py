"""The published benchmarks: data of the papers, cut into tasks as the papers cut it."""
