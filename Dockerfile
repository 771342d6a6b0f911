# The runtime packages from the lock file, this package with its native kernel, and nothing that built them.
# The image without -slim has the C compiler that the kernel needs; both have the same Python at the same place,
# /usr/local/bin/python, which is built with PGO and LTO.
FROM python:3.11 AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/raftmq
WORKDIR /src
COPY requirements/base.lock requirements/
RUN /opt/raftmq/bin/pip install --require-hashes -r requirements/base.lock
COPY pyproject.toml setup.py README.md LICENSE ./
COPY raftmq_wire raftmq_wire
COPY raftlog raftlog
COPY statemachine statemachine
COPY cluster cluster
COPY docs/runbooks.md docs/runbooks.md
COPY raftmq raftmq
COPY jepsen_like jepsen_like
COPY pyspark_raftmq pyspark_raftmq
RUN /opt/raftmq/bin/pip install --no-deps --no-build-isolation . \
    && cd / && /opt/raftmq/bin/python -c 'from raftmq_wire import kernel; assert kernel.NAME == "native", kernel.WHY'

FROM python:3.11-slim
COPY --from=build /opt/raftmq /opt/raftmq
# A named volume takes over the owner of the folder it is mounted on.
RUN useradd --system --uid 10911 --home-dir /data raftmq \
    && mkdir -p /data/n1 /data/n2 /data/n3 \
    && chown -R raftmq /data
ENV PATH=/opt/raftmq/bin:$PATH PYTHONUNBUFFERED=1
USER raftmq
WORKDIR /data
EXPOSE 9644 9876 10911 10912 20911
ENTRYPOINT ["raftmq"]
CMD ["--help"]
