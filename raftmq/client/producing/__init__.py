"""The client's producers: send frames, windows of unsettled sends, transactions and staged writes."""
