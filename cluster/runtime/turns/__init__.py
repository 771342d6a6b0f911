"""The event loop's turns: what they may cost, and what watches them."""
