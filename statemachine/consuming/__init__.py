"""What consumer groups leave behind: their offsets, resets and queue locks."""
