"""A coordinator and workers as programs: from a configuration to what runs."""
