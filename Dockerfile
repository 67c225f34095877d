# The image of pytest-agentbench, for sessions and for node workers (docs/machines/nodes.md). It is built from a checkout:
#
#   docker build --tag agentbench .
#
# Build arguments: BASE is an image with Python 3.11.5 or newer (`python3`) and its venv module. EXTRAS are extras of the package, such as
# `hub,mcp`. VERSION and REVISION are labels of the image. PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_TRUSTED_HOST and PIP_CERT are settings
# of pip. They are not in the final image.
ARG BASE=python:3.13-slim

# The dependencies have stages of their own, so that they are installed again only if their requirements change.
FROM ${BASE} AS requirements
ARG EXTRAS=
COPY pyproject.toml /
RUN python3 -c "import sys, tomllib; project = tomllib.load(open('/pyproject.toml', 'rb'))['project']; \
extras = [project['optional-dependencies'][name] for name in sys.argv[1].split(',') if name]; \
print(*project['dependencies'], *sum(extras, []), sep='\n')" "$EXTRAS" >/requirements.txt

FROM ${BASE} AS dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
RUN python3 -m venv /opt/sbom && /opt/sbom/bin/pip install --no-cache-dir cyclonedx-bom==7.5.0
COPY --from=requirements /requirements.txt /
RUN python3 -m venv /opt/agentbench && /opt/agentbench/bin/pip install --no-cache-dir --requirement /requirements.txt

# The package is installed a second time below /package, which has no other files. The list of all packages (SBOM) is beside it.
FROM dependencies AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
COPY . /source
RUN /opt/agentbench/bin/pip install --no-cache-dir --no-deps --root /package /source && cp -a /package/. / && \
    /opt/sbom/bin/cyclonedx-py environment /opt/agentbench/bin/python --pyproject /source/pyproject.toml --output-reproducible \
    --output-file /package/opt/agentbench/sbom.cdx.json

FROM ${BASE}
# The user has a fixed number, because Kubernetes checks `runAsNonRoot` by number. Its lines are written without `useradd`, which some bases
# do not have. The home may be written by others, for `docker run --user`.
RUN echo 'agentbench:x:10001:10001:agentbench:/home/agentbench:/bin/sh' >>/etc/passwd && \
    echo 'agentbench:x:10001:' >>/etc/group && \
    mkdir -p /work /home/agentbench && chown 10001:10001 /work /home/agentbench && chmod 1777 /home/agentbench
COPY --from=dependencies /opt/agentbench /opt/agentbench
COPY --from=build /package /
ENV PATH=/opt/agentbench/bin:$PATH HOME=/home/agentbench
WORKDIR /work
USER 10001:10001
# The example suite. A project that is mounted at /work hides it.
RUN agentbench init banking
# The first process removes ended orphans and forwards signals.
ENTRYPOINT ["python3", "-m", "pytest_agentbench.lib.supervisor.first_process"]
CMD ["agentbench", "--help"]
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="pytest-agentbench" \
      org.opencontainers.image.description="Agent benchmarks as pytest suites: sessions and node workers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/pytest-agentbench/pytest-agentbench" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
