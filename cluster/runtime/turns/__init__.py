"""The event loop's turns: their cost is bounded here, and long ones are reported."""
