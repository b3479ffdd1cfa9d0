"""One coordinator for an attempt: facts about tasks and storage in, actions on ports out, no I/O on its thread."""
