"""The jobs of `raftmq spark` as a file for `spark-submit`; also `python -m pyspark_raftmq`.

spark-submit --master spark://host:7077 …/site-packages/pyspark_raftmq/__main__.py export orders --to /lake/orders
"""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts the folder of a program first in sys.path, where our `errors` would hide any other module of that name.
if sys.path[0] == str(Path(__file__).resolve().parent):
    del sys.path[0]

from raftmq.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "spark")
    main()
