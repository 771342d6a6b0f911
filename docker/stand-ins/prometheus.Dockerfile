# Debian's Prometheus where the image prom/prometheus has its own.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* /etc/prometheus \
    && mkdir -p /etc/prometheus /prometheus \
    && chown nobody:nogroup /prometheus
USER 65534:65534
EXPOSE 9090
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
