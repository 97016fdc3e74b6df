"""Published comparisons: runs, grids, presets, search, records, reports and the command line."""
