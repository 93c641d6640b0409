# The hub as a container image: `make image`, then see "Run in a container" in docs/guides/operations.md.
# The base image is an argument, so that an operator can pin it by its digest:
#   make image BASE=docker.io/library/python@sha256:…
ARG BASE=docker.io/library/python:3.13-slim-bookworm

# hadolint ignore=DL3006
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/build.txt requirements/hub.txt requirements/
# The tools that build the wheel stay in this stage.
RUN python3 -m venv /opt/build \
    && /opt/build/bin/python -m pip install --require-hashes --no-deps -r requirements/build.txt
# The environment of the hub has no pip: nothing installs packages at run time.
RUN python3 -m venv --without-pip /opt/onceward \
    && /opt/build/bin/python -m pip --python /opt/onceward/bin/python install --require-hashes --no-deps -r requirements/hub.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN /opt/build/bin/python -m hatchling build -t wheel -d /wheels \
    && /opt/build/bin/python -m pip --python /opt/onceward/bin/python install --no-deps --no-index /wheels/*.whl \
    && /opt/build/bin/python -m pip --python /opt/onceward/bin/python check \
    && /opt/onceward/bin/python -m compileall -q /opt/onceward/lib

# hadolint ignore=DL3006
FROM ${BASE}
# A fixed id, so that a volume keeps its owner. The folder is a volume's content when the volume is new.
RUN groupadd --system --gid 10001 onceward \
    && useradd --system --uid 10001 --gid onceward --no-create-home --home-dir /var/lib/onceward --shell /usr/sbin/nologin onceward \
    && install -d -m 0700 -o onceward -g onceward /var/lib/onceward
COPY --from=build /opt/onceward /opt/onceward
COPY ops/healthcheck.py /opt/onceward/healthcheck.py
ENV PATH=/opt/onceward/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    ONCEWARD_HUB__DATA_DIR=/var/lib/onceward \
    ONCEWARD_HUB__HOST=0.0.0.0 \
    ONCEWARD_HUB__LOG_FORMAT=json
USER 10001:10001
WORKDIR /var/lib/onceward
VOLUME /var/lib/onceward
EXPOSE 8787
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/opt/onceward/bin/python", "-I", "/opt/onceward/healthcheck.py"]
# Without a shell in between, SIGTERM reaches the hub, which then finishes its requests. Its grace is 20 seconds.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/onceward/bin/onceward"]
CMD ["serve"]
