"""Report of a comparison of encodings: a table, a picture, and a verdict."""
