"""What users write: environment, streams and settings. Builds a plan and runs nothing."""
