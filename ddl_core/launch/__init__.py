"""ddlrun: start the ranks of a job, look after them, and end together."""
