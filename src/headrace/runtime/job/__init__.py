"""The driver's side of a job: attempts, coordinator loop, enumerators, status."""
