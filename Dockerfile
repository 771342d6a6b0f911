# The runtime packages from the lock file and this package with its native kernel; pip and the compilers stay behind.
# The image without -slim has the C compiler that the kernel needs; both have the same Python at the same place,
# /usr/local/bin/python, which is built with PGO and LTO.
FROM python:3.11 AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/raftmq
WORKDIR /src
COPY requirements/image.lock requirements/
RUN /opt/raftmq/bin/pip install --require-hashes -r requirements/image.lock
COPY pyproject.toml setup.py README.md LICENSE ./
COPY raftmq_wire raftmq_wire
COPY raftlog raftlog
COPY statemachine statemachine
COPY cluster cluster
COPY docs/configuration.md docs/runbooks.md docs/
COPY raftmq raftmq
COPY jepsen_like jepsen_like
COPY pyspark_raftmq pyspark_raftmq
WORKDIR /
RUN /opt/raftmq/bin/pip install --no-deps --no-build-isolation /src \
    && /opt/raftmq/bin/python -c 'from raftmq_wire import kernel; assert kernel.NAME == "native", kernel.WHY' \
    && /opt/raftmq/bin/pip uninstall --yes cython setuptools pip \
    && find /opt/raftmq -name '*.so' -exec strip --strip-unneeded {} +

FROM python:3.11-slim
COPY --from=build /opt/raftmq /opt/raftmq
# A named volume takes over the owner of the folder it is mounted on. The user is a number below: Kubernetes cannot tell
# that a name is not root.
RUN groupadd --system --gid 10911 raftmq \
    && useradd --system --uid 10911 --gid 10911 --no-log-init --home-dir /data raftmq \
    && mkdir -p /data/n1 /data/n2 /data/n3 /secrets /handed/store /handed/metrics /handed/spark /checkpoints \
    && chown -R 10911:10911 /data /secrets /handed /checkpoints \
    && chmod 700 /data/n1 /data/n2 /data/n3 /secrets /handed/store /handed/spark
ENV PATH=/opt/raftmq/bin:$PATH PYTHONUNBUFFERED=1 RAFTMQ_ADMIN=127.0.0.1:9644
USER 10911:10911
WORKDIR /data
EXPOSE 9644 9876 10911 10912 19876 20911
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://' + os.environ['RAFTMQ_ADMIN'] + '/v1/health/live', timeout=3)"]
ENTRYPOINT ["raftmq"]
CMD ["--help"]
