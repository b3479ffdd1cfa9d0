"""State as objects in the worker's memory."""
