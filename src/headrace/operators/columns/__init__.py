"""Operators that work on whole Arrow batches instead of one record after the other."""
