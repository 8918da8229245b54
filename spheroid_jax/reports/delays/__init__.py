"""Reports of the delay experiments: tables, pictures, and sentences with verdicts."""
