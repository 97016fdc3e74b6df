"""A page that shows a grid while it runs: `server.serve`."""
