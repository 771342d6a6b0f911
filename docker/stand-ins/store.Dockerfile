# versitygw, built from the Go module proxy, where the image versity/versitygw has it.
FROM debian:bookworm-slim
COPY versitygw /usr/local/bin/versitygw
ENTRYPOINT ["versitygw"]
