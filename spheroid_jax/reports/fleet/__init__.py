"""Report of a fleet over a day: tables, a picture, and sentences."""
