# Downbeat in a small image: one program, no root, its state on a volume.
#
#   docker build -t downbeat .
#   docker run -p 7070:7070 -v downbeat:/data downbeat
#   docker run -p 7070:7070 -e DOWNBEAT_STORE=redis://redis:6379 downbeat

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
# Without debug information: a tenth of the size.
ENV CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=true
COPY Cargo.toml Cargo.lock build.rs ./
COPY proto proto
COPY src src
COPY examples examples
COPY benches benches
# The pages of the error codes are part of the program.
COPY docs/errors docs/errors
RUN cargo build --release --locked --bin downbeat
# What the volume begins with, so that it belongs to the user that writes to it.
RUN mkdir /data

FROM debian:bookworm-slim
COPY --from=build /src/target/release/downbeat /usr/local/bin/downbeat
COPY --from=build --chown=65532:65532 /data /data
COPY LICENSE /usr/share/doc/downbeat/LICENSE
USER 65532:65532
VOLUME /data
# The drain is shorter than the ten seconds after which a container is killed.
ENV DOWNBEAT_LISTEN=0.0.0.0:7070 \
    DOWNBEAT_STORE=embedded \
    DOWNBEAT_DATA=/data \
    DOWNBEAT_DRAIN=8s \
    DOWNBEAT_LOG_FORMAT=json
EXPOSE 7070
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["downbeat", "health"]
ENTRYPOINT ["downbeat"]
CMD ["serve"]
