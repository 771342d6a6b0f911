"""Small files of a data directory, each sealed with a CRC, and the disk below them."""
