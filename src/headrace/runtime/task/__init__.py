"""The worker's side of a job: input gate, mailbox, operator chains, output, snapshots."""
