"""What executes a plan: the driver's side, the worker's side, the wire between them, and Spark."""
