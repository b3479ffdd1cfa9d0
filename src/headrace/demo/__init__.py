"""`headrace demo`: a job is killed twice while it runs, and what arrived is counted."""
