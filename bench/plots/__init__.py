"""Pictures of the studies: `python -m bench.plots` reads what `bench.sweep` wrote. Needs the extra `bench`."""
