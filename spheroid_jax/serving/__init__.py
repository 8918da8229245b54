"""Serving a model that lies in parts on many hosts."""
