# The image of the node driver, the scheduler extender and the sidecar:
#
#     docker build -t tandem:0.1.0 .
#
# A local cluster builds the same without a registry (hack/images; tests/unit/test_images.py compares the two).
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS library
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY hack/simdevice/build.sh hack/simdevice/simdevice.c /simdevice/
RUN /simdevice/build.sh /opt/tandem/lib

FROM ${PYTHON}
COPY hack/images/requirements.lock /opt/tandem/requirements.lock
RUN pip install --no-cache-dir --no-deps --require-hashes --target /opt/tandem --requirement /opt/tandem/requirements.lock
COPY --from=library /opt/tandem/lib/libsimdevice.so /opt/tandem/lib/libsimdevice.so
COPY claim_phases /opt/tandem/claim_phases
COPY dra_driver /opt/tandem/dra_driver
COPY scheduler_extender /opt/tandem/scheduler_extender
COPY tandem /opt/tandem/tandem
COPY workload_agents /opt/tandem/workload_agents
ENV PYTHONPATH=/opt/tandem PYTHONUNBUFFERED=1
USER 65532:65532
