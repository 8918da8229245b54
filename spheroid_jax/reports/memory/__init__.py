"""Report of active states: tables, a picture, and verdicts."""
