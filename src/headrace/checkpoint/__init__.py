"""Checkpoints: the pure lifecycle, metadata, storage, the job's directory, its lease, and restore plans."""
