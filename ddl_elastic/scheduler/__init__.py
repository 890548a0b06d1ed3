"""Many jobs on one cluster: which job has which slots, and when."""
