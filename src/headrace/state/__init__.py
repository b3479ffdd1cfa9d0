"""Keyed state: descriptors, the five states, keys and key groups, codecs, timers."""
