"""The programs that serve a model: stages, the front end, one machine for all."""
