"""Reports of the delay bound: tables, a picture, fitted slopes, and verdicts."""
