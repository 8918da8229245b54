"""Messages between hosts of a served model: frames over TCP, or over TLS."""
