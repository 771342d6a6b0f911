"""Half messages and staged writes: what is stored now and becomes visible when its transaction commits."""
