"""How good the text is that each way of decoding writes."""
