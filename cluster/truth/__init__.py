"""The truth, which all groups have in common, on its way from the first group to the others
(docs/adr/0108-groups-share-one-truth-and-copy-it.md)."""
