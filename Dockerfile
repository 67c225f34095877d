# The image of pytest-agentbench, for sessions and for node workers (docs/machines/nodes.md). It is built from a checkout:
#
#   docker build --tag agentbench .
#
# Build arguments: BASE is an image with Python 3.11.5 or newer (`python3`) and its venv module. EXTRAS are extras of the package, such as
# `hub,mcp`. PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_TRUSTED_HOST and PIP_CERT are settings of pip. They are not in the final image.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ARG EXTRAS=
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
COPY . /source
RUN python3 -m venv /opt/agentbench && /opt/agentbench/bin/pip install --no-cache-dir "/source${EXTRAS:+[$EXTRAS]}"

FROM ${BASE}
LABEL org.opencontainers.image.title="pytest-agentbench" \
      org.opencontainers.image.description="Agent benchmarks as pytest suites: sessions and node workers" \
      org.opencontainers.image.licenses="Apache-2.0"
# The user has a fixed number, because Kubernetes checks `runAsNonRoot` by number. Its lines are written without `useradd`, which some bases
# do not have. The home may be written by others, for `docker run --user`.
RUN echo 'agentbench:x:10001:10001:agentbench:/home/agentbench:/bin/sh' >>/etc/passwd && \
    echo 'agentbench:x:10001:' >>/etc/group && \
    mkdir -p /work /home/agentbench && chown 10001:10001 /work /home/agentbench && chmod 1777 /home/agentbench
COPY --from=build /opt/agentbench /opt/agentbench
ENV PATH=/opt/agentbench/bin:$PATH HOME=/home/agentbench
WORKDIR /work
USER 10001:10001
# The example suite. A project that is mounted at /work hides it.
RUN agentbench init banking
# The first process removes ended orphans and forwards signals.
ENTRYPOINT ["python3", "-m", "pytest_agentbench.lib.supervisor.first_process"]
CMD ["agentbench", "--help"]
