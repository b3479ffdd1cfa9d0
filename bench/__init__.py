"""The side-by-side speed harness: `python -m bench list`, `run`, `report`. See `bench/README.md`."""
