"""The command line: `headrace run`, `explain`, `doctor`, `demo`."""
