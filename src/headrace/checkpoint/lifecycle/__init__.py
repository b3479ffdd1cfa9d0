"""The coordinator's decisions about checkpoints: facts in, actions out, no clock and no I/O."""
