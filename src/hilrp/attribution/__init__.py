"""One explanation, from the call to the result: passes, checks, stages, verdicts."""
