"""`python -m jepsen_like.checkers check HISTORY.jsonl`: judges a recorded history."""

from jepsen_like.check_cli import main

if __name__ == "__main__":
    main()
