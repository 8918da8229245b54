"""A fleet over a day: arrivals alone, simulated under each policy."""
