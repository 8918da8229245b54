"""The front end: HTTP on one side, the pipeline's stages on the other."""
